"""Texts without labels: which are left out, what the teacher says of them, and what that does to the loss."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from bertpre.bags import nbsvm
from bertpre.data.labelled import Examples, collate, read_examples
from bertpre.data.tokenizer import learn_tokenizer
from bertpre.distill import Teacher, encode_and_teach, read_unlabelled
from bertpre.errors import UserError
from bertpre.model import BertPreConfig, BertPreForSequenceClassification
from bertpre.recipe import Finetune
from bertpre.training.tasks import Task, TaskModel, TaskObjective, TaskOutput
from tests.unit.test_labelled import write_rows


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_tokenizer(iter(["dull fine one two three"] * 3), 128, lowercase=True, max_length=64)


def settings_with(tmp_path: Path, texts: list[str], **unlabelled: object) -> Finetune:
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(["dull one", "fine one"] * 4)]
    path = write_rows(tmp_path / "train.jsonl", rows)
    other = write_rows(tmp_path / "other.jsonl", [{"text": text} for text in texts])
    return Finetune(path=path, unlabelled={"path": other, **unlabelled})


def test_what_is_known_is_left_out(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, ["dull one", "dull two", "fine\ttwo", "fine three"])
    training = read_examples(settings, "train")
    validation = training.subset([])
    validation.texts.append("fine three")
    unlabelled = read_unlabelled(settings, training, validation)
    assert unlabelled.texts == ["dull two", "fine two"]
    assert unlabelled.ids == ["train/1", "train/2"]


def test_what_is_held_out_is_left_out(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, ["dull one", "fine one"], held_out="train")
    training = read_examples(settings, "train").subset([0, 1])
    with pytest.raises(UserError, match=r"every text of .*other.jsonl \(split train\) is labelled or held out"):
        read_unlabelled(settings, training, None)


def test_of_a_pair_both_texts_must_be_known(tmp_path: Path) -> None:
    rows = [{"text": text, "other": "x", "label": number % 2} for number, text in enumerate(["dull", "fine"] * 4)]
    path = write_rows(tmp_path / "train.jsonl", rows)
    other = write_rows(tmp_path / "other.jsonl", [{"text": "dull", "other": each} for each in ("x", "y")])
    settings = Finetune(path=path, text_pair_column="other", unlabelled={"path": other})
    unlabelled = read_unlabelled(settings, read_examples(settings, "train"), None)
    assert (unlabelled.texts, unlabelled.pairs) == (["dull"], ["y"])


def test_the_teacher_is_nbsvm_on_tokens() -> None:
    """Against scikit-learn's vectorizer on the same tokens, as text, two classes and three."""
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, 9, size=generator.integers(1, 30)) for _ in range(60)]
    texts = [" ".join(f"t{token}" for token in row) for row in rows]
    for count in (2, 3):
        labels = np.arange(60) % count
        teacher = Teacher.taught_by(rows[:40], labels[:40], count)
        examples = Examples([str(n) for n in range(60)], texts, None, labels, tuple("abc"[:count]))
        expected = nbsvm(examples.subset(range(40)))(examples)
        np.testing.assert_allclose(teacher.probabilities(rows), expected, atol=1e-5)


def test_the_teacher_explains_each_token() -> None:
    """The weights of the runs that end there, where more than one text has them; unknown tokens say nothing."""
    rows = [np.array(row) for row in ([5, 6, 7], [5, 6], [6, 5, 8], [6])]
    teacher = Teacher.taught_by(rows, np.array([0, 1, 0, 1]), 2)
    assert len(teacher.vocabulary) == 4 + 4 + 2  # 5 6 7 8; 56 67 65 58; 567 658
    alone = {run: teacher.explain([np.array(run)])[0] for run in ((5,), (6,), (7,), (5, 6))}
    assert alone[5,][0, 0] != 0
    assert alone[7,].tolist() == [[0.0]]  # one text only
    (explained,) = teacher.explain([np.array([5, 6, 7, 99])])
    np.testing.assert_allclose(explained[:2], alone[5, 6])
    assert explained[1, 0] != alone[6,][0, 0]  # 5 6 is a run, too
    assert explained[2:].tolist() == [[0.0], [0.0]]
    split = teacher.explain([np.array([5]), np.array([6])])
    np.testing.assert_allclose(np.concatenate(split), np.concatenate([alone[5,], alone[6,]]))  # none across texts


def test_what_the_network_reads(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    settings = settings_with(tmp_path, ["dull" + " two three" * 5, "fine two"]).model_copy(update={"train_length": 8})
    training = read_examples(settings, "train")
    unlabelled = read_unlabelled(settings, training, None)
    encoded = encode_and_teach(settings, tokenizer, training, unlabelled)
    np.testing.assert_array_equal(encoded.labels[:8], np.eye(2)[training.labels])
    assert encoded.labels.dtype == np.float32
    assert encoded.labels[8:].argmax(1).tolist() == [0, 1]
    assert [len(row) for row in encoded.token_labels] == encoded.lengths.tolist()
    assert encoded.lengths.max() == 8
    assert np.concatenate(encoded.token_labels).astype(float).std() == pytest.approx(1, abs=1e-3)
    batch = collate(encoded, [0, 8], 16, tokenizer.pad_token_id)
    assert batch["token_labels"].shape == (2, 16, 1)
    assert not batch["token_labels"][batch["attention_mask"] == 0].any()
    alone = encode_and_teach(settings, tokenizer, training, None)
    assert (alone.token_labels, alone.num_token_labels, len(alone.ids)) == (None, 0, 8)


def test_explanations_add_to_the_loss() -> None:
    """The mean over a text's tokens, whatever its padding; the gradient reaches the encoder."""
    config = BertPreConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = TaskModel(BertPreForSequenceClassification(config).eval(), Task("classification", ("a", "b")), 2)
    ids, mask = torch.randint(5, 50, (2, 6)), torch.tensor([[1] * 6, [1] * 3 + [0] * 3])
    labels, told, count = torch.tensor([0, 1]), torch.randn(2, 6, 2), torch.tensor(4.0)
    plain = model(labels, count, input_ids=ids, attention_mask=mask)
    both = model(labels, count, told, input_ids=ids, attention_mask=mask)
    hidden = model.model.bert(ids, mask).last_hidden_state
    each = F.smooth_l1_loss(model.explainer(hidden), told, reduction="none").mean(-1)
    expected = (each[0].mean() + each[1, :3].mean()) / 4
    torch.testing.assert_close(both.loss - plain.loss, expected)
    torch.testing.assert_close(both.logits, plain.logits)
    (both.loss - plain.loss).backward()
    assert model.model.bert.embeddings.word_embeddings.weight.grad.abs().sum() > 0
    assert not any("explainer" in name for name in model.model.state_dict())


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
