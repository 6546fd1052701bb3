"""Micro-batches have the loss and gradient of the whole batch, in a plain loop and in Trainer."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, Trainer, TrainingArguments

from bertpre.model import BertPreConfig, BertPreForPreTraining, BertPreForSequenceClassification

BATCH, SEQUENCE, VOCABULARY = 8, 12, 90

both_architectures = pytest.mark.parametrize("architecture", ["bert", "modern"])


def tiny_config(architecture: str, **fields: object) -> BertPreConfig:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    return BertPreConfig(
        architecture=architecture, vocab_size=VOCABULARY, max_position_embeddings=16, initializer_range=0.3, **sizes,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, **fields,
    )  # fmt: skip


def loss_and_gradients(
    model: PreTrainedModel, batch: dict[str, torch.Tensor], rows: int, **counts: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Accumulate over micro-batches of `rows` rows."""
    model.zero_grad()
    total = torch.zeros(())
    for start in range(0, BATCH, rows):
        loss = model(**{name: tensor[start : start + rows] for name, tensor in batch.items()}, **counts).loss
        loss.backward()
        total += loss.detach()
    return total, [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def pretraining_batch() -> dict[str, torch.Tensor]:
    """Rows with 0 to 7 targets and, in places, no sentence label, so that means of means are wrong."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    labels = ids.masked_fill(torch.arange(SEQUENCE) >= torch.arange(BATCH)[:, None], -100)
    return {"input_ids": ids, "labels": labels, "next_sentence_label": torch.tensor([0, 1, 1, -100, 0, -100, -100, 1])}


@both_architectures
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_pretraining_micro_batches_add_up(architecture: str, rows: int) -> None:
    torch.manual_seed(0)
    model, batch = BertPreForPreTraining(tiny_config(architecture)), pretraining_batch()
    counts = {
        "num_items_in_batch": (batch["labels"] != -100).sum(),
        "num_pairs_in_batch": (batch["next_sentence_label"] != -100).sum(),
    }
    whole, whole_gradients = loss_and_gradients(model, batch, BATCH)
    parts, part_gradients = loss_and_gradients(model, batch, rows, **counts)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)
    for part_gradient, whole_gradient in zip(part_gradients, whole_gradients, strict=True):
        torch.testing.assert_close(part_gradient, whole_gradient, rtol=0, atol=1e-5)
    # Without the counts the sum is different, so this test can fail.
    assert (loss_and_gradients(model, batch, rows)[0] / (BATCH // rows) - whole).abs() > 1e-3


@both_architectures
@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("single_label_classification", torch.tensor([0, 1, 2, 0, -100, 1, -100, -100])),
        ("multi_label_classification", torch.arange(24).reshape(8, 3) % 2 * 1.0),
        ("regression", torch.arange(24).reshape(8, 3) / 10),
    ],
)
def test_classifier_micro_batches_add_up(architecture: str, problem: str, labels: torch.Tensor) -> None:
    model = BertPreForSequenceClassification(tiny_config(architecture, num_labels=3, problem_type=problem))
    batch = {"input_ids": pretraining_batch()["input_ids"], "labels": labels}
    whole, whole_gradients = loss_and_gradients(model, batch, BATCH)
    parts, part_gradients = loss_and_gradients(model, batch, 2, num_items_in_batch=(labels != -100).sum())
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)
    for part_gradient, whole_gradient in zip(part_gradients, whole_gradients, strict=True):
        torch.testing.assert_close(part_gradient, whole_gradient, rtol=0, atol=1e-5)


@pytest.mark.parametrize("model_class", [BertPreForPreTraining, BertPreForSequenceClassification])
def test_trainer_logs_the_same_loss_and_gradient_norm(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    batch = pretraining_batch()
    if model_class is BertPreForSequenceClassification:
        batch = {"input_ids": batch["input_ids"], "labels": torch.arange(BATCH) % 3}
    else:  # two targets a row, because Trainer takes the mean of means where a model has two losses
        batch["labels"] = batch["input_ids"].masked_fill(torch.arange(SEQUENCE) >= 2, -100)
        batch["next_sentence_label"] = torch.arange(BATCH) % 2
    rows = [{name: tensor[row] for name, tensor in batch.items()} for row in range(BATCH)]
    logged = []
    for steps in (1, 4):
        torch.manual_seed(0)
        arguments = TrainingArguments(
            str(tmp_path), max_steps=1, per_device_train_batch_size=BATCH // steps, gradient_accumulation_steps=steps,
            logging_steps=1, save_strategy="no", use_cpu=True, disable_tqdm=True, report_to="none",
        )  # fmt: skip
        trainer = Trainer(model_class(tiny_config("bert", num_labels=3)), arguments, train_dataset=rows)
        trainer.train()
        logged.append(trainer.state.log_history[0])
    assert logged[0]["loss"] == pytest.approx(logged[1]["loss"], abs=1e-3)
    assert logged[0]["grad_norm"] == pytest.approx(logged[1]["grad_norm"], rel=1e-3)
