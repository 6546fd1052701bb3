"""The processor and the GPU: names, whether they multiply bf16, and how fast."""

import platform
import re
import time
from pathlib import Path

import torch

# FLOP/s of dense matrix products in bf16 (fp16 on GPUs without bf16), from NVIDIA's data sheets. The first key that is
# part of the device's name counts.
GPU_PEAKS = {
    "B200": 2250e12, "GH200": 989e12, "H200 NVL": 835e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12,
    "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12, "A40": 150e12, "A30": 165e12, "A10G": 70e12,
    "A10": 125e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "V100": 125e12, "T4": 65e12, "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}  # fmt: skip


def cpu_name() -> str:
    """The processor's name."""
    return cpu_info("model name") or platform.processor()


def cpu_flags() -> set[str]:
    """The processor's instruction sets, by their Linux names; empty on other systems."""
    return set((cpu_info("flags") or "").split())


def cpu_info(name: str) -> str | None:
    """The first processor's value of a field in /proc/cpuinfo; None on systems without it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)


def has_native_bf16(device: torch.device) -> bool:
    """Whether bf16 matrix products run in hardware; emulated ones are slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    flags = cpu_flags()
    return "avx512_bf16" in flags or "amx_bf16" in flags


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
