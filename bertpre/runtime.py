"""What depends on the machine: device, precision, compiler, determinism, and the facts for `manifest.json`."""

import ctypes
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedDataParallelKwargs, DistributedType

from bertpre.console import SET_BY_TORCHRUN, SIZES
from bertpre.errors import UserError, first_line

logger = logging.getLogger(__name__)
# Gradients are views of what processes exchange: no copy of all of them in each step, and none in memory.
SHARED_GRADIENTS = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
# Of other libraries' models some have weights that take no part in the loss, which DDP would wait for.
SHARED_OR_UNUSED = DistributedDataParallelKwargs(gradient_as_bucket_view=True, find_unused_parameters=True)
GIVEN_UP: list[torch.compiler.set_stance] = []  # each knows what was set before it
USE_FSDP = "ACCELERATE_USE_FSDP"  # how `accelerate launch` passes FSDP on
PACKAGES = ("bertpre", "torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "wandb")


def quiet_transformers() -> None:
    """Keep transformers' warnings and progress bars off the screen."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextmanager
def callers_settings_kept() -> Iterator[None]:
    """Put back at the end what bertpre sets for the whole process, which may be a notebook or another training.

    These are the state of the caller's Accelerator, torch's random numbers, deterministic algorithms, compiler and
    number of threads, cuDNN's attention, and how much transformers says. What `keep_freed_memory`, `prepare_compiler`
    and the readers of data sets and of the Hub set stays.
    """
    from transformers.utils import logging

    states = [
        (kind._shared_state, dict(kind._shared_state)) for kind in (PartialState, AcceleratorState, GradientState)
    ]
    is_strict = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills, uses_cudnn = torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cuda.cudnn_sdp_enabled()
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(random_state)
        if torch.get_num_threads() != threads:  # `limit_threads`
            torch.set_num_threads(threads)
        torch.cuda.set_rng_state_all(of_gpus)
        while GIVEN_UP:
            GIVEN_UP.pop().__exit__(None, None, None)
        for state, kept in states:
            state.clear()
            state.update(kept)
        torch.use_deterministic_algorithms(is_strict, warn_only=only_warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills
        torch.backends.cuda.enable_cudnn_sdp(uses_cudnn)
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def give_up_compiling() -> None:
    """Compute without torch.compile from now on, in this whole process or until `callers_settings_kept` ends."""
    GIVEN_UP.append(torch.compiler.set_stance("force_eager"))


def start_accelerator(may_shard: bool = False) -> Accelerator:
    """Join the other processes, if any, and keep transformers' warnings and progress bars off the screen.

    A precision or a compiler in the user's accelerate configuration does not count: the recipe names them. FSDP counts
    only with `may_shard` and on GPUs; otherwise each process holds the whole model, and a warning says so.
    Raises UserError for DeepSpeed and Megatron-LM, and where the processes do not find each other.
    """
    quiet_transformers()
    limit_threads()
    has_gpu = torch.cuda.is_available()  # Apple's GPUs have no fp64, which the sums need: there the CPU is used
    if has_gpu:  # cuDNN attention: NaN gradients (pytorch issue 196678), a new plan per length (FunASR issue 3704)
        torch.backends.cuda.enable_cudnn_sdp(False)
        # For `set_deterministic`: cuBLAS reads it before its first product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    else:
        keep_freed_memory()
    # The settings of another Accelerator in this process, such as a Trainer's, and its device where that is not used.
    AcceleratorState._reset_state(reset_partial_state=PartialState._shared_state.get("device") == torch.device("mps"))
    if USE_FSDP in os.environ:  # otherwise transformers loads weights on each machine's first process alone
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    refuse_other_trainers()
    asked = os.environ.get(USE_FSDP) == "true"
    fsdp = None if may_shard else os.environ.pop(USE_FSDP, None)
    given = dict(os.environ)  # accelerate sets more
    try:  # without cpu=True, processes without a GPU do not find each other
        accelerator = Accelerator(
            cpu=not has_gpu, mixed_precision="no", dynamo_backend="no", kwargs_handlers=[SHARED_GRADIENTS]
        )
    except ValueError as error:  # WORLD_SIZE without MASTER_ADDR, for instance
        if not re.search("MASTER|RANK|WORLD_SIZE|rendezvous|node", str(error)):
            raise UserError(f"accelerate: {first_line(error)}") from None
        names = dict.fromkeys((*SET_BY_TORCHRUN, *SIZES, *SIZES.values()))
        left = " ".join(f"{name}={given[name]}" for name in names if name in given)
        raise UserError(
            f"the processes do not find each other: {first_line(error)}; the environment has {left or 'no RANK'}: "
            "start with `accelerate launch` or torchrun, or unset these variables"
        ) from None
    finally:
        if fsdp is not None:
            os.environ[USE_FSDP] = fsdp
    if asked and accelerator.distributed_type != DistributedType.FSDP and accelerator.is_main_process:
        use = "needs GPUs" if may_shard else "is for pretraining"
        logger.warning(f"FSDP {use}: here each process holds the whole model")
    return accelerator


def limit_threads() -> None:
    """Let torch compute with no more threads than a container lets run at once; a user's OMP_NUM_THREADS counts.

    A limit such as `docker run --cpus 2` is one of processor time: torch sees all cores of the machine, and the threads
    that have used up the time keep the others waiting.
    """
    from joblib import cpu_count  # a quarter of a second

    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > cpu_count():
        torch.set_num_threads(cpu_count())


def own_device() -> torch.device:
    """Where this process computes by itself: its own GPU of several, or the CPU."""
    rank = int(os.environ.get("LOCAL_RANK", 0))
    return torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")


def refuse_other_trainers() -> None:
    """Raise UserError where the user's accelerate configuration asks for what bertpre does not train with."""
    for name, key in (("DeepSpeed", "ACCELERATE_USE_DEEPSPEED"), ("Megatron-LM", "ACCELERATE_USE_MEGATRON_LM")):
        if os.environ.get(key) == "true":
            raise UserError(
                f"{key}=true: bertpre trains with DDP or FSDP, not with {name}; name another configuration with "
                "`accelerate launch --config_file`, such as recipes/accelerate/fsdp.yaml"
            )


def leave_processes() -> None:
    """Destroy the process group, if there is one, at the end of a command; NCCL warns otherwise."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def compute_alone() -> None:
    """Let torch compute with one thread in this Python thread, which works beside a training.

    Otherwise its first operation may start a second pool of OpenMP threads. With more of them than cores, GNU's library
    lets threads without work sleep at once, those of the training too, and each of its operations wakes them up again
    (docs/experiments.md, 2026-11-30).
    """
    torch.set_num_threads(1)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next training step.

    By default it returns large blocks, such as the vocabulary logits, to the kernel, which clears every page again:
    46,000 pages per step for a vocabulary of 30,522 (docs/results.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The arithmetic type; `auto` is bf16 where the device multiplies it natively, else fp16 (GPU) or fp32 (CPU)."""
    if precision == "auto":
        without_bf16 = "fp16" if device.type == "cuda" else "fp32"
        precision = "bf16" if has_native_bf16(device) else without_bf16
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]


def arithmetic_here(precision: str, optimizer: str, device: torch.device) -> dict[str, Any]:
    """What this machine computes with, by name, where a recipe leaves that to it; all processes have to agree."""
    types = {"the arithmetic type": str(choose_dtype(precision, device))}
    return types | ({"bf16 in the processor, for muon": has_native_bf16(device)} if optimizer == "muon" else {})


def has_native_bf16(device: torch.device) -> bool:
    """Whether bf16 matrix products run in hardware; emulated ones are slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    flags = cpu_flags()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def cpu_flags() -> set[str]:
    """The processor's instruction sets, by their Linux names; empty on other systems."""
    return set((cpu_info("flags") or "").split())


def cpu_name() -> str:
    """The processor's name."""
    return cpu_info("model name") or platform.processor()


def cpu_info(name: str) -> str | None:
    """The first processor's value of a field in /proc/cpuinfo; None on systems without it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)


NO_COMPILER = (
    "torch.compile is off because a compiler (g++; on a GPU gcc and Triton) or Python's headers (python3-dev) are "
    "missing; training will be slower"
)


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile finds Python's headers and a compiler: C++ for a CPU, C and Triton for a GPU."""
    if sys.platform == "linux" and not Path(sysconfig.get_path("include"), "Python.h").exists():
        return False
    if device.type == "cuda":
        has_c = any(shutil.which(name) for name in (os.environ.get("CC", "gcc"), "clang", "cc"))
        return has_c and find_spec("triton") is not None  # its distribution has other names in some builds
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))


def choose_compile(setting: str | bool, device: torch.device) -> bool:
    """Whether to compile; `auto` compiles where there is a compiler and logs a warning where there is none."""
    if setting == "auto" and not can_compile(device):
        logger.warning(NO_COMPILER)
    return can_compile(device) if setting == "auto" else bool(setting)


def is_compiler_fault(error: RuntimeError) -> bool:
    """Whether torch.compile has failed, rather than what it compiles."""
    from torch._dynamo.exc import TorchDynamoException  # slow to import, and imported already where it was raised

    return isinstance(error, TorchDynamoException)


def prepare_compiler() -> None:
    """Set up torch.compile for several trainings in one process, and spare it its trials of AVX2 and AVX512.

    By default it stops compiling after eight programs of one function: pretraining's layers, then fine-tuning's and
    those that read, are more, and the rest would run uncompiled, after a long warning.

    The trials build one program after the other: 7 of 30 seconds of processor time that the quickstart's layers take
    with an empty cache. They look for a compiler older than AVX512, for which torch's C++20 is too new anyway: so the
    processor's own list is taken as it is. The additions of AVX512 and AMX are still tried. A user's
    TORCHINDUCTOR_VEC_ISA_OK counts.

    By default sizes that are equal in the first batch are taken to be equal always: where the longest texts have as
    many tokens as the model's width, all layers would be compiled once more for shorter ones.

    It compiles in as many processes as the machine has cores, up to 32, with hundreds of MB each: in a container that
    is too many. A user's TORCHINDUCTOR_COMPILE_THREADS counts.
    """
    from joblib import cpu_count
    from torch._dynamo import config as dynamo  # slow to import, and not needed where nothing is compiled
    from torch._inductor import config as inductor
    from torch.fx.experimental import _config as shapes

    dynamo.recompile_limit = max(dynamo.recompile_limit, 64)
    shapes.use_duck_shape = False
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        inductor.compile_threads = min(inductor.compile_threads, cpu_count())
    if sys.platform == "linux" and platform.machine() == "x86_64" and inductor.cpp.vec_isa_ok is None:
        inductor.cpp.vec_isa_ok = True


# From how many FLOPs on compiling pays: on 2 cores that multiply bf16 (measured, benchmarks/finetune_step.py), on one
# large GPU (a guess).
WORTH_COMPILING = {"cpu": 1.5e13, "cuda": 3e16}


def choose_deterministic(setting: str | bool, device: torch.device) -> bool:
    """Whether to add gradients in a fixed order; `auto` does so on a CPU, where no cost was measurable.

    The cost of a GPU's deterministic kernels has not been measured yet.
    """
    return device.type == "cpu" if setting == "auto" else bool(setting)


def set_deterministic(enabled: bool) -> None:
    """Let torch add gradients in a fixed order, or (False) in whatever order the threads arrive.

    Compiled for a CPU, several threads add the gradients of embeddings with atomic operations: without a fixed order,
    the losses of two runs of one recipe differ in the sixth digit after fifty steps.
    """
    torch.use_deterministic_algorithms(enabled)
    torch.utils.deterministic.fill_uninitialized_memory = False  # only a debugging aid, and slow


def is_worth_compiling(flops: float, device: torch.device) -> bool:
    """Whether a model computes so much that compiling its layers saves more time than it takes.

    On a CPU a pass takes 0.4 of the time then with dropout in the layers, 0.8 without. `flops` is of the whole work, 2 (reading) or 6 (training) for each
    weight and token. The limit is fixed per kind of device, so every process and every run agree.
    """
    return flops > WORTH_COMPILING.get(device.type, 0.0)


# FLOP/s of dense matrix products in bf16 (fp16 on GPUs without bf16), from NVIDIA's data sheets. The first key that is
# part of the device's name counts.
GPU_PEAKS = {
    "B200": 2250e12, "GH200": 989e12, "H200 NVL": 835e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12,
    "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12, "A40": 150e12, "A30": 165e12, "A10G": 70e12,
    "A10": 125e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "V100": 125e12, "T4": 65e12, "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}  # fmt: skip


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """The device's peak FLOP/s: measured on a CPU, from a table on a GPU, None for GPUs that it lacks and for fp32."""
    if device.type == "cpu":
        return measured_flops(device, dtype)
    if device.type != "cuda" or dtype == torch.float32:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in GPU_PEAKS.items() if re.search(rf"\b{part}\b", name)), None)


def measured_flops(device: torch.device, dtype: torch.dtype) -> float:
    """The best rate of a square matrix product, in FLOP/s, which a training step is compared with.

    On a GPU it is that of some products in a row, after others: one that was idle has a low clock.
    """
    on_gpu = device.type == "cuda"
    size, products, rounds = (8192, 5 if dtype == torch.float32 else 40, 5) if on_gpu else (1024, 1, 7)
    a = torch.randn(size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(products):
            a @ a
        if on_gpu:
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
        if best > 1:  # seconds: a CPU that emulates bf16 took 16 for seven
            break
    return 2 * size**3 * products / best


def manifest(device: torch.device, dtype: torch.dtype, num_processes: int) -> dict[str, Any]:
    """The date, versions, commit, command and hardware of this run, for `manifest.json`."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "commit": commit(),
        "command": command(),
        "hardware": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
            "cpu_count": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processes": num_processes,
            "precision": str(dtype).removeprefix("torch."),
        },
    }


def command() -> str:
    """The command of bertpre that runs; of another program its name alone, since its arguments may be secrets."""
    program, package = Path(sys.argv[0]).resolve(), Path(__file__).resolve().parent
    entries = [package.parent / "pretrain.py", package.parent / "finetune.py"]
    is_ours = program.name == "bertpre" or program.parent == package or program in entries
    return " ".join(sys.argv if is_ours else sys.argv[:1])


def version(package: str) -> str | None:
    """An installed package's version; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of bertpre's checkout, with `+` if files have changed since.

    Of an installed package the environment variable GIT_COMMIT, which the container sets; None without it.
    """
    folder = Path(__file__).parent.parent
    if not (folder / ".git").exists():
        return os.environ.get("GIT_COMMIT") or None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
