"""A step whose gradient is not finite changes nothing, on a GPU without waiting for it; several in a row go back."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from bertpre.errors import UserError
from bertpre.training.checkpoint import SKIPPED, read_skipped, write_skipped
from bertpre.training.gradient_guard import MAX_IN_A_ROW, MAX_LEFT_OUT, RECENT, GradientGuard, NonFiniteGradient
from bertpre.training.precision import LossScale
from bertpre.training.rehearsal import rehearse
from bertpre.training.remedies import Remedies
from bertpre.training.step import Arithmetic
from bertpre.training.trainer import Trainer
from tests.helpers import read_metrics
from tests.toys import WIDTH, ToyModel, toy_trainer

OPTIMIZERS, DTYPES = ("adamw", "lamb", "muon"), (torch.float32, torch.bfloat16)
FILES = ("model.safetensors", "optimizer.safetensors")
NAN, INFINITY = float("nan"), float("inf")


class DeepModel(ToyModel):
    """The toy model with two hidden matrices, which Muon takes."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Sequential(self.dropout, *(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)))


def deep_trainer(
    folder: Path, *, bad: Iterable[int] = (), value: float = NAN, on_gpu: bool = False, **others: Any
) -> Trainer:
    """A trainer whose gradient is not finite in some steps, and which may treat the device as a GPU."""
    trainer = toy_trainer(folder, others.pop("max_steps", 7), model=DeepModel(), warmup=0.0, **others)
    step, bad = trainer.training_step, set(bad)
    step.guard.checks_each_step = not on_gpu
    weight = step.working.model.classifier.weight
    weight.register_hook(lambda gradient: gradient * (value if trainer.progress.step in bad else 1.0))
    return trainer


def saved(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """Weights and optimizer states of a checkpoint."""
    return {
        name: each for file in FILES for name, each in load_file(folder / f"checkpoints/step-{step:08d}" / file).items()
    }


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype
        assert value.numpy().tobytes() == other[name].numpy().tobytes(), name


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("value", [NAN, INFINITY])
def test_a_skipped_step_leaves_weights_moments_and_counts_as_they_were(
    optimizer: str, dtype: torch.dtype, on_gpu: bool, value: float, tmp_path: Path
) -> None:
    bad = (0, 3, 6)  # before there is a state, in between, and last
    settings: dict[str, Any] = {"optimizer": optimizer, "arithmetic": Arithmetic(dtype), "every": 0}
    trainer = deep_trainer(tmp_path / "bad", bad=bad, value=value, on_gpu=on_gpu, log_every=3, **settings)
    trainer.train()
    (tmp_path / "without" / "checkpoints").mkdir(parents=True)
    write_skipped(tmp_path / "without" / "checkpoints", {step: [] for step in bad})
    without = deep_trainer(tmp_path / "without", **settings)
    without.train()
    assert_same_bits(saved(tmp_path / "bad", 7), saved(tmp_path / "without", 7))
    copies = (each.training_step.working.model.parameters() for each in (trainer, without))
    assert all(torch.equal(one, other) for one, other in zip(*copies, strict=True))
    assert read_skipped(tmp_path / "bad" / "checkpoints") == {}
    counts = {float(each) for name, each in saved(tmp_path / "bad", 7).items() if name.endswith(".step")}
    assert counts == {4.0}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_finite_step_is_the_same_where_the_device_decides(optimizer: str, tmp_path: Path) -> None:
    for name in ("cpu", "gpu"):
        deep_trainer(tmp_path / name, on_gpu=name == "gpu", optimizer=optimizer).train()
    assert_same_bits(saved(tmp_path / "gpu", 7), saved(tmp_path / "cpu", 7))


class NoSynchronisation(TorchDispatchMode):
    """Fails where the CPU would wait for a value from the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select"), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_waits_for_no_value_from_the_device(optimizer: str, dtype: torch.dtype, tmp_path: Path) -> None:
    trainer = deep_trainer(tmp_path, bad=[1], on_gpu=True, optimizer=optimizer, arithmetic=Arithmetic(dtype))
    batch = trainer.batches.source(trainer.progress.position, 0.0)
    counts = trainer.training_step.objective.counts(batch.micro_batches[0])
    for trainer.progress.step in range(3):
        with NoSynchronisation():
            trainer.optimize(batch, counts, 1.0)
    assert list(trainer.training_step.guard.check()) == [1]
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoSynchronisation():  # the test would see one
        float(torch.ones(()))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    names = ("step", "loss", "grad_norm", "skipped_steps", "tokens")
    return [{name: row[name] for name in names if name in row} for row in read_metrics(folder, split="train")]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_log_line_counts_the_skipped_steps_and_leaves_out_what_they_measured(
    on_gpu: bool, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    class NanLoss(Exception):
        pass

    settings: dict[str, Any] = {"max_steps": 9, "log_every": 3, "every": 4}
    trainer = deep_trainer(tmp_path / "one", bad=[2, 4, 5], on_gpu=on_gpu, **settings)
    record, measured = trainer.log.record, []

    def spoil(values: dict[str, torch.Tensor]) -> None:
        measured.append(float(values["loss"]))
        record({"loss": values["loss"] * (NAN if trainer.progress.step in (2, 4, 5) else 1.0)})

    trainer.log.record = spoil
    trainer.train()
    rows = rows_of(tmp_path / "one")
    assert [(row["step"], row.get("skipped_steps")) for row in rows] == [(3, 1), (6, 2), (9, None)]
    expected = [sum(measured[:2]) / 2, measured[3], sum(measured[6:]) / 3]
    assert [row["loss"] for row in rows] == pytest.approx(expected, rel=1e-5)
    assert all(0 < row["grad_norm"] < 10 for row in rows)
    out = capsys.readouterr().out
    assert "the gradient of step 2 is not finite (its text: document 2): skipped" in out
    assert "step 3 (33%): loss" in out and "skipped steps 1, " in out

    def kill(trainer: Trainer) -> None:
        if trainer.progress.step == 5:  # after the checkpoint, within a line
            raise NanLoss

    cut = tmp_path / "cut"
    with pytest.raises(NanLoss):
        deep_trainer(cut, bad=[2, 3, 5], on_gpu=on_gpu, after_step=kill, **settings).train()
    deep_trainer(cut, bad=[2, 3, 5], on_gpu=on_gpu, **settings).train()
    deep_trainer(tmp_path / "whole", bad=[2, 3, 5], on_gpu=on_gpu, **settings).train()
    assert rows_of(cut) == rows_of(tmp_path / "whole")


def test_lines_without_a_good_step_are_left_to_the_next_one(tmp_path: Path) -> None:
    deep_trainer(tmp_path, bad=[2, 3], max_steps=6).train()
    assert [(row["step"], row.get("skipped_steps")) for row in rows_of(tmp_path)] == [
        (1, None),
        (2, None),
        (5, 2),
        (6, None),
    ]


ROW = range(3, 3 + MAX_IN_A_ROW)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_too_many_in_a_row_go_back_and_are_left_out(
    on_gpu: bool, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    trainer = deep_trainer(tmp_path, bad=ROW, on_gpu=on_gpu, max_steps=12, every=2, log_every=6)
    trainer.train()
    assert read_skipped(tmp_path / "checkpoints") == {step: [f"document {step}"] for step in ROW}
    out = capsys.readouterr().out
    assert "the gradients of steps 3, 4, 5, 6, 7 are not finite (their texts: document 3, document 4" in out
    assert "back to step 6; these steps will be left out" in out
    assert trainer.progress.step == 12
    assert trainer.log.grad_norm > 0


def test_steps_left_out_long_ago_do_not_count(tmp_path: Path) -> None:
    guard = GradientGuard(1.0, LossScale(enabled=False))
    few = {step: [] for step in range(100, 100 + MAX_LEFT_OUT)}
    assert guard.leave_out(few) and not guard.leave_out({RECENT: []})
    assert guard.leave_out({RECENT + 100 + MAX_LEFT_OUT: []}) and len(guard.left_out) == MAX_LEFT_OUT + 1


def test_fewer_in_a_row_do_not_go_back(tmp_path: Path) -> None:
    bad = [step for step in range(2, 13) if step != 2 + MAX_IN_A_ROW - 1]
    deep_trainer(tmp_path, bad=bad[: 2 * MAX_IN_A_ROW - 2], max_steps=14, every=3).train()
    assert read_skipped(tmp_path / "checkpoints") == {}
    (tmp_path / "checkpoints" / SKIPPED).write_text("{")
    with pytest.raises(UserError, match="is damaged; remove it"):
        read_skipped(tmp_path / "checkpoints")


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resume_within_a_row_is_bit_identical(optimizer: str, on_gpu: bool, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(trainer: Trainer) -> None:
        if trainer.progress.step == 6:  # one after the checkpoint
            raise Killed

    settings: dict[str, Any] = {"bad": ROW, "on_gpu": on_gpu, "optimizer": optimizer, "max_steps": 12, "log_every": 4}
    deep_trainer(tmp_path / "whole", **settings).train()
    with pytest.raises(Killed):
        deep_trainer(tmp_path / "cut", after_step=kill, **settings).train()
    state = json.loads((tmp_path / "cut" / "checkpoints" / "step-00000005" / "state.json").read_text())
    assert state["skipped_in_a_row"] == {"3": ["document 3"], "4": ["document 4"]}
    deep_trainer(tmp_path / "cut", **settings).train()
    assert_same_bits(saved(tmp_path / "cut", 12), saved(tmp_path / "whole", 12))
    assert rows_of(tmp_path / "cut") == rows_of(tmp_path / "whole")
    skipped = [read_skipped(tmp_path / name / "checkpoints") for name in ("cut", "whole")]
    assert skipped[0] == skipped[1] == {step: [f"document {step}"] for step in ROW}


def test_training_that_stays_non_finite_ends_with_one_message(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^the gradients of steps 8, .* are not finite \(their texts: .*checkpoint is intact$"
    ):
        deep_trainer(tmp_path, bad=range(3, 40), max_steps=40).train()
    trainer = deep_trainer(tmp_path / "unsaved", bad=range(3, 40), max_steps=40)
    trainer.saver.place = None
    with pytest.raises(UserError, match="the gradients of steps 3, 4, 5, 6, 7 are not finite"):
        trainer.train()


def test_going_back_to_the_beginning_at_the_end_of_a_budget_is_no_short_budget(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"bad": range(MAX_IN_A_ROW), "every": 1000, "remedies": Remedies(not_finite="do this")}
    trainer = deep_trainer(tmp_path, max_steps=40, **settings)
    trainer.share_done = lambda ahead=0, tokens=0: float(bool(trainer.training_step.guard.left_out))  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"no time is left to train again: run the same command, .*, or do this$"):
        trainer.train()
    assert read_skipped(tmp_path / "checkpoints")


def test_weights_that_are_not_finite_go_back_at_the_first_skipped_step(tmp_path: Path) -> None:
    spoiled: list[int] = []

    def spoil(trainer: Trainer) -> None:
        if trainer.progress.step == 6 and not spoiled:
            spoiled.append(6)
            trainer.training_step.model.classifier.bias.data[3] = NAN

    deep_trainer(tmp_path / "run", max_steps=9, after_step=spoil, on_gpu=True, log_every=9).train()
    assert read_skipped(tmp_path / "run" / "checkpoints") == {6: ["document 6"]}
    assert all(value.isfinite().all() for value in saved(tmp_path / "run", 9).values())


def test_a_rehearsal_reports_the_first_gradient_that_is_not_finite(tmp_path: Path) -> None:
    trainer = deep_trainer(tmp_path, bad=[1], on_gpu=True)
    with pytest.raises(NonFiniteGradient, match=r"^the gradient of step 1 is not finite \(its text: document 1\)$"):
        rehearse(trainer, 3, 0)


def test_fp16_begins_with_its_own_scale_after_another_type(tmp_path: Path) -> None:
    own = deep_trainer(tmp_path).training_step.guard
    assert own.state()["loss_scale"] is None
    guard = GradientGuard(1.0, LossScale(enabled=True))
    guard.restore(own.state())
    assert guard.loss_scale.value == LossScale.START
    guard.restore(own.state() | {"loss_scale": [512.0, 7]})
    assert (guard.loss_scale.value, guard.loss_scale.good_steps) == (512.0, 7)
