"""The training loop: the rate it logs, batches cut into micro-batches, dropout, and gradients that are not finite."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bertpre.commands.finetune import finetune
from bertpre.commands.pretrain import pretrain
from bertpre.data.sampler import micro_batch_size
from bertpre.errors import UserError
from bertpre.model import BertPreForPreTraining
from bertpre.recipe import Recipe, load_recipe
from bertpre.run_directory import read_results
from bertpre.training.checkpoint import read_skipped, write_skipped
from bertpre.training.metrics import PretrainingObjective
from bertpre.training.precision import LossScale
from bertpre.training.schedule import lr_at
from bertpre.training.trainer import Trainer, evaluate_batches
from tests.helpers import copy_run, read_metrics, tree_hash


def recipe_of(run: Path, output_dir: Path, *overrides: str) -> Recipe:
    return load_recipe(str(run / "recipe.yaml"), [f"output_dir={output_dir}", *overrides])


@pytest.mark.parametrize("fixture", ["tiny_run", "tiny_modern_run"])
def test_the_logged_rate_is_that_of_the_schedule_at_every_step(fixture: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(fixture)
    recipe = load_recipe(str(run / "recipe.yaml"))
    training, tuning = recipe.training, recipe.finetune
    for row in (rows := read_metrics(run, "pretrain", "train")):
        factor = lr_at((row["step"] - 1) / training.max_steps, training.schedule, training.warmup, training.decay)
        assert row["learning_rate"] == pytest.approx(factor * training.learning_rate, rel=1e-5), row["step"]
    assert [row["step"] for row in rows] == list(range(1, training.max_steps + 1))
    rows = read_metrics(run, "finetune", "train")
    for row in rows:
        factor = lr_at((row["step"] - 1) / len(rows), "linear", tuning.warmup)
        assert row["learning_rate"] == pytest.approx(factor * tuning.learning_rate, rel=1e-5), row["step"]
    assert len(rows) == tuning.epochs * 4  # 64 texts in batches of 16


def test_loss_and_gradient_do_not_depend_on_the_micro_batch(tiny_modern_run: Path, tmp_path: Path) -> None:
    logged = []
    for size in (8, 4, 2):
        target = copy_run(tiny_modern_run, tmp_path / str(size), "prepare")
        overrides = [f"training.phases.{phase}.micro_batch_size={size}" for phase in (0, 1)]
        # Muon's Newton-Schulz steps are in bf16: there a last digit becomes a third one.
        pretrain(recipe_of(tiny_modern_run, target, "training.optimizer=adamw", *overrides))
        logged.append(read_metrics(target, "pretrain", "train"))
    for rows in logged[1:]:
        for row, expected in zip(rows, logged[0], strict=True):
            for name in ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "tokens"):
                assert row[name] == pytest.approx(expected[name], abs=2e-5), (row["step"], name)
            assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4), row["step"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_dropout_is_on_in_fine_tuning_and_off_in_its_evaluations(
    precision: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    seen = []
    original = Trainer.train_step

    def watched(self: Trainer, wrapped: torch.nn.Module, *arguments: Any) -> None:  # noqa: ANN401
        seen.append({module.training for module in wrapped.modules()})
        original(self, wrapped, *arguments)

    monkeypatch.setattr(Trainer, "train_step", watched)
    finetune(
        recipe_of(
            tiny_run, target, f"finetune.init={tiny_run}/model", f"training.precision={precision}", "finetune.epochs=1"
        )
    )
    assert seen
    assert seen == [{True}] * len(seen)


def poison(monkeypatch: pytest.MonkeyPatch, bad_steps: Iterable[int], in_weights: bool = False) -> list[int]:
    """Make the gradient of some steps NaN, by a hook or a NaN in the weights; returns the steps as they are tried."""
    original, tried = Trainer.train_step, []

    def poisoned(self: Trainer, *arguments: Any) -> None:  # noqa: ANN401
        tried.append(self.step)
        weight, is_bad = self.model.get_input_embeddings().weight, self.step in bad_steps
        if is_bad and in_weights and self.step not in self.skipped:
            weight.data[3, 3] = float("nan")
        handle = weight.register_hook(lambda gradient: gradient * float("nan") if is_bad else gradient)
        try:
            original(self, *arguments)
        finally:
            handle.remove()

    monkeypatch.setattr(Trainer, "train_step", poisoned)
    return tried


@pytest.mark.parametrize("in_weights", [False, True])
def test_after_a_gradient_that_is_not_finite_the_run_goes_back_and_leaves_the_batch_out(
    in_weights: bool, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    tried = poison(monkeypatch, [7], in_weights)
    pretrain(recipe_of(tiny_run, target))
    assert tried == [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 9]  # step 5 is the last checkpoint's
    said = capsys.readouterr().out
    assert "step 7 is not finite (its text: part-00000.train document" in said
    assert "back to step 5, and step 7 will be left out" in said
    skipped = read_skipped(target / "checkpoints")
    assert list(skipped) == [7]
    assert all("document" in name for name in skipped[7])
    assert [row["step"] for row in read_metrics(target, "pretrain", "train")] == [1, 2, 3, 4, 5, 6, 7, 9, 10]
    for _, value in load_file(target / "model" / "model.safetensors").items():
        assert value.isfinite().all()
    # Up to there nothing was different.
    rows, expected = (read_metrics(run, "pretrain", "train") for run in (target, tiny_run))
    assert [row["mlm_loss"] for row in rows[:7]] == [row["mlm_loss"] for row in expected[:7]]


def test_a_run_killed_after_it_went_back_remembers_what_to_leave_out(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (copy_run(tiny_run, tmp_path / name, "prepare") for name in ("one", "two"))
    with monkeypatch.context() as patch:
        poison(patch, [7])
        pretrain(recipe_of(tiny_run, one))
    (two / "checkpoints").mkdir()
    write_skipped(two / "checkpoints", read_skipped(one / "checkpoints"))
    pretrain(recipe_of(tiny_run, two))
    assert tree_hash(two / "model") == tree_hash(one / "model")


def test_too_many_bad_steps_end_the_run_with_one_message(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    poison(monkeypatch, range(1, 10))
    with pytest.raises(UserError, match=r"step 6 is not finite.*training.learning_rate"):
        pretrain(recipe_of(tiny_run, target))
    assert (target / "checkpoints" / "step-00000000" / "state.json").exists()
    assert set(read_results(target)) == {"prepare"}


def test_looking_at_gradients_now_and_then_ends_the_same(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (copy_run(tiny_run, tmp_path / name, "prepare") for name in ("one", "two"))
    poison(monkeypatch, [7])
    pretrain(recipe_of(tiny_run, one, "training.log_every=4"))
    original = Trainer.make_ready

    def as_on_a_gpu(self: Trainer) -> torch.nn.Module:
        wrapped = original(self)
        self.look_every = self.log_every
        return wrapped

    monkeypatch.setattr(Trainer, "make_ready", as_on_a_gpu)
    pretrain(recipe_of(tiny_run, two, "training.log_every=4"))
    assert tree_hash(two / "model") == tree_hash(one / "model")
    assert list(read_skipped(two / "checkpoints")) == [7]


class TwoProcesses:
    """An accelerator whose other process measured 1 to 5 on 3 masked tokens and 2 pairs."""

    device = torch.device("cpu")

    def reduce(self, mine: torch.Tensor) -> torch.Tensor:
        return mine + torch.tensor([1.0, 2.0, 3.0, 4.0, 1.0, 3.0, 2.0])


def test_a_process_without_a_validation_batch_still_takes_part() -> None:
    figures = evaluate_batches(TwoProcesses(), torch.nn.Identity(), PretrainingObjective(), [], torch.float32)
    assert figures["mlm_loss"] == pytest.approx(2 / 3)
    assert figures["mlm_accuracy"] == pytest.approx(3 / 3)
    assert figures["nsp_loss"] == pytest.approx(4 / 2)
    assert figures["nsp_accuracy"] == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("batch", "micro", "processes", "size"), [(8, None, 1, 8), (8, None, 2, 4), (8, 2, 2, 2), (8, 8, 1, 8)]
)
def test_the_micro_batch_is_given_or_as_large_as_the_global_one_allows(
    batch: int, micro: int | None, processes: int, size: int
) -> None:
    assert micro_batch_size(batch, micro, processes, "training.global_batch_size") == size


@pytest.mark.parametrize(("batch", "micro", "processes"), [(8, 3, 1), (8, None, 3), (2, None, 4), (8, 8, 2)])
def test_a_batch_that_cannot_be_cut_evenly_is_refused(batch: int, micro: int | None, processes: int) -> None:
    with pytest.raises(UserError, match="global_batch_size is .* must be a multiple of micro_batch_size"):
        micro_batch_size(batch, micro, processes, "training.global_batch_size")


def test_fp16_leaves_steps_out_that_overflow_and_learns_with_the_others(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    started = LossScale.START
    LossScale.START = 2.0**40  # overflows until it has halved often enough
    try:
        pretrain(recipe_of(tiny_run, target, "training.precision=fp16", "training.max_steps=60"))
    finally:
        LossScale.START = started
    state = json.loads((target / "checkpoints" / "step-00000060" / "state.json").read_text())
    assert 1 < state["loss_scale"][0] < 2.0**36
    assert not (target / "checkpoints" / "skipped.json").exists()
    losses = [row["mlm_loss"] for row in read_metrics(target, "pretrain", "train")]
    assert sum(losses[-10:]) / 10 < sum(losses[:10]) / 10 - 0.1


def test_tokens_can_end_a_training_and_a_phase_can_have_its_own_batch(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    pretrain(
        recipe_of(
            tiny_run, target, "training.max_steps=null", "training.max_tokens=6000",
            "training.phases.1.global_batch_size=16", "training.optimizer=lamb", "training.schedule=cosine",
        )
    )  # fmt: skip
    tokens = [row["tokens"] for row in read_metrics(target, "pretrain", "train")]
    assert tokens[-2] < 6000 <= tokens[-1]
    steps = [after - before for before, after in zip(tokens, tokens[1:], strict=False)]
    assert max(steps[: len(steps) // 2]) <= 8 * 32
    assert min(steps[-3:]) > 8 * 48
    assert read_metrics(target, "pretrain", "validation")[-1]["learning_rate"] == 0


def test_what_does_not_fit_shows_in_the_dry_run(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, seen = copy_run(tiny_run, tmp_path / "run", "prepare"), []

    def forward(self: BertPreForPreTraining, **batch: torch.Tensor) -> None:
        seen.append(tuple(batch["input_ids"].shape))
        if batch["input_ids"].shape[1] == 48:  # the second phase's
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return original(self, **batch)

    original = BertPreForPreTraining.forward
    monkeypatch.setattr(BertPreForPreTraining, "forward", forward)
    with pytest.raises(UserError, match=r"not enough memory for 8 rows of 48 tokens.*micro_batch_size"):
        pretrain(recipe_of(tiny_run, target))
    assert seen == [(8, 32), (8, 48)]


def test_what_the_dry_run_compiles_is_what_the_steps_use(
    tiny_modern_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    original_step, original_compile = Trainer.train_step, torch.nn.Module.compile

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        compiled.append("step" if stepping else "dry run")
        return graph.forward

    def step(self: Trainer, *arguments: Any) -> None:  # noqa: ANN401
        stepping.append(True)
        original_step(self, *arguments)

    stepping: list[bool] = []
    torch._dynamo.reset()
    monkeypatch.setattr(Trainer, "train_step", step)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, dynamic: original_compile(self, backend=backend))
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    pretrain(recipe_of(tiny_modern_run, target, "training.compile=true", "training.max_steps=4"))
    assert set(compiled) == {"dry run"}


def test_what_goes_by_before_the_first_step_is_no_part_of_the_warmup(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Trainer.dry_run

    def slow(self: Trainer, wrapped: torch.nn.Module) -> None:
        time.sleep(1.5)  # as compiling is
        original(self, wrapped)

    monkeypatch.setattr(Trainer, "dry_run", slow)
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    budget = ("training.max_steps=null", "training.warmup=0.5", "training.phases=[{max_length: 32}]")
    recipe = recipe_of(tiny_run, target, "training.budget=4s", *budget)
    pretrain(recipe)
    rows = read_metrics(target, "pretrain", "train")
    assert rows[0]["learning_rate"] < 0.2 * recipe.training.learning_rate
    assert max(row["learning_rate"] for row in rows) > 0.8 * recipe.training.learning_rate
    assert rows[-1]["elapsed_seconds"] < 5

    none_left = copy_run(tiny_run, tmp_path / "none", "prepare")
    with pytest.raises(UserError, match="nothing is left to train in; give more"):
        pretrain(recipe_of(tiny_run, none_left, "training.budget=1s", *budget))
