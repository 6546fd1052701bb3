"""Texts without labels: which are left out, what a teacher's probabilities do to loss and class weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bertpre.bags import nbsvm
from bertpre.data.labelled import read_examples
from bertpre.distill import with_unlabelled
from bertpre.errors import UserError
from bertpre.recipe import Finetune
from bertpre.training.tasks import Task, TaskObjective, TaskOutput, build_task
from tests.unit.test_labelled import write_rows


def settings_with(tmp_path: Path, texts: list[str], **unlabelled: object) -> Finetune:
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(["dull one", "fine one"] * 4)]
    path = write_rows(tmp_path / "train.jsonl", rows)
    other = write_rows(tmp_path / "other.jsonl", [{"text": text} for text in texts])
    return Finetune(path=path, unlabelled={"path": other, **unlabelled})


def test_the_teacher_labels_what_is_not_known(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, ["dull one", "dull two", "fine\ttwo", "fine three"])
    training = read_examples(settings, "train")
    validation = training.subset([])
    validation.texts.append("fine three")
    taught = with_unlabelled(settings, training, validation)
    assert taught.texts == [*training.texts, "dull two", "fine two"]
    assert taught.ids[8:] == ["train/1", "train/2"]
    assert taught.labels.dtype == np.float32
    np.testing.assert_array_equal(taught.labels[:8], np.eye(2)[training.labels])
    np.testing.assert_allclose(taught.labels[8:], nbsvm(training)(taught.subset([8, 9])), rtol=1e-6)
    assert taught.labels[8:].argmax(1).tolist() == [0, 1]


def test_what_is_held_out_is_left_out(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, ["dull one", "fine one"], held_out="train")
    training = read_examples(settings, "train").subset([0, 1])
    with pytest.raises(UserError, match=r"every text of .*other.jsonl \(split train\) is labelled or held out"):
        with_unlabelled(settings, training, None)


def test_of_a_pair_both_texts_must_be_known(tmp_path: Path) -> None:
    rows = [{"text": text, "other": "x", "label": number % 2} for number, text in enumerate(["dull", "fine"] * 4)]
    path = write_rows(tmp_path / "train.jsonl", rows)
    other = write_rows(tmp_path / "other.jsonl", [{"text": "dull", "other": each} for each in ("x", "y")])
    settings = Finetune(path=path, text_pair_column="other", unlabelled={"path": other})
    taught = with_unlabelled(settings, read_examples(settings, "train"), None)
    assert (taught.texts[8:], taught.pairs[8:]) == (["dull"], ["y"])


def test_without_such_texts_nothing_changes(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, ["a"]).model_copy(update={"unlabelled": None})
    training = read_examples(settings, "train")
    assert with_unlabelled(settings, training, None) is training


def test_probabilities_are_labels() -> None:
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


def test_balanced_weights_count_what_the_teacher_says(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, ["dull two", "dull three"]).model_copy(update={"class_weights": "balanced"})
    taught = with_unlabelled(settings, read_examples(settings, "train"), None)
    counts = taught.labels.sum(0)
    assert build_task(settings, taught).class_weights == pytest.approx(counts.sum() / (2 * counts))
    assert counts[0] > counts[1]
