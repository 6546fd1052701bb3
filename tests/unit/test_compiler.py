"""torch.compile: where it works, when it pays, and how it is set up."""

import platform
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from bertpre.compiler import can_compile, is_worth_compiling, prepare_compiler

CONTAINERS_CORES = "LOKY_MAX_CPU_COUNT"  # joblib's variable, which counts like a container's limit


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


@pytest.mark.parametrize("of_user", [None, False])
def test_the_processors_instruction_sets_are_trusted_unless_the_user_says_otherwise(of_user: bool | None) -> None:
    from torch._inductor import config

    on_linux = sys.platform == "linux" and platform.machine() == "x86_64"
    with config.patch({"cpp.vec_isa_ok": of_user}):
        prepare_compiler()
        assert config.cpp.vec_isa_ok is (True if of_user is None and on_linux else of_user)


def test_a_length_that_equals_the_width_has_no_program_of_its_own() -> None:
    counter = CompileCounter()
    prepare_compiler()
    torch._dynamo.reset()
    layer = torch.compile(torch.nn.Linear(8, 8), dynamic=True, backend=counter)
    for length in (8, 6, 4):
        assert layer(torch.zeros(3, length, 8)).shape == (3, length, 8)
    assert counter.frame_count == 1


@pytest.mark.parametrize(("of_user", "expected"), [(8, 64), (500, 500)])
def test_the_programs_of_several_trainings_fit_in_one_process(of_user: int, expected: int) -> None:
    from torch._dynamo import config

    with config.patch(recompile_limit=of_user):
        prepare_compiler()
        assert config.recompile_limit == expected


@pytest.mark.parametrize(("of_user", "expected"), [(None, 1), ("8", 8)])
def test_a_container_limits_the_processes_that_compile(
    of_user: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    monkeypatch.setenv(CONTAINERS_CORES, "1")
    if of_user is not None:
        monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", of_user)
    with config.patch(compile_threads=8):
        prepare_compiler()
        assert config.compile_threads == expected
