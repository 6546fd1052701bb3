"""The tasks' losses, class weights, and what a regression's last layer becomes."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn import functional as F

from bertpre.errors import UserError
from bertpre.finetuning.task import Task, TaskObjective, TaskOutput, build_task, tensor_on
from bertpre.recipe import Finetune
from tests.unit.test_examples import examples_of


def test_balanced_weights_equal_scikit_learns() -> None:
    labels = np.array([0, 0, 0, 1])
    settings = Finetune(path="x", class_weights="balanced")
    task = build_task(settings, examples_of(list("abcd"), labels=labels))
    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=labels)
    assert task.class_weights == pytest.approx(tuple(expected))
    with pytest.raises(UserError, match=r"finetune.class_weights: 3 weights for 2 classes \(no, yes\)"):
        build_task(settings.model_copy(update={"class_weights": [1, 2, 3]}), examples_of(["a", "b"]))


def test_a_regression_moves_its_scale_into_the_last_layer() -> None:
    numbers = np.array([10.0, 20.0, 60.0], dtype=np.float32)
    task = build_task(Finetune(path="x", task="regression"), examples_of(list("abc"), labels=numbers))
    layer, features = nn.Linear(4, 1), torch.randn(3, 4)
    with torch.no_grad():
        expected = task.outputs(layer(features))
        loss = task.loss(layer(features), torch.tensor(numbers))
        moved = task.with_scale_in(layer)
        np.testing.assert_allclose(moved.outputs(layer(features)), expected, rtol=1e-5)
    assert loss.item() == pytest.approx(((expected - numbers) ** 2).sum() / numbers.var(), rel=1e-4)
    logged = TaskObjective(task).measure(TaskOutput(loss / 3), {}, {"num_items_in_batch": 3})["loss"]
    assert logged.item() == pytest.approx(((expected - numbers) ** 2).mean(), rel=1e-4)  # as in validation


def test_a_regression_learns_numbers_that_fp32_cannot_tell_apart_and_refuses_equal_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    build_task(Finetune(path="x", task="regression"), examples_of(list("abc"), labels=1000 + np.arange(3.0)))
    assert not caplog.messages
    numbers = 1.7e9 + np.arange(3.0)
    task = build_task(Finetune(path="x", task="regression"), examples_of(list("abc"), labels=numbers))
    wanted = torch.tensor((numbers - numbers.mean()) / numbers.std())
    loss = task.loss(wanted.float().unsqueeze(-1), torch.tensor(numbers))
    assert (loss.dtype, loss.item()) == (torch.float32, pytest.approx(0, abs=1e-6))
    assert "have steps of 2e+02 there: subtract a constant from the labels" in caplog.messages[0]
    with pytest.raises(UserError, match="all 3 training examples have the label 5, so there is nothing to learn"):
        build_task(Finetune(path="x", task="regression"), examples_of(list("abc"), labels=np.full(3, 5.0)))


def test_a_multi_label_loss_is_the_mean_over_labels() -> None:
    logits, labels = torch.randn(5, 3), torch.randint(0, 2, (5, 3)).float()
    loss = Task("multi_label", ("a", "b", "c")).loss(logits, labels)
    torch.testing.assert_close(loss, 5 * F.binary_cross_entropy(logits.sigmoid(), labels))


def test_labels_may_be_probabilities() -> None:
    logits, sure = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    task = Task("classification", ("a", "b", "c"), class_weights=(1.0, 2.0, 0.5), label_smoothing=0.1)
    torch.testing.assert_close(task.loss(logits, F.one_hot(sure, 3).float()), task.loss(logits, sure))
    unsure = torch.rand(5, 3).softmax(-1)
    expected = -(unsure * logits.log_softmax(-1)).sum()
    torch.testing.assert_close(Task("classification", ("a", "b", "c")).loss(logits, unsure), expected)
    batch = {"labels": unsure}
    objective = TaskObjective(task)
    assert objective.counts(batch) == {"num_items_in_batch": 5}
    right = (logits.argmax(1) == unsure.argmax(1)).float().mean()
    measured = objective.measure(TaskOutput(torch.tensor(0.0), logits), batch, {"num_items_in_batch": 5})
    assert measured["accuracy"] == right


def test_class_weights_are_copied_to_a_device_once() -> None:
    values = (1.0, 2.0)
    with torch.inference_mode():
        first = tensor_on(torch.device("cpu"), torch.float32, values)
    assert tensor_on(torch.device("cpu"), torch.float32, values) is first and not first.is_inference()
