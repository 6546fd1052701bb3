"""The training loop: the rate it logs, batches cut into micro-batches, dropout, and gradients that are not finite."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bertpre.errors import UserError
from bertpre.finetune import finetune
from bertpre.pretrain import micro_batch_size, pretrain
from bertpre.recipe import Phase, Recipe, load_recipe
from bertpre.run_directory import read_results
from bertpre.training.guards import check_finite
from bertpre.training.metrics import PretrainingObjective
from bertpre.training.schedule import lr_at
from bertpre.training.trainer import Trainer, evaluate_batches
from tests.helpers import copy_run, read_metrics


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


def test_a_gradient_that_is_not_finite_stops_before_the_weights_are_touched(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("nan", "inf"):
        with pytest.raises(UserError, match=r"step 7 is not finite.*training.learning_rate"):
            check_finite(torch.tensor(float(value)), 7)
    check_finite(torch.tensor(1e30), 7)

    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    original, models = Trainer.train_step, []

    def poisoned(self: Trainer, wrapped: torch.nn.Module, batch: Any, factor: float) -> None:  # noqa: ANN401
        if self.step == 7:
            models.append({name: value.clone() for name, value in self.model.state_dict().items()} | {"of": self.model})
            self.model.get_input_embeddings().weight.register_hook(lambda gradient: gradient * float("nan"))
        original(self, wrapped, batch, factor)

    monkeypatch.setattr(Trainer, "train_step", poisoned)
    with pytest.raises(UserError, match="step 7 is not finite"):
        pretrain(recipe_of(tiny_run, target))
    (before,) = models
    for name, value in before.pop("of").state_dict().items():
        assert torch.equal(value, before[name]), name
    assert (target / "checkpoints" / "step-00000005" / "state.json").exists()
    assert set(read_results(target)) == {"prepare"}


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
    assert micro_batch_size(batch, Phase(micro_batch_size=micro), processes) == size


@pytest.mark.parametrize(("batch", "micro", "processes"), [(8, 3, 1), (8, None, 3), (2, None, 4), (8, 8, 2)])
def test_a_batch_that_cannot_be_cut_evenly_is_refused(batch: int, micro: int | None, processes: int) -> None:
    with pytest.raises(UserError, match="training.global_batch_size is .* must be a multiple of micro_batch_size"):
        micro_batch_size(batch, Phase(micro_batch_size=micro), processes)
