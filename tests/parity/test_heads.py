"""Every head of both architectures has the logits, loss and gradients of its stock class, in both directions."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from bertpre.model import BertPreConfig, modeling_bertpre
from bertpre.model.conversion import (
    MODERNBERT_PREFIXES,
    TO_BERT,
    TO_MODERNBERT,
    from_stock,
    to_stock_bert,
    to_stock_modernbert,
)
from tests.parity.test_stock_bert import SIZES, inputs, randomize

SEQUENCE = 12
CONVERT = {"bert": to_stock_bert, "modern": to_stock_modernbert}
CASES = [(name, "bert", "cls") for name in TO_BERT] + [
    (name, "modern", pooling)
    for name in TO_MODERNBERT
    for pooling in ("cls", "mean")
    if name is not modeling_bertpre.BertPreForPreTraining  # ModernBERT has no sentence head
]


def batch_for(model_class: type[PreTrainedModel], architecture: str, padded: bool) -> dict[str, torch.Tensor]:
    """Inputs and labels of a head's task."""
    batch, name = inputs(padded), model_class.__name__.removeprefix("BertPreFor")
    if architecture == "modern":
        del batch["token_type_ids"]
    tokens = batch["input_ids"].masked_fill(torch.arange(SEQUENCE) % 3 != 1, -100)
    labels = {
        "PreTraining": {"labels": tokens, "next_sentence_label": torch.tensor([0, 1, 1])},
        "MaskedLM": {"labels": tokens},
        "SequenceClassification": {"labels": torch.tensor([2, 0, 1])},
        "TokenClassification": {"labels": torch.where(tokens == -100, -100, tokens % SIZES["num_labels"])},
    }
    return batch | labels[name]


def stock_name(ours: str, architecture: str) -> str:
    """The stock name of one of our weights."""
    if architecture == "bert":
        return ours
    if ours == "cls.predictions.bias":
        return "decoder.bias"
    if "second_segment" in ours:
        return ours
    prefix, stock = next(pair for pair in MODERNBERT_PREFIXES if ours.startswith(pair[0]))
    return stock + ours.removeprefix(prefix)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("model_class", "architecture", "pooling"), CASES)
def test_logits_loss_and_gradients_match(
    model_class: Callable, architecture: str, pooling: str, attention: str, padded: bool
) -> None:
    fields = {"architecture": architecture, "classifier_pooling": pooling, "rope_theta": 500.0}
    ours = randomize(model_class(BertPreConfig(**SIZES, **fields)))
    ours.set_attn_implementation(attention)
    stock = CONVERT[architecture](ours)
    assert stock.config._attn_implementation == attention
    batch = batch_for(model_class, architecture, padded)
    if pooling == "mean":  # ModernBERT's mean needs a mask
        batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))

    our_outputs, stock_outputs = ours(**batch), stock(**batch)
    compared = [name for name in stock_outputs if name == "loss" or name.endswith("logits")]
    assert len(compared) >= 2
    for name in compared:
        torch.testing.assert_close(our_outputs[name], stock_outputs[name], rtol=0, atol=1e-5)

    our_outputs.loss.backward()
    stock_outputs.loss.backward()
    gradients = {stock_name(name, architecture): weight.grad for name, weight in ours.named_parameters()}
    gradients = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    for name, weight in stock.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(gradients.pop(name), weight.grad, rtol=0, atol=1e-4)
    # These are single texts, so the vector of the second segment, which ModernBERT lacks, has zero gradient.
    assert not any(gradient.any() for gradient in gradients.values()) and len(gradients) == (architecture == "modern")

    back = from_stock(stock)
    assert type(back) is model_class
    for name in compared:
        torch.testing.assert_close(back(**batch)[name], stock_outputs[name], rtol=0, atol=1e-5)
