"""Conversion to and from the stock `bert` and `modernbert` classes of transformers, which only rename the weights.

The `to_` and `from_` functions change neither their argument nor the random state. They return a new model with the
same logits, on the same device, in the same dtype and mode.
"""

import re
from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from .casting import cast_weights
from .configuration_bertpre import BertPreConfig
from .modeling_bertpre import (
    BertPreForMaskedLM,
    BertPreForPreTraining,
    BertPreForSequenceClassification,
    BertPreForTokenClassification,
)

StateDict = dict[str, Tensor]
Classes = dict[type[PreTrainedModel], type[PreTrainedModel]]

TO_BERT: Classes = {
    BertPreForPreTraining: BertForPreTraining,
    BertPreForMaskedLM: BertForMaskedLM,
    BertPreForSequenceClassification: BertForSequenceClassification,
    BertPreForTokenClassification: BertForTokenClassification,
}
TO_MODERNBERT: Classes = {
    BertPreForPreTraining: ModernBertForMaskedLM,
    BertPreForMaskedLM: ModernBertForMaskedLM,
    BertPreForSequenceClassification: ModernBertForSequenceClassification,
    BertPreForTokenClassification: ModernBertForTokenClassification,
}
# Of two entries the later one is kept: a stock ModernBertForMaskedLM becomes a BertPreForMaskedLM.
FROM_STOCK = {stock: ours for ours, stock in (*TO_BERT.items(), *TO_MODERNBERT.items())}

# The weights of "bert" have stock BERT's names, those of "modern" ModernBERT's except for these prefixes, ours first.
MODERNBERT_PREFIXES = (
    ("bert.embeddings.word_embeddings.", "model.embeddings.tok_embeddings."),
    ("bert.embeddings.norm.", "model.embeddings.norm."),
    ("bert.encoder.layer.", "model.layers."),
    ("bert.encoder.final_norm.", "model.final_norm."),
    ("cls.predictions.transform.dense.", "head.dense."),
    ("cls.predictions.transform.LayerNorm.", "head.norm."),
    ("cls.predictions.decoder.", "decoder."),
    ("classifier.", "classifier."),
)
# The same for `from_pretrained(key_mapping=...)`: patterns of ModernBERT's names.
# `ModernBertModel`, which `AutoModel` and sentence-transformers save, leaves out `model.`.
FROM_MODERNBERT = {r"^decoder\.bias$": "cls.predictions.bias"} | {
    "^" + re.escape(name): ours
    for ours, stock in MODERNBERT_PREFIXES
    if ours != stock
    for name in dict.fromkeys((stock, stock.removeprefix("model.")))
}
# ModernBERT has neither segments nor a head for their order, and it stores the bias once, as the decoder's.
SECOND_SEGMENT = "bert.embeddings.second_segment"
ABSENT_FROM_MODERNBERT = (SECOND_SEGMENT, "bert.pooler.", "cls.seq_relationship.", "cls.predictions.bias")

SHARED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "initializer_range",
    "pad_token_id",
    "id2label",
    "label2id",
    "problem_type",
)
BERT_FIELDS = (
    "hidden_act",
    "type_vocab_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "layer_norm_eps",
    "classifier_dropout",
)
MODERNBERT_FIELDS = ("classifier_pooling", "cls_token_id", "sep_token_id")
# For a regression: sentence-transformers' CrossEncoder otherwise takes the sigmoid of a single logit.
AS_A_NUMBER = {"activation_fn": "torch.nn.modules.linear.Identity"}
UNLIMITED_WINDOW = 2**30  # tokens; kernels keep it, and half of it, in 32 bits
REST = "bertpre"  # the key in a stock config under which the other fields are kept; it also marks bertpre's own models


def has_counterpart(model: PreTrainedModel) -> bool:
    """Whether the stock library has a class for the model's own."""
    return _class_name(model) in {ours.__name__ for ours in TO_BERT}


def to_stock_bert(model: PreTrainedModel, weights: StateDict | None = None) -> PreTrainedModel:
    """Convert a BertPre model of architecture "bert" to the stock BERT class of the same task.

    `weights` replace the model's own, where these are sharded or on another device. Raises ValueError for another
    architecture, or for a class that stock BERT lacks.
    """
    _check_architecture(model, "bert", "to_stock_modernbert")
    stock_class = _counterpart(model, TO_BERT)
    return _build(stock_class, bert_config(model.config), weights or model.state_dict(), like=model)


def to_stock_modernbert(model: PreTrainedModel, weights: StateDict | None = None) -> PreTrainedModel:
    """Convert a BertPre model of architecture "modern" to the stock ModernBERT class of the same task.

    The pooler, the head for next sentence prediction and the vector of the second segment are dropped, so the logits
    are the same for single texts (token types all 0). `weights` replace the model's own, where these are sharded or on
    another device. Raises ValueError for another architecture, or for a class that ModernBERT lacks.
    """
    _check_architecture(model, "modern", "to_stock_bert")
    stock_class = _counterpart(model, TO_MODERNBERT)
    state = {
        _rename(name, MODERNBERT_PREFIXES): tensor
        for name, tensor in (weights or model.state_dict()).items()
        if not name.startswith(ABSENT_FROM_MODERNBERT)
    }
    return _build(stock_class, modernbert_config(model.config), state, like=model)


def from_stock(model: PreTrainedModel) -> PreTrainedModel:
    """Convert a stock BERT or ModernBERT model to the BertPre class of the same task.

    Raises ValueError for other classes, and for features that BertPre lacks (local attention, a decoder, ...).
    """
    our_class = _counterpart(model, FROM_STOCK)
    if isinstance(model.config, BertConfig):
        return _build(our_class, config_from_stock(model.config), model.state_dict(), like=model)
    stock_prefixes_first = tuple((stock, ours) for ours, stock in MODERNBERT_PREFIXES)
    state = {_rename(name, stock_prefixes_first): tensor for name, tensor in model.state_dict().items()}
    state[SECOND_SEGMENT] = torch.zeros(model.config.hidden_size)
    if "cls.predictions.decoder.bias" in state:
        state["cls.predictions.bias"] = state["cls.predictions.decoder.bias"]
    return _build(our_class, config_from_stock(model.config), state, like=model)


def load_for_pretraining(source: str) -> PreTrainedModel:
    """Load a BertPre, stock BERT or stock ModernBERT model from a folder or the Hub, for pretraining, in fp32.

    The class is `BertPreForPreTraining`, or `BertPreForMaskedLM` for ModernBERT, which has no head for sentence order.
    A pooler or a head that is missing is drawn at random. Raises ValueError for other models, and where some of the
    encoder's weights are missing; OSError where there is no model.
    """
    model_type = AutoConfig.from_pretrained(source, trust_remote_code=False).model_type
    classes = {"bertpre": BertPreForPreTraining, "bert": BertForPreTraining, "modernbert": ModernBertForMaskedLM}
    if model_type not in classes:
        raise ValueError(f"it is a {model_type} model; only {', '.join(classes)} models can be pretrained further")
    model, report = classes[model_type].from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    encoder = [name for name in sorted(report["missing_keys"]) if name.startswith(f"{model.base_model_prefix}.")]
    if missing := [name for name in encoder if "pooler." not in name and name != SECOND_SEGMENT]:
        raise ValueError(f"its files lack {len(missing)} of the model's weights, {missing[0]} among them")
    return model if model_type == "bertpre" else from_stock(model)


def bert_config(config: BertPreConfig) -> BertConfig:
    """The stock config of a "bert" model."""
    return _with_rest(BertConfig(**_copy_fields(config, SHARED_FIELDS + BERT_FIELDS)), config)


def modernbert_config(config: BertPreConfig) -> ModernBertConfig:
    """The stock config of a "modern" model: attention to all positions in every layer, one rotary base.

    The last layer is called a sliding one, whose window no text leaves: transformers 5.8 to 5.15 read no config whose
    layers are all of one kind, though they give each kind a rotary base (5.3 and 5.17 do). So they read no model of one
    layer.
    """
    classifier_dropout = config.classifier_dropout
    full_layers = max(config.num_hidden_layers - 1, 1)
    stock = ModernBertConfig(
        **_copy_fields(config, SHARED_FIELDS + MODERNBERT_FIELDS),
        layer_types=["full_attention"] * full_layers + ["sliding_attention"] * (config.num_hidden_layers - full_layers),
        local_attention=UNLIMITED_WINDOW,
        # Both kinds are set, because the class would fill in its own base for the unused one.
        rope_parameters={
            kind: {"rope_type": "default", "rope_theta": config.rope_theta}
            for kind in ("full_attention", "sliding_attention")
        },
        hidden_activation=config.hidden_act,
        classifier_activation=config.hidden_act,
        norm_eps=config.layer_norm_eps,
        embedding_dropout=config.hidden_dropout_prob,
        mlp_dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        classifier_dropout=config.hidden_dropout_prob if classifier_dropout is None else classifier_dropout,
        bos_token_id=config.cls_token_id,
        eos_token_id=config.sep_token_id,
    )
    # transformers 4 reads these in place of layer_types and rope_parameters. Without them it would silently give two
    # of three layers local attention, and all of them other rotary bases.
    stock.global_attn_every_n_layers = 1
    stock.global_rope_theta = stock.local_rope_theta = config.rope_theta
    return _with_rest(stock, config)


def is_from_bertpre(config: PreTrainedConfig) -> bool:
    """Whether a config is that of a BertPre model converted to a stock class."""
    return config.model_type in ("bert", "modernbert") and isinstance(getattr(config, REST, None), dict)


def config_from_stock(config: PreTrainedConfig) -> BertPreConfig:
    """The BertPre config of a stock BERT or ModernBERT; equal to the original if it was a BertPre model's.

    Raises ValueError for features that BertPre lacks.
    """
    ours = config_from_bert(config) if isinstance(config, BertConfig) else config_from_modernbert(config)
    for name, value in getattr(config, REST, {}).items():
        setattr(ours, name, value)
    return ours


def config_from_bert(config: BertConfig) -> BertPreConfig:
    """The BertPre config of a stock BERT encoder; the token ids that BertConfig does not store become None."""
    _require(not config.is_decoder and not config.add_cross_attention, "it is a decoder")
    _require(config.tie_word_embeddings, "its decoder has weights of its own")
    fields = _copy_fields(config, SHARED_FIELDS + BERT_FIELDS)
    unknown = dict.fromkeys(("unk_token_id", "cls_token_id", "sep_token_id", "mask_token_id"))
    return BertPreConfig(architecture="bert", tie_word_embeddings=config.tie_word_embeddings, **unknown, **fields)


def config_from_modernbert(config: ModernBertConfig) -> BertPreConfig:
    """The BertPre config of a stock ModernBERT; raises ValueError for features that BertPre lacks."""
    ropes = [config.rope_parameters[kind] for kind in sorted(set(config.layer_types))]
    rope, sees_all = ropes[0], config.local_attention >= UNLIMITED_WINDOW
    _require(config.tie_word_embeddings, "its decoder has weights of its own")
    _require(sees_all or set(config.layer_types) == {"full_attention"}, "some of its layers use local attention")
    _require(all(each["rope_theta"] == rope["rope_theta"] for each in ropes), "its layers differ in their rotary bases")
    _require(all(each["rope_type"] == "default" for each in ropes), "its rotary positions are scaled")
    biases = (config.norm_bias, config.attention_bias, config.mlp_bias, config.classifier_bias)
    _require(not any(biases) and config.decoder_bias, "its layers have other biases")
    _require(config.hidden_activation == config.classifier_activation, "its head has a different activation")
    _require(config.embedding_dropout == config.mlp_dropout, "its embeddings and MLP have different dropout")
    return BertPreConfig(
        architecture="modern",
        **_copy_fields(config, SHARED_FIELDS + MODERNBERT_FIELDS),
        rope_theta=rope["rope_theta"],
        hidden_act=config.hidden_activation,
        layer_norm_eps=config.norm_eps,
        hidden_dropout_prob=config.mlp_dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        classifier_dropout=config.classifier_dropout,
        unk_token_id=None,
        mask_token_id=None,
        tie_word_embeddings=config.tie_word_embeddings,
    )


def _with_rest(stock: PreTrainedConfig, config: BertPreConfig) -> Any:
    """The stock config, which also keeps the fields that it has no place for."""
    known = config_from_stock(stock)
    rest = {name: getattr(config, name) for name in BertPreConfig.__annotations__}
    setattr(stock, REST, {name: value for name, value in rest.items() if value != getattr(known, name)})
    if config.problem_type == "regression":
        stock.sentence_transformers = dict(AS_A_NUMBER)
    return stock


def _check_architecture(model: PreTrainedModel, wanted: str, alternative: str) -> None:
    architecture = getattr(model.config, "architecture", None)
    if architecture != wanted:
        raise ValueError(
            f"this conversion needs a BertPre model of architecture {wanted!r}, got {type(model).__name__} of "
            f"{architecture!r}; use {alternative} instead"
        )


def _class_name(model: PreTrainedModel) -> str:
    return type(model).__name__.removeprefix("FSDP")  # fully_shard makes a class of its own


def _counterpart(model: PreTrainedModel, table: Classes) -> type[PreTrainedModel]:
    counterparts = {source.__name__: target for source, target in table.items()}
    name = _class_name(model)
    if name not in counterparts:
        raise ValueError(f"{name} has no counterpart; convert one of: {', '.join(counterparts)}")
    return counterparts[name]


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(f"this stock model cannot become a BertPre model: {reason}")


def _copy_fields(config: PreTrainedConfig, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: copy(getattr(config, name)) for name in names}


def _rename(name: str, prefixes: tuple[tuple[str, str], ...]) -> str:
    for source, target in prefixes:
        if name.startswith(source):
            return target + name.removeprefix(source)
    raise ValueError(f"no rule renames the weight {name}")


def _build(
    model_class: type[PreTrainedModel], config: PreTrainedConfig, state: StateDict, like: PreTrainedModel
) -> PreTrainedModel:
    config._attn_implementation = like.config._attn_implementation
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn on the CPU and overwritten
        model = model_class(config)
    model.load_state_dict(state)
    device = next(iter(state.values())).device  # of given weights, which may be kept off the model's GPU
    return cast_weights(model.to(device=device), like.dtype).train(like.training)
