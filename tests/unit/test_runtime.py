"""What the machine decides: whether there is a compiler, and when a fine-tuning is long enough to be compiled."""

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from bertpre.runtime import can_compile, is_worth_compiling


@pytest.mark.parametrize(
    ("device", "parameters", "tokens", "expected"),
    [
        ("cpu", 1.0e6, 1.3e6, False),  # the quickstart: 119 s compiled, 45 s not
        ("cpu", 7.6e6, 20e6, True),  # IMDB: 33 minutes compiled
        ("cuda", 33e6, 20e6, False),
        ("cuda", 110e6, 400e6, True),
    ],
)
def test_only_long_trainings_are_compiled(device: str, parameters: float, tokens: float, expected: bool) -> None:
    assert is_worth_compiling(6 * parameters * tokens, torch.device(device)) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the headers come with Python")
def test_without_pythons_headers_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert not can_compile(torch.device("cpu"))
    (tmp_path / "Python.h").touch()
    assert can_compile(torch.device("cpu"))
