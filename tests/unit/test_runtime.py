"""How a process computes: precision, determinism, threads, and the settings of other libraries."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from torch import nn
from transformers.utils import logging

from bertpre import hardware, runtime
from bertpre.compiler import give_up_compiling
from bertpre.errors import UserError
from bertpre.runtime import (
    callers_settings_kept,
    choose_deterministic,
    choose_dtype,
    compute_alone,
    set_deterministic,
    start_accelerator,
)
from tests.forked import run_forked

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CONTAINERS_CORES = "LOKY_MAX_CPU_COUNT"  # joblib's variable, which counts like a container's limit


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
    monkeypatch.setattr(hardware, "cpu_flags", lambda: flags)
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


def test_python_threads_of_later_have_the_callers_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with callers_settings_kept(), ThreadPoolExecutor(1, initializer=compute_alone) as beside:
            assert beside.submit(torch.get_num_threads).result() == 1
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


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
