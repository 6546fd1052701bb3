"""Architecture "modern" is stock ModernBERT with full attention: the same logits and gradients."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForSequenceClassification,
    PreTrainedModel,
)

from bertpre.model import BertPreConfig, BertPreForMaskedLM, BertPreForPreTraining, BertPreModel
from bertpre.model.conversion import config_from_stock, from_stock, modernbert_config, to_stock_modernbert
from bertpre.training.precision import WorkingCopy
from tests.parity.test_stock_bert import randomize

BATCH, SEQUENCE, VOCABULARY = 3, 12, 90
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 16, "num_labels": 3,
}  # fmt: skip
STOCK_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}


def inputs(padded: bool) -> dict[str, torch.Tensor]:
    """Ids and, where asked for, rows of 12, 7 and 3 tokens."""
    ids = torch.randint(5, VOCABULARY, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(0))
    if not padded:
        return {"input_ids": ids}
    mask = (torch.arange(SEQUENCE) < torch.tensor([[12], [7], [3]])).long()
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def test_pretraining_model_leaves_its_sentence_head_behind() -> None:
    ours = randomize(BertPreForPreTraining(BertPreConfig(architecture="modern", **SIZES)))
    batch = inputs(padded=True)
    logits = to_stock_modernbert(ours)(**batch).logits
    torch.testing.assert_close(ours(**batch).prediction_logits, logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stock_class", [ModernBertForMaskedLM, ModernBertForSequenceClassification])
def test_stock_becomes_ours(stock_class: type[PreTrainedModel]) -> None:
    config = ModernBertConfig(**SIZES, **STOCK_IDS, global_attn_every_n_layers=1, classifier_pooling="mean")
    stock = randomize(stock_class(config))
    ours = from_stock(stock)
    assert ours.config.rope_theta == 160_000.0
    batch = inputs(padded=True)
    torch.testing.assert_close(ours(**batch).logits, stock(**batch).logits, rtol=0, atol=1e-5)


def test_a_short_type_keeps_the_rotary_frequencies(tmp_path: Path) -> None:
    stock = randomize(ModernBertForMaskedLM(ModernBertConfig(**SIZES, **STOCK_IDS)))
    stock.save_pretrained(tmp_path)
    loaded = ModernBertForMaskedLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    ours = from_stock(ModernBertForMaskedLM(ModernBertConfig(**SIZES, **STOCK_IDS, global_attn_every_n_layers=1)))
    working = WorkingCopy(stock, torch.bfloat16).model
    for model in (loaded, working, to_stock_modernbert(ours.to(torch.bfloat16))):
        assert {buffer.dtype for _, buffer in model.named_buffers()} == {torch.float32}
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    for name, buffer in working.named_buffers():
        torch.testing.assert_close(buffer, loaded.get_buffer(name), rtol=0, atol=0)


def test_round_trip_keeps_config_and_weights() -> None:
    config = BertPreConfig(
        architecture="modern", unk_token_id=None, mask_token_id=None, classifier_dropout=0.2, rope_theta=500.0,
        hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.05, layer_norm_eps=1e-3, initializer_range=0.01,
        **SIZES,
    )  # fmt: skip
    ours = randomize(BertPreForMaskedLM(config))
    stock = modernbert_config(config)
    assert (stock.embedding_dropout, stock.mlp_dropout, stock.attention_dropout) == (0.3, 0.3, 0.05)
    assert stock.initializer_range == 0.01
    torch.nn.init.zeros_(ours.bert.embeddings.second_segment)  # ModernBERT has no place for it
    back = from_stock(to_stock_modernbert(ours))
    assert back.config.to_diff_dict() == config.to_diff_dict()
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, back.state_dict()[name]), name


@pytest.mark.parametrize(("dropout", "expected"), [(None, 0.3), (0.0, 0.0)])
def test_classifier_dropout_defaults_to_hidden_dropout(dropout: float | None, expected: float) -> None:
    config = BertPreConfig(architecture="modern", hidden_dropout_prob=0.3, classifier_dropout=dropout, **SIZES)
    assert modernbert_config(config).classifier_dropout == expected


def test_the_saved_config_says_in_the_words_of_transformers_4_that_attention_is_full(tmp_path: Path) -> None:
    config = modernbert_config(BertPreConfig(architecture="modern", rope_theta=5000.0, **SIZES))
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["global_attn_every_n_layers"] == 1
    assert saved["global_rope_theta"] == saved["local_rope_theta"] == 5000.0
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert (loaded.layer_types, loaded.rope_parameters) == (config.layer_types, config.rope_parameters)


def test_each_rotary_base_belongs_to_a_layer_and_no_text_leaves_a_window() -> None:
    # transformers 5.8 to 5.15 read no config with the base of a kind that no layer has.
    config = modernbert_config(BertPreConfig(architecture="modern", **SIZES))
    assert (
        set(config.layer_types) == set(config.rope_parameters) and len(config.layer_types) == config.num_hidden_layers
    )
    assert 2**32 > config.local_attention > 1000 * config.max_position_embeddings
    assert modernbert_config(config_from_stock(config)).to_diff_dict() == config.to_diff_dict()
    single = modernbert_config(BertPreConfig(architecture="modern", **SIZES | {"num_hidden_layers": 1}))
    assert single.layer_types == ["full_attention"]


def test_a_folder_of_an_earlier_bertpre_is_read() -> None:
    ours = BertPreConfig(architecture="modern", **SIZES)
    config = modernbert_config(ours)
    config.layer_types, config.local_attention = ["full_attention"] * config.num_hidden_layers, 128
    assert config_from_stock(config).to_diff_dict() == ours.to_diff_dict()


def test_layers_with_two_rotary_bases_are_refused() -> None:
    config = modernbert_config(BertPreConfig(architecture="modern", **SIZES))
    config.rope_parameters["sliding_attention"]["rope_theta"] *= 2
    with pytest.raises(ValueError, match="differ in their rotary bases"):
        config_from_stock(config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"global_attn_every_n_layers": 3}, "local attention"),
        ({"norm_bias": True}, "other biases"),
        ({"decoder_bias": False}, "other biases"),
        ({"classifier_activation": "relu"}, "a different activation"),
        ({"mlp_dropout": 0.5}, "different dropout"),
    ],
)
def test_what_ours_cannot_express_is_refused(fields: dict, message: str) -> None:
    config = ModernBertConfig(**({"global_attn_every_n_layers": 1} | fields), **SIZES, **STOCK_IDS)
    with pytest.raises(ValueError, match=message):
        from_stock(ModernBertForMaskedLM(config))


def test_wrong_model_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match="use to_stock_bert instead"):
        to_stock_modernbert(BertPreForMaskedLM(BertPreConfig(**SIZES)))
    modern = BertPreConfig(architecture="modern", **SIZES)
    with pytest.raises(ValueError, match="BertPreModel has no counterpart"):
        to_stock_modernbert(BertPreModel(modern))


def test_a_regression_tells_cross_encoders_that_its_score_is_a_number() -> None:
    kinds = {"num_labels": 1, "problem_type": "regression"}, {"num_labels": 2}
    number, classes = (modernbert_config(BertPreConfig(architecture="modern", **SIZES | kind)) for kind in kinds)
    assert number.to_dict()["sentence_transformers"] == {"activation_fn": "torch.nn.modules.linear.Identity"}
    assert "sentence_transformers" not in classes.to_dict()
