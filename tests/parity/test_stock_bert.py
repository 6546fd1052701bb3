"""Architecture "bert" is stock BERT: the same logits and gradients, whichever way it is converted."""

import pytest
import torch
from transformers import BertConfig, BertForPreTraining, BertForSequenceClassification, PreTrainedModel

from bertpre.model import BertPreConfig, BertPreForPreTraining, BertPreForSequenceClassification, BertPreModel
from bertpre.model.conversion import from_stock, to_stock_bert

BATCH, SEQUENCE, VOCABULARY = 3, 12, 90
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 16, "num_labels": 3,
}  # fmt: skip


def randomize(model: PreTrainedModel) -> PreTrainedModel:
    """Perturb every weight, biases and norms too, so that a forgotten one changes the outputs."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


def inputs(padded: bool) -> dict[str, torch.Tensor]:
    """Ids, segments and, where asked for, rows of 12, 7 and 3 tokens."""
    ids = torch.randint(5, VOCABULARY, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "token_type_ids": (torch.arange(SEQUENCE) >= 4).long().expand(BATCH, -1)}
    if padded:
        batch["attention_mask"] = (torch.arange(SEQUENCE) < torch.tensor([[12], [7], [3]])).long()
        batch["input_ids"] = ids.masked_fill(batch["attention_mask"] == 0, 0)
    return batch


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_pretraining_matches_stock(padded: bool, attention: str) -> None:
    ours = randomize(BertPreForPreTraining(BertPreConfig(**SIZES)))
    ours.set_attn_implementation(attention)
    stock = to_stock_bert(ours)
    assert type(stock) is BertForPreTraining and stock.config._attn_implementation == attention

    batch = inputs(padded)
    batch["labels"] = batch["input_ids"].masked_fill(torch.arange(SEQUENCE) % 3 != 1, -100)
    batch["next_sentence_label"] = torch.tensor([0, 1, 1])
    our_output, stock_output = ours(**batch), stock(**batch)
    for name in ("prediction_logits", "seq_relationship_logits", "loss"):
        torch.testing.assert_close(our_output[name], stock_output[name], rtol=0, atol=1e-5)

    our_output.loss.backward()
    stock_output.loss.backward()
    stock_gradients = {name: weight.grad for name, weight in stock.named_parameters()}
    for name, weight in ours.named_parameters():
        torch.testing.assert_close(weight.grad, stock_gradients.pop(name), rtol=0, atol=1e-4)
    assert not stock_gradients


@pytest.mark.parametrize("asked", [{}, {"output_hidden_states": True, "output_attentions": True}])
def test_outputs_of_pretraining_have_the_positions_of_stock(asked: dict[str, bool]) -> None:
    stock = randomize(BertForPreTraining(BertConfig(**SIZES, attn_implementation="eager")))
    batch = inputs(padded=False) | asked
    for labels in ({}, {"labels": batch["input_ids"], "next_sentence_label": torch.tensor([0, 1, 1])}):
        expected = stock(**batch, **labels, return_dict=False)
        outputs = from_stock(stock)(**batch, **labels, return_dict=False)
        torch.testing.assert_close(outputs[: len(expected)], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stock_class", [BertForPreTraining, BertForSequenceClassification])
def test_stock_becomes_ours(stock_class: type[PreTrainedModel]) -> None:
    stock = randomize(stock_class(BertConfig(**SIZES, hidden_act="relu", layer_norm_eps=1e-3)))
    ours = from_stock(stock)
    batch = inputs(padded=True)
    torch.testing.assert_close(ours(**batch)[0], stock(**batch)[0], rtol=0, atol=1e-5)


def test_round_trip_keeps_config_weights_and_dtype() -> None:
    config = BertPreConfig(
        **SIZES, unk_token_id=None, cls_token_id=None, sep_token_id=None, mask_token_id=None, initializer_range=0.01
    )
    config.id2label = {0: "sad", 1: "so-so", 2: "glad"}
    ours = randomize(BertPreForSequenceClassification(config)).to(torch.bfloat16)
    assert to_stock_bert(ours).config.initializer_range == 0.01
    back = from_stock(to_stock_bert(ours))
    assert back.dtype == torch.bfloat16 and back.config.id2label == config.id2label
    assert back.config.to_diff_dict() == config.to_diff_dict()
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, back.state_dict()[name]), name


def test_conversion_does_not_change_the_random_state() -> None:
    ours = BertPreForPreTraining(BertPreConfig(**SIZES))
    before = torch.get_rng_state()
    from_stock(to_stock_bert(ours))
    assert torch.equal(before, torch.get_rng_state())


def test_models_that_cannot_be_converted_are_refused() -> None:
    modern = BertPreConfig(architecture="modern", **SIZES)
    with pytest.raises(ValueError, match="use to_stock_modernbert instead"):
        to_stock_bert(BertPreForPreTraining(modern))
    with pytest.raises(ValueError, match="BertPreModel has no counterpart"):
        to_stock_bert(BertPreModel(BertPreConfig(**SIZES)))
    with pytest.raises(ValueError, match="it is a decoder"):
        from_stock(BertForPreTraining(BertConfig(**SIZES, is_decoder=True)))
