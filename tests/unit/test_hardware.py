"""The peak rates of processors and GPUs."""

import pytest
import torch

from bertpre import hardware
from bertpre.hardware import measured_flops, peak_flops

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("NVIDIA H100 PCIe", torch.bfloat16, 756e12),
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989e12),
        ("NVIDIA L40S", torch.bfloat16, 362e12),
        ("NVIDIA L4", torch.bfloat16, 121e12),
        ("Tesla T4", torch.float16, 65e12),
        ("NVIDIA RTX A4000", torch.bfloat16, None),
        ("NVIDIA T400", torch.float16, None),
        ("NVIDIA H100 PCIe", torch.float32, None),
        ("an unknown GPU", torch.bfloat16, None),
    ],
)
def test_the_peak_rate_of_a_gpu_is_from_its_data_sheet(
    name: str, dtype: torch.dtype, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(GPU, dtype) == expected


def test_the_measured_rate_is_that_of_the_fastest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(tick for seconds in (4, 2, 5, 6, 7, 8, 9) for tick in (10, 10 + seconds / 16))  # seven products
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(ticks))
    assert measured_flops(CPU, torch.float32) == 2 * 1024**3 / (2 / 16)


def test_a_processor_that_emulates_a_type_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter((10.0, 12.0))
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(ticks))
    assert measured_flops(CPU, torch.bfloat16) == 2 * 1024**3 / 2
