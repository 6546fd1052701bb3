"""Keeping the best epoch, and when to stop looking for a better one."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, ModernBertConfig

from bertpre.commands.finetune import print_advice
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.fit import BestEpoch
from bertpre.finetuning.loading import configure_for_task
from bertpre.finetuning.splits import Parts
from bertpre.finetuning.task import Task
from bertpre.recipe import Finetune, load_recipe
from tests.helpers import tiny_values, write_recipe


def measured(values: list[float], metric: str = "accuracy", patience: int | None = None) -> tuple[BestEpoch, nn.Linear]:
    """A `BestEpoch` after epochs of ten steps with these values; epoch n has the bias n."""
    model = nn.Linear(1, 1)
    coming: Iterator[float] = iter(values)
    settings = Finetune(path="x", metric=metric, patience=patience)
    best = BestEpoch(model, lambda: {metric: next(coming), "confusion": [[1]]}, settings)
    for epoch, value in enumerate(values, start=1):
        nn.init.constant_(model.bias, epoch)
        assert best(10 * epoch) == {metric: value}
    return best, model


@pytest.mark.parametrize(
    ("metric", "values", "epoch"),
    [("accuracy", [0.5, 0.7, 0.6], 2), ("loss", [0.5, 0.3, 0.4], 2), ("f1", [0.5] * 3, 1)],
)
def test_the_best_epochs_weights_are_restored(metric: str, values: list[float], epoch: int) -> None:
    best, model = measured(values, metric)
    best.restore()
    assert (best.step, best.metrics) == (10 * epoch, {metric: values[epoch - 1]})
    torch.testing.assert_close(model.bias, torch.tensor([float(epoch)]))


@pytest.mark.parametrize(
    ("values", "patience", "should_stop"),
    [([0.5, 0.4, 0.3], 2, True), ([0.5, 0.4], 2, False), ([0.4, 0.3, 0.5], 2, False), ([0.5, 0.4, 0.3], None, False)],
)
def test_patience_counts_epochs_without_improvement(
    values: list[float], patience: int | None, should_stop: bool
) -> None:
    assert measured(values, patience=patience)[0].should_stop() == should_stop


@pytest.mark.parametrize("is_another_run", [False, True])
def test_settings_that_do_not_suit_a_small_modern_model_are_named(
    is_another_run: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    values = tiny_values(tmp_path / "run", "modern") | {"pairs": {"kind": "none"}}
    own = str(write_recipe(tmp_path / "run/recipe.yaml", values))
    keys = ["finetune.pooling=cls", "finetune.learning_rate=3e-5"]
    if is_another_run:
        keys += [f"output_dir={tmp_path / 'other'}", f"finetune.init={tmp_path / 'run'}"]
        keys += ["model.hidden_size=768", "model.architecture=bert"]  # not what decides
    examples = Examples(["0", "1"], ["a", "b"], None, np.array([0, 1]), ("no", "yes"))
    print_advice(load_recipe(own, keys), Parts(examples, None, None))
    said = capsys.readouterr().out
    assert "finetune.learning_rate is 3e-05" in said
    assert "set finetune.pooling=mean" in said


@pytest.mark.parametrize(("pooling", "expected"), [(None, "mean"), ("mean", "mean"), ("cls", "cls")])
def test_a_model_keeps_its_own_pooling_unless_the_recipe_names_one(pooling: str | None, expected: str) -> None:
    config, settings = ModernBertConfig(classifier_pooling="mean"), Finetune(path="x", pooling=pooling)
    configure_for_task(config, settings, Task("classification", ("no", "yes")))
    assert config.classifier_pooling == expected
    if pooling != "mean":
        configure_for_task(BertConfig(), settings, Task("classification", ("no", "yes")))
