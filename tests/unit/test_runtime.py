"""What the machine decides: when a fine-tuning is long enough to be compiled."""

import pytest
import torch

from bertpre import runtime


@pytest.mark.parametrize(("peak", "flops", "expected"), [(3e9, 250e9, True), (3e9, 230e9, False), (None, 1.0, True)])
def test_only_long_trainings_are_compiled(
    peak: float | None, flops: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "peak_flops", lambda device, dtype: peak)
    assert runtime.is_worth_compiling(flops, torch.device("cpu"), torch.float32) == expected
