"""The machine a run lands on: device, precision, compiler, and the manifest that says what was used."""

import ctypes
import logging
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

logger = logging.getLogger(__name__)
PACKAGES = ("bertpre", "torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "wandb")


def start_accelerator() -> Accelerator:
    """Join the other processes, if there are any, and keep the libraries' chatter off the screen."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    has_gpu = torch.cuda.is_available()  # Apple's has no fp64, which sums are kept in: its CPU is used
    if has_gpu:  # gradients can be NaN (pytorch issue 196678), and each new length costs a plan (FunASR issue 3704)
        torch.backends.cuda.enable_cudnn_sdp(False)
    else:
        keep_freed_memory()
    return Accelerator(cpu=not has_gpu)  # else two processes without a GPU are two strangers


def keep_freed_memory() -> None:
    """Keep what a training step frees for the next one, where the C library is glibc.

    It returns large blocks, such as the scores of the vocabulary, to the kernel, which then clears every page anew:
    46,000 of them a step where the vocabulary has 30,522 words (docs/architecture.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The type of the arithmetic: `auto` is bf16 where the device multiplies it natively, else fp16 (GPU) or fp32."""
    if precision == "auto":
        without_bf16 = "fp16" if device.type == "cuda" else "fp32"
        precision = "bf16" if has_native_bf16(device) else without_bf16
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]


def has_native_bf16(device: torch.device) -> bool:
    """Whether bf16 matrix products run in hardware; emulated ones are slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    flags = cpu_flags()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def cpu_flags() -> set[str]:
    """The instruction sets of the processor, as Linux names them; empty where that cannot be known."""
    lines = read_text("/proc/cpuinfo").splitlines()
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())


def cpu_name() -> str:
    """The processor's name."""
    lines = read_text("/proc/cpuinfo").splitlines()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def read_text(path: str) -> str:
    """A file's text, or nothing where there is no such file."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


NO_COMPILER = (
    "torch.compile is off, for want of a compiler (g++; on a GPU gcc and Triton) or of Python's headers (python3-dev); "
    "training will be slower"
)


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile has what it needs: Python's headers, and Triton and a C, or on a CPU a C++ compiler."""
    if sys.platform == "linux" and not Path(sysconfig.get_path("include"), "Python.h").exists():
        return False
    if device.type == "cuda":
        has_c = any(shutil.which(name) for name in (os.environ.get("CC", "gcc"), "clang", "cc"))
        return has_c and version("triton") is not None
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))


def choose_compile(setting: str | bool, device: torch.device) -> bool:
    """Whether to compile: `auto` where there is a compiler, and a line says so where there is none."""
    if setting == "auto" and not can_compile(device):
        logger.warning(NO_COMPILER)
    return can_compile(device) if setting == "auto" else bool(setting)


# FLOPs of a training of about four minutes: on 2 cores that multiply bf16 (measured), and on one large GPU (a guess).
FOUR_MINUTES = {"cpu": 3e13, "cuda": 3e16}


def choose_deterministic(setting: str | bool, device: torch.device) -> bool:
    """Whether sums are always added in the same order: `auto` on a CPU, where that costs nothing measurable.

    A GPU's deterministic kernels are slower, by how much was not measured yet.
    """
    return device.type == "cpu" if setting == "auto" else bool(setting)


def set_deterministic(enabled: bool) -> None:
    """Let torch add gradients in a fixed order, or, where that is False, in the order in which threads arrive.

    Compiled for a CPU, gradients of embeddings are otherwise added with atomic operations by several threads: two runs
    of the same recipe part in the sixth digit after fifty steps.
    """
    if enabled and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it, before its first product
    torch.use_deterministic_algorithms(enabled)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that costs time


def is_worth_compiling(flops: float, device: torch.device) -> bool:
    """Whether a training of so many FLOPs is a long one: compiling costs a minute or two and saves about a quarter.

    A fixed number for each kind of device, so that the same training is compiled on every process and every time.
    """
    return flops > FOUR_MINUTES.get(device.type, 0.0)


# FLOP/s of dense matrix products in bf16 (fp16 where there is no bf16), from NVIDIA's data sheets; the first that is
# part of the device's name counts.
GPU_PEAKS = {
    "B200": 2250e12, "GH200": 989e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12,
    "H800": 989e12, "A100": 312e12, "A800": 312e12, "A40": 150e12, "A30": 165e12, "A10G": 70e12, "A10": 125e12,
    "L40S": 362e12, "L40": 181e12, "L4": 121e12, "V100": 125e12, "T4": 65e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
}  # fmt: skip


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """The most FLOP/s a training step could reach: measured on a CPU, from a table on a GPU, None where it lacks."""
    if device.type == "cpu":
        return measured_flops(device, dtype)
    if device.type != "cuda" or dtype == torch.float32:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in GPU_PEAKS.items() if part in name), None)


def measured_flops(device: torch.device, dtype: torch.dtype, size: int = 1024, rounds: int = 7) -> float:
    """The best rate of a square matrix product, in FLOP/s: the ceiling a training step is compared with.

    On a GPU `size` should be 8192; the default is meant for a CPU.
    """
    a = torch.randn(size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def manifest(device: torch.device, dtype: torch.dtype, num_processes: int) -> dict[str, Any]:
    """Versions, commit and hardware of this run, for `manifest.json`."""
    return {
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "commit": commit(),
        "command": " ".join(sys.argv),
        "hardware": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
            "cpu_count": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processes": num_processes,
            "precision": str(dtype).removeprefix("torch."),
        },
    }


def version(package: str) -> str | None:
    """An installed package's version."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of bertpre's checkout, with `+` where it was changed since; None for an installed package."""
    folder = Path(__file__).parent.parent
    if not (folder / ".git").exists():
        return None
    git = ["git", "-C", str(folder)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")
