"""What depends on the machine: precision, determinism, its peak rate, a compiler, and when compiling pays."""

import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from torch import nn
from torch._dynamo.testing import CompileCounter
from transformers.utils import logging

from bertpre import runtime
from bertpre.errors import UserError
from bertpre.runtime import (
    callers_settings_kept,
    can_compile,
    choose_deterministic,
    choose_dtype,
    give_up_compiling,
    is_worth_compiling,
    measured_flops,
    peak_flops,
    prepare_compiler,
    set_deterministic,
    start_accelerator,
)
from tests.forked import run_forked

PACKAGE = Path(runtime.__file__).parent
CPU, GPU = torch.device("cpu"), torch.device("cuda")
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


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16)])
def test_a_gpu_computes_in_bf16_from_ampere_on(
    capability: tuple[int, int], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_dtype("auto", GPU) == expected
    assert choose_dtype("fp32", GPU) == torch.float32


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx2"}, torch.float32),
        ({"avx2", "avx512f"}, torch.float32),
        ({"avx512_bf16"}, torch.bfloat16),
        ({"amx_bf16"}, torch.bfloat16),
    ],
)
def test_a_cpu_computes_in_bf16_where_it_multiplies_it(
    flags: set[str], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "cpu_flags", lambda: flags)
    assert choose_dtype("auto", CPU) == expected


def test_sums_are_deterministic_on_cpus_unless_the_recipe_says_otherwise() -> None:
    assert choose_deterministic("auto", CPU)
    assert not choose_deterministic("auto", GPU)
    assert choose_deterministic(True, GPU)
    assert not choose_deterministic(False, CPU)
    try:
        for enabled in (True, False):
            set_deterministic(enabled)
            assert torch.are_deterministic_algorithms_enabled() == enabled
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_users_own_accelerate_configuration_changes_no_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")  # as `accelerate launch` passes it on
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
    AcceleratorState._reset_state()
    Accelerator(cpu=True)  # another library's
    model = start_accelerator().prepare_model(nn.Linear(2, 2))
    assert type(model) is nn.Linear
    seen: list[torch.dtype] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    model(torch.ones(1, 2))
    assert seen == [torch.float32]


def test_other_trainers_of_accelerate_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UserError, match="bertpre trains with DDP or FSDP, not with DeepSpeed"):
        start_accelerator()


@pytest.mark.skipif(torch.cuda.is_available(), reason="FSDP would start")
def test_fsdp_without_a_gpu_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    start_accelerator(may_shard=True)
    assert "FSDP needs GPUs: here each process holds the whole model" in caplog.messages


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
    monkeypatch.setattr(runtime.time, "perf_counter", lambda: next(ticks))
    assert measured_flops(CPU, torch.float32) == 2 * 1024**3 / (2 / 16)


def test_a_processor_that_emulates_a_type_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter((10.0, 12.0))
    monkeypatch.setattr(runtime.time, "perf_counter", lambda: next(ticks))
    assert measured_flops(CPU, torch.bfloat16) == 2 * 1024**3 / 2


def test_the_commit_is_marked_where_files_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "__file__", str(tmp_path / "bertpre" / "runtime.py"))
    monkeypatch.delenv("GIT_COMMIT", raising=False)
    assert runtime.commit() is None
    monkeypatch.setenv("GIT_COMMIT", "abc1234")  # as in a container
    assert runtime.commit() == "abc1234"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "file").write_text("one")
    for arguments in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    clean = runtime.commit()
    assert clean and not clean.endswith("+")
    (tmp_path / "file").write_text("two")
    assert runtime.commit() == f"{clean}+"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/usr/bin/bertpre", "run", "quickstart"], "/usr/bin/bertpre run quickstart"),
        ([f"{PACKAGE}/__main__.py", "run"], f"{PACKAGE}/__main__.py run"),
        ([f"{PACKAGE}/data/../pretrain.py", "own.yaml"], f"{PACKAGE}/data/../pretrain.py own.yaml"),
        (["train.py", "--password", "hunter2"], "train.py"),
    ],
)
def test_the_arguments_of_other_programs_are_not_stored(
    arguments: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert runtime.command() == expected


def test_the_manifest_says_what_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    hardware = runtime.manifest(CPU, torch.bfloat16, 3)["hardware"]
    assert (hardware["threads"], hardware["processes"], hardware["precision"]) == (77, 3, "bfloat16")


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


LIMITED = """
import os, torch
from bertpre.runtime import callers_settings_kept, start_accelerator

if {of_user} is None:
    del os.environ["OMP_NUM_THREADS"]
torch.set_num_threads(2)
with callers_settings_kept():
    start_accelerator()
    print(torch.get_num_threads())
print(torch.get_num_threads())
"""


@pytest.mark.parametrize(("of_user", "expected"), [(None, ["1", "2"]), ("2", ["2", "2"])])
def test_a_container_limits_the_threads(of_user: str | None, expected: list[str]) -> None:
    done = run_forked(LIMITED.format(of_user=of_user), **{CONTAINERS_CORES: "1"})
    assert done.stdout.split() == expected, done.stderr


def is_compiled() -> bool:
    """Whether torch.compile compiles."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    return bool(graphs)


def test_the_settings_of_the_process_are_put_back() -> None:
    with callers_settings_kept():  # for the tests that follow
        torch.use_deterministic_algorithms(False)
        logging.set_verbosity_warning()
        logging.enable_progress_bar()
        drawn = torch.get_rng_state()
        with pytest.raises(KeyError), callers_settings_kept():
            start_accelerator()
            set_deterministic(True)
            torch.manual_seed(1)
            give_up_compiling()
            raise KeyError
        after = torch.are_deterministic_algorithms_enabled(), logging.get_verbosity(), logging.is_progress_bar_enabled()
        assert after == (False, logging.WARNING, True)
        assert torch.equal(torch.get_rng_state(), drawn)
        assert is_compiled()


def test_a_trainer_on_apples_gpu_leaves_no_device() -> None:
    with callers_settings_kept():
        PartialState()
        PartialState._shared_state["device"] = torch.device("mps")
        with callers_settings_kept():
            assert start_accelerator().device.type == "cpu"
        assert PartialState().device.type == "mps"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("ParallelismConfig is only compatible with FSDP2", "^accelerate: ParallelismConfig is only compatible"),
        ("MASTER_ADDR expected, but not set", "MASTER_ADDR .* the environment has PMI_RANK=1 PMI_SIZE=2: start"),
    ],
)
def test_what_accelerate_refuses_is_said_with_the_variables_that_were_given(
    said: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        monkeypatch.setenv("RANK", "1")  # as accelerate does
        raise ValueError(said)

    monkeypatch.setattr(runtime, "Accelerator", fail)
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(UserError, match=message):
        runtime.start_accelerator()
