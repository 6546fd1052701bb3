"""The BertPre models: the encoder, pretraining, classifiers, and their losses.

Shapes: B batch, S sequence, E hidden, V vocabulary, K slots for masked positions, C classes.

This file and its siblings need only torch, transformers and each other, because saving a model with custom code copies
these files alone.
"""

import math
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.dynamic_module_utils import custom_object_save
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple, is_flash_attention_requested, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_bertpre import BertPreConfig
from .dropout_bertpre import Dropout
from .layers_bertpre import (
    BertEmbeddings,
    BertEncoder,
    BertLayer,
    BertSelfAttention,
    MaskedLMHead,
    ModernAttention,
    ModernEmbeddings,
    ModernEncoder,
    ModernLayer,
    Pooler,
    PredictionTransform,
    at_positions,
    is_watched,
    mean_pool,
)
from .losses_bertpre import (
    Count,
    classification_loss,
    cross_entropy,
    makes_own_gradient,
)
from .rows_bertpre import PACKED_ROWS, encode_tokens, encode_unpadded, take_tokens

# ---- what all models share -------------------------------------------------------------------------------------------


class BertPrePreTrainedModel(PreTrainedModel):
    """Loading, attention kernels and initial weights of all BertPre models.

    | standard deviation of      | "bert", normal    | "modern", normal truncated at 2 std             |
    |----------------------------|-------------------|-------------------------------------------------|
    | matrices not named below   | initializer_range | initializer_range                               |
    | `Wo`, `transform.dense`    | initializer_range | initializer_range / sqrt(2 * num_hidden_layers) |
    | `classifier`               | initializer_range | 1 / sqrt(hidden_size)                           |

    Biases start at 0, norms at 1. Sources: stock BERT; ModernBERT, which follows Megatron (Shoeybi et al. 2019): the
    residual stream is a sum of two outputs `Wo` per layer, so each starts smaller the more layers there are.
    """

    config_class = BertPreConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # Trainer passes its count of labels and leaves the scale of the loss to the model
    _keys_to_ignore_on_load_missing = [r"embeddings\.second_segment$"]  # absent from ModernBERT's weights: it is 0
    _keys_to_ignore_on_load_unexpected = [r"^bert\.pooler\.", r"^cls\."]  # in classes without these
    _input_embed_layer = "word_embeddings"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _no_split_modules: list[str] | None = (
        None  # the encoder names its own layers: FSDP refuses names of layers that a model lacks
    )
    _can_record_outputs = {
        "hidden_states": [BertLayer, ModernLayer],
        "attentions": [BertSelfAttention, ModernAttention],
    }

    def save_pretrained(self, save_directory: Any, **options: Any) -> None:
        """As in transformers, with this file and its siblings; `auto_map` says which class each Auto class stands for.

        Transformers itself would copy the file of `type(self)`, which may be a class of the user's or of FSDP's.
        """
        classes = {"AutoConfig": BertPreConfig, **AUTO_CLASSES}
        self.config.auto_map = {
            name: f"{each.__module__.rpartition('.')[2]}.{each.__name__}" for name, each in classes.items()
        }
        if options.get("is_main_process", True):
            os.makedirs(save_directory, exist_ok=True)
            custom_object_save(BertPreModel, save_directory)
        super().save_pretrained(save_directory, **options)

    def _get_files_timestamps(self, working_dir: str | os.PathLike[str]) -> dict[str, float]:
        """The files that `save_pretrained(push_to_hub=True)` found there, without the code, which it has just copied.

        What is among them and did not change since is not uploaded.
        """
        found = super()._get_files_timestamps(working_dir)
        return {name: time for name, time in found.items() if not name.endswith(".py")}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MaskedLMHead):
            init.zeros_(module.bias)
        if isinstance(module, ModernEmbeddings):
            init.zeros_(module.second_segment)
        if self.config.architecture == "modern" and isinstance(module, nn.Linear | nn.Embedding):
            std = self._modern_std(module)
            init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)

    def _modern_std(self, module: nn.Module) -> float:
        # A layer carries its role itself. Its parent cannot assign it here: for classes outside transformers,
        # `_init_weights` is not called with modules that hold no parameter directly.
        config, role = self.config, getattr(module, "init_role", None)
        if role == "output":
            return config.initializer_range / math.sqrt(2 * config.num_hidden_layers)
        return config.hidden_size**-0.5 if role == "classifier" else config.initializer_range


# ---- the encoder -----------------------------------------------------------------------------------------------------


@dataclass
class BertPreModelOutput(BaseModelOutputWithPooling):
    """Also `read_states` (B, R, E), the last hidden states at the positions that the caller reads."""

    read_states: Tensor | None = None


class BertPreModel(BertPrePreTrainedModel):
    """The encoder of either architecture, with a pooler unless `add_pooling_layer` is False."""

    def __init__(self, config: BertPreConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        modern = config.architecture == "modern"
        self.embeddings = ModernEmbeddings(config) if modern else BertEmbeddings(config)
        self.encoder = ModernEncoder(config) if modern else BertEncoder(config)
        self.pooler = Pooler(config) if add_pooling_layer else None
        # Not the embeddings: `forward` calls the table of words by itself, past what FSDP would attach to them.
        self._no_split_modules = ["ModernLayer" if modern else "BertLayer"]
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        read_positions: Tensor | None = None,
        pooled: bool = True,
        token_index: Tensor | None = None,
        token_slots: Tensor | None = None,
        row_bounds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BertPreModelOutput:
        """Encode ids (B, S), or embeddings (B, S, E), to hidden states (B, S, E) and pooled ones (B, E).

        `attention_mask` is (B, S), 1 for tokens and 0 for padding; or (B, 1, S, S), likewise or, in floats, added to
        the scores; or None, which is faster, when no row is padded. With flash attention no layer computes padding, and
        the hidden states there are 0, unless `output_hidden_states` asks for all layers. Transformers' arguments for
        packed rows (`cu_seq_lens_q` and its siblings) reach that kernel unchanged; eager, sdpa and flex attention give
        way to `attention_of_rows`.

        `read_positions` (B, R) are the only positions whose last hidden states the caller reads, as `read_states`
        (B, R, E); `pooled` says whether the pooled states are read too. Where nothing else can be seen, the last layer
        then leaves out the other positions, and `last_hidden_state` is None.

        `token_index` (T,), `token_slots` (B, S) and `row_bounds` (N + 1,) let no layer compute padding, at shapes that
        do not depend on the rows' lengths: `unpadded` of bertpre/training/unpadding.py makes and explains them. States
        at padding are then those of other positions, and recorded ones are (1, T, E).

        Raises ValueError unless exactly one of ids and embeddings is given, where a row is too long for "bert", and
        where some but not all of the four arguments for packed rows are given.
        """
        given = [each for each in (input_ids, inputs_embeds) if each is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        rows, length, longest = given[0], given[0].shape[1], self.config.max_position_embeddings
        if self.config.architecture == "bert" and length > longest:
            raise ValueError(f"a sequence of {length} tokens exceeds max_position_embeddings={longest}")
        if 0 < sum(kwargs.get(name) is not None for name in PACKED_ROWS) < len(PACKED_ROWS):
            raise ValueError(f"packed rows need all of {', '.join(PACKED_ROWS)}")
        if position_ids is None:
            position_ids = torch.arange(length, device=rows.device).unsqueeze(0)  # (1, S)
        if token_index is not None:
            inputs = (input_ids, token_type_ids, position_ids.expand(rows.shape[:2]), inputs_embeds)
            input_ids, token_type_ids, position_ids, inputs_embeds = take_tokens(inputs, token_index)
        if inputs_embeds is None:
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        hidden_states = self.embeddings(inputs_embeds, token_type_ids, position_ids)
        needed = self._positions_needed(read_positions, pooled, attention_mask, **kwargs)
        is_padding_mask = attention_mask is not None and attention_mask.ndim == 2
        if token_index is not None:
            assert token_slots is not None and row_bounds is not None  # they come together
            places = (position_ids, token_slots, row_bounds, needed)
            hidden_states = encode_tokens(self.encoder, hidden_states, *places, **kwargs)
        elif is_padding_mask and is_flash_attention_requested(self.config) and not kwargs.get("output_hidden_states"):
            hidden_states = encode_unpadded(self.encoder, hidden_states, attention_mask, position_ids, **kwargs)
        else:
            mask = self._kernel_mask(attention_mask, hidden_states)
            hidden_states = self.encoder(hidden_states, mask, position_ids, needed, **kwargs)
        read_states = None
        if read_positions is not None and needed is None:
            read_states = at_positions(hidden_states, read_positions)
        elif read_positions is not None:
            read_states = hidden_states[:, -read_positions.shape[1] :]
        return BertPreModelOutput(
            last_hidden_state=hidden_states if needed is None else None,
            pooler_output=self.pooler(hidden_states, attention_mask) if pooled and self.pooler is not None else None,
            read_states=read_states,
        )

    def _positions_needed(
        self, read_positions: Tensor | None, pooled: bool, attention_mask: Tensor | None, **kwargs: object
    ) -> Tensor | None:
        # The positions (B, R) that the last layer has to compute, [CLS] first if the pooler reads it; None: all.
        if read_positions is None or not read_positions.shape[1]:  # kernels take no rows without a query
            return None
        pooler = self.pooler if pooled else None
        recorded = ("output_hidden_states", "output_attentions")
        others_are_seen = (
            (pooler is not None and pooler.takes_mean)
            or any(kwargs.get(name, getattr(self.config, name, False)) for name in recorded)
            or is_watched(self)
        )
        # A mask of (B, 1, S, S) has a row for each query, and so do rows that the caller or flash attention has packed.
        has_row_per_query = (attention_mask is not None and attention_mask.ndim != 2) or "cu_seq_lens_q" in kwargs
        if others_are_seen or has_row_per_query or self.config._attn_implementation not in ("eager", "sdpa"):
            return None
        return read_positions if pooler is None else F.pad(read_positions, (1, 0))

    def _kernel_mask(self, attention_mask: Tensor | None, hidden_states: Tensor) -> Tensor | None:
        # Given a padding mask, transformers' helper tests whether anything is padded, and the CPU waits for the GPU's
        # answer in every step. It returns a 4-D mask unchanged, so build one here for the kernels that take bool.
        # Without a padding mask there is nothing to mask. Before transformers 5.23 the helper makes a mask of ones all
        # the same under torch.compile, which costs the flash kernel and does not fit the queries of the last layer.
        kernel = self.config._attn_implementation
        if attention_mask is None and kernel in ("eager", "sdpa"):
            return None
        if attention_mask is not None and attention_mask.ndim == 2 and kernel in ("eager", "sdpa"):
            attention_mask = attention_mask[:, None, None, :].bool()  # (B, S) -> (B, 1, 1, S)
        if attention_mask is not None and attention_mask.ndim == 4 and not attention_mask.is_floating_point():
            attention_mask = attention_mask.bool()
        mask = create_bidirectional_mask(self.config, hidden_states, attention_mask)
        if kernel != "eager" or mask is None or mask.dtype != torch.bool:
            return mask
        # Compiled layers of a CPU read a bool for each score slowly: with it a pass at 504 tokens takes 1.23 times as
        # long (benchmarks/attention_mask.py). Half of the lowest number cannot become an infinity in fp16.
        lowest = torch.finfo(hidden_states.dtype).min / 2
        return torch.zeros_like(mask, dtype=hidden_states.dtype).masked_fill(~mask, lowest)


# ---- pretraining -----------------------------------------------------------------------------------------------------

# Every `forward` below lists the encoder's five inputs, because transformers reads their names from its signature:
# Trainer drops the columns of a data set that are not among them.


@dataclass
class BertPreForPreTrainingOutput(ModelOutput):
    """Scalar losses (`loss` is their sum), logits (B, S or K, V) and (B, 2), hidden states and weights on request.

    `num_right` is a scalar, in place of `prediction_logits` where these are not needed.
    """

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    mlm_loss: Tensor | None = None  # what stock BERT lacks comes last: its users take outputs by position too
    nsp_loss: Tensor | None = None
    num_right: Tensor | None = None


class BertPreForPreTraining(BertPrePreTrainedModel):
    """The encoder with masked language modelling and next sentence prediction (Devlin et al. 2018, section 3.1)."""

    # Two losses need two counts. Trainer passes one, so it must scale the loss itself; your own loop passes both,
    # num_items_in_batch and num_pairs_in_batch.
    accepts_loss_kwargs = False
    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__(config)
        self.bert = BertPreModel(config)
        seq_relationship = nn.Linear(config.hidden_size, 2)
        # Stock BERT's keys: `cls` for all heads of pretraining, `seq_relationship` for next sentence prediction.
        self.cls = nn.ModuleDict({"predictions": MaskedLMHead(config), "seq_relationship": seq_relationship})
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder to the vocabulary."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the decoder to the vocabulary and the bias tied to it."""
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        masked_positions: Tensor | None = None,
        num_items_in_batch: Count = None,
        num_pairs_in_batch: Count = None,
        needs_logits: bool = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BertPreForPreTrainingOutput:
        """Score masked tokens and sentence order.

        Without `masked_positions`, `labels` are (B, S) and `prediction_logits` (B, S, V). With it, (B, K), both cover
        those positions only, (B, K) and (B, K, V); an unused slot has any valid position and label -100. The last layer
        then computes nothing that is not read, and without `next_sentence_label` there are no
        `seq_relationship_logits`.
        `next_sentence_label` (B,) is 0 where the second segment follows the first, 1 where it is random. Each loss is a
        sum divided by `num_items_in_batch` or `num_pairs_in_batch` (tensors, if the model is compiled), by default by
        the number of targets in this batch. Without `needs_logits` a CPU that trains scores a few tokens at a time, and
        `num_right`, the number of labels that score highest, comes in place of `prediction_logits`. Raises ValueError
        when labels and logits disagree in shape.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        scores_pairs = masked_positions is None or next_sentence_label is not None
        outputs = self.bert(*inputs, read_positions=masked_positions, pooled=scores_pairs, return_dict=True, **kwargs)
        states = outputs.last_hidden_state if masked_positions is None else outputs.read_states
        seq_relationship_logits = self.cls.seq_relationship(outputs.pooler_output) if scores_pairs else None
        prediction_logits = num_right = mlm_loss = nsp_loss = None
        is_loss_alone = labels is not None and not (needs_logits or torch.is_autocast_enabled("cpu"))
        if is_loss_alone and makes_own_gradient(states, states[..., 0].numel() * self.config.vocab_size):
            mlm_loss, num_right = self.cls.predictions.loss(states, labels, num_items_in_batch)
        else:
            prediction_logits = self.cls.predictions(states)
            mlm_loss = None if labels is None else cross_entropy(prediction_logits, labels, num_items_in_batch)
        if next_sentence_label is not None:
            nsp_loss = cross_entropy(seq_relationship_logits, next_sentence_label.flatten(), num_pairs_in_batch)
        losses = [partial for partial in (mlm_loss, nsp_loss) if partial is not None]
        return BertPreForPreTrainingOutput(
            loss=sum(losses) if losses else None,
            mlm_loss=mlm_loss,
            nsp_loss=nsp_loss,
            prediction_logits=prediction_logits,
            num_right=num_right,
            seq_relationship_logits=seq_relationship_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BertPreForMaskedLM(BertPrePreTrainedModel):
    """The encoder with masked language modelling alone."""

    _tied_weights_keys = BertPreForPreTraining._tied_weights_keys
    get_output_embeddings = BertPreForPreTraining.get_output_embeddings
    set_output_embeddings = BertPreForPreTraining.set_output_embeddings

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__(config)
        self.bert = BertPreModel(config, add_pooling_layer=False)
        self.cls = nn.ModuleDict({"predictions": MaskedLMHead(config)})
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        masked_positions: Tensor | None = None,
        num_items_in_batch: Count = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Score masked tokens; arguments, shapes and errors as in `BertPreForPreTraining.forward`."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.bert(*inputs, read_positions=masked_positions, return_dict=True, **kwargs)
        logits = self.cls.predictions(outputs.last_hidden_state if masked_positions is None else outputs.read_states)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


# ---- classification --------------------------------------------------------------------------------------------------


class BertPreTaskModel(BertPrePreTrainedModel):
    """The encoder with a linear classifier of each token or of the whole sequence.

    In "bert" it reads the encoder's or the pooler's output (Devlin et al. 2018, section 4). "modern" classifies without
    the pooler and puts the transform of masked language modelling, already trained, before the classifier (ModernBERT).
    """

    def __init__(self, config: BertPreConfig, of_sequence: bool) -> None:
        super().__init__(config)
        modern = config.architecture == "modern"
        self.bert = BertPreModel(config, add_pooling_layer=of_sequence and not modern)
        if modern:  # under the name it has in pretraining, so that from_pretrained finds it
            self.cls = nn.ModuleDict({"predictions": nn.ModuleDict({"transform": PredictionTransform(config)})})
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = Dropout(dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.classifier.init_role = "classifier"
        self.post_init()

    def pool(self, outputs: BertPreModelOutput, attention_mask: Tensor | None) -> Tensor:
        """One vector per sequence, (B, E): the pooler's, or in "modern" [CLS] or the mean by `classifier_pooling`."""
        if self.config.architecture == "bert":
            return outputs.pooler_output
        if self.config.classifier_pooling == "mean":
            return mean_pool(outputs.last_hidden_state, attention_mask)
        states = outputs.last_hidden_state if outputs.read_states is None else outputs.read_states
        return states[:, 0]

    def classify(self, hidden_states: Tensor) -> Tensor:
        """Logits (..., C) of tokens (B, S, E) or pooled sequences (B, E)."""
        if self.config.architecture == "modern":
            hidden_states = self.cls.predictions.transform(hidden_states)
        return self.classifier(self.dropout(hidden_states))


class BertPreForSequenceClassification(BertPreTaskModel):
    """The encoder with a classifier of sequences (Devlin et al. 2018, section 4.1)."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__(config, of_sequence=True)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Count = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Classify sequences, logits (B, C); `labels` are (B,), or (B, C) for multi-label or multi-target problems."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        rows = inputs_embeds if input_ids is None else input_ids
        reads_cls = self.config.architecture == "bert" or self.config.classifier_pooling == "cls"
        read_positions = None
        if reads_cls and self.training and rows is not None:  # in evaluation as stock models compute, to the last bit
            read_positions = torch.zeros(rows.shape[0], 1, dtype=torch.long, device=rows.device)
        outputs = self.bert(*inputs, read_positions=read_positions, return_dict=True, **kwargs)
        logits = self.classify(self.pool(outputs, attention_mask))
        loss = None if labels is None else classification_loss(self.config, logits, labels, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class BertPreForTokenClassification(BertPreTaskModel):
    """The encoder with a classifier of each token, as for named entities (Devlin et al. 2018, section 5.3)."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__(config, of_sequence=False)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Count = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """Classify tokens, logits (B, S, C); `labels` (B, S) are -100 at positions to ignore."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.bert(*inputs, return_dict=True, **kwargs)
        logits = self.classify(outputs.last_hidden_state)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


# ---- Auto classes ----------------------------------------------------------------------------------------------------

AUTO_CLASSES = {
    "AutoModel": BertPreModel,
    "AutoModelForPreTraining": BertPreForPreTraining,
    "AutoModelForMaskedLM": BertPreForMaskedLM,
    "AutoModelForSequenceClassification": BertPreForSequenceClassification,
    "AutoModelForTokenClassification": BertPreForTokenClassification,
}
__all__ = [model_class.__name__ for model_class in AUTO_CLASSES.values()]


# Not in a copy of this file in a model's folder, which the config's auto_map finds.
if __package__ == "bertpre.model":
    for _auto_name, _model_class in AUTO_CLASSES.items():
        getattr(transformers, _auto_name).register(BertPreConfig, _model_class)
