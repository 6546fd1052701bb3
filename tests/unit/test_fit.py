"""Keeping the best epoch, and when to stop looking for a better one."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from bertpre.finetuning.fit import BestEpoch
from bertpre.recipe import Finetune


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
