"""The BertPre models: the encoder, the heads of pretraining and the classifier, their losses and initial weights.

Shapes: B batch, S sequence, E hidden, V vocabulary, K slots for masked positions, C classes. This file and its siblings
need only torch, transformers and each other, because saving a model with custom code copies these three alone.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    NextSentencePredictorOutput,
    SequenceClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_bertpre import BertPreConfig
from .layers_bertpre import (
    BertEmbeddings,
    BertEncoder,
    BertLayer,
    BertSelfAttention,
    ModernAttention,
    ModernEmbeddings,
    ModernEncoder,
    ModernLayer,
    Pooler,
    mean_pool,
    residual_std,
)

IGNORE_INDEX = -100  # a label that is no target

Count = Tensor | int | None


# ---- heads and losses ------------------------------------------------------------------------------------------------


class PredictionTransform(nn.Module):
    """Projection, activation and norm before the vocabulary: (..., E). "modern" has it without biases."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        bias = config.architecture == "bert"
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)
        self.dense.initial_std = residual_std(config)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.LayerNorm(self.activation(self.dense(hidden_states)))


class MaskedLMHead(nn.Module):
    """Scores of the vocabulary by the transposed token embeddings plus a bias: (B, S, E) to (B, S, V).

    With positions (B, K) only the hidden states there are scored: (B, K, V).
    """

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        self.transform = PredictionTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))  # tied to the decoder's; BERT stores it by this name

    def forward(self, hidden_states: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is not None:
            index = positions.unsqueeze(-1).expand(-1, -1, hidden_states.shape[-1])  # (B, K) -> (B, K, E)
            hidden_states = hidden_states.gather(1, index)  # (B, S, E) -> (B, K, E)
        return self.decoder(self.transform(hidden_states))


def divide_loss(loss_sum: Tensor, num_items: Tensor | int) -> Tensor:
    """Divide a summed loss by a count, by 1 where there was nothing to count: then the loss is 0 and not NaN."""
    return loss_sum / torch.as_tensor(num_items, device=loss_sum.device).clamp(min=1)


def check_labels(labels: Tensor, shape: torch.Size) -> None:
    """Raise ValueError unless the labels have this shape; torch would broadcast some mistakes away."""
    if labels.shape != shape:
        raise ValueError(f"labels of shape {tuple(labels.shape)} do not fit these logits, which need {tuple(shape)}")


def cross_entropy(logits: Tensor, labels: Tensor, num_items: Count) -> Tensor:
    """Cross entropy in fp32 of logits (..., C) against labels (...), summed and divided by `num_items`.

    The default of `num_items` is the number of labels that are not -100. Raises ValueError when the shapes disagree.
    """
    check_labels(labels, logits.shape[:-1])
    flat_logits = logits.float().flatten(0, -2)  # (..., C) -> (N, C)
    loss_sum = F.cross_entropy(flat_logits, labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
    return divide_loss(loss_sum, (labels != IGNORE_INDEX).sum() if num_items is None else num_items)


def classification_loss(config: BertPreConfig, logits: Tensor, labels: Tensor, num_items: Count) -> Tensor:
    """Loss of logits (B, C) by `config.problem_type`; None is guessed from the labels, as transformers does.

    Summed and divided by `num_items`, by default the label entries: B for one label, B * C for several or regression.
    """
    problem = config.problem_type
    if problem is None and config.num_labels == 1:
        problem = "regression"
    elif problem is None:
        problem = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
    if problem == "single_label_classification":
        return cross_entropy(logits, labels, num_items)
    labels = labels.float() if labels.ndim == 2 else labels.float().unsqueeze(-1)  # (B,) -> (B, 1)
    check_labels(labels, logits.shape)
    element_loss = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
    loss_sum = element_loss(logits.float(), labels, reduction="sum")
    return divide_loss(loss_sum, labels.numel() if num_items is None else num_items)


# ---- models ----------------------------------------------------------------------------------------------------------


@dataclass
class BertPreForPreTrainingOutput(ModelOutput):
    """Scalar losses (`loss` is the sum of the others), logits (B, S or K, V) and (B, 2), and what was recorded."""

    loss: Tensor | None = None
    mlm_loss: Tensor | None = None
    nsp_loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class BertPrePreTrainedModel(PreTrainedModel):
    """What all BertPre models share: loading, attention kernels and the initial weights.

    | standard deviation of   | "bert", normal    | "modern", normal cut at 2 std                   |
    |-------------------------|-------------------|-------------------------------------------------|
    | matrices not below      | initializer_range | initializer_range                               |
    | `Wo`, `transform.dense` | initializer_range | initializer_range / sqrt(2 * num_hidden_layers) |
    | `classifier`            | initializer_range | 1 / sqrt(hidden_size)                           |

    Biases start at 0, norms at 1. Sources: stock BERT; ModernBERT, which follows Megatron (Shoeybi et al. 2019).
    """

    config_class = BertPreConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # Trainer passes its count of labels and leaves the scale of the loss to the model
    _input_embed_layer = "word_embeddings"
    _supports_sdpa = True
    _no_split_modules = ["BertEmbeddings", "BertLayer", "ModernEmbeddings", "ModernLayer"]
    _can_record_outputs = {
        "hidden_states": [BertLayer, ModernLayer],
        "attentions": [BertSelfAttention, ModernAttention],
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MaskedLMHead):
            init.zeros_(module.bias)
        if isinstance(module, ModernEmbeddings):
            init.zeros_(module.second_segment)
        if self.config.architecture == "modern" and isinstance(module, nn.Linear | nn.Embedding):
            # The layer carries its exception itself: for models outside transformers this method never sees modules
            # that hold no parameter directly, so it cannot be told from its parent.
            std = getattr(module, "initial_std", self.config.initializer_range)
            init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)


class BertPreModel(BertPrePreTrainedModel):
    """The encoder of either architecture, with a pooler unless told otherwise."""

    def __init__(self, config: BertPreConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        modern = config.architecture == "modern"
        self.embeddings = ModernEmbeddings(config) if modern else BertEmbeddings(config)
        self.encoder = ModernEncoder(config) if modern else BertEncoder(config)
        self.pooler = Pooler(config) if add_pooling_layer else None
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
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Encode ids (B, S), or embeddings (B, S, E), to hidden states (B, S, E) and a summary (B, E).

        `attention_mask` is (B, S), 1 for tokens and 0 for padding; or (B, 1, S, S), used as it is; or None, which is
        faster, when no row is padded. Raises ValueError unless exactly one of ids and embeddings is given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        if position_ids is None:
            position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device).unsqueeze(0)  # (1, S)
        hidden_states = self.embeddings(inputs_embeds, token_type_ids, position_ids)
        mask = self._kernel_mask(attention_mask, hidden_states)
        hidden_states = self.encoder(hidden_states, mask, position_ids, **kwargs)
        pooled = self.pooler(hidden_states, attention_mask) if self.pooler is not None else None
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def _kernel_mask(self, attention_mask: Tensor | None, hidden_states: Tensor) -> Tensor | None:
        # For a padding mask transformers' helper asks at every step whether anything is padded, and the CPU waits for
        # the GPU's answer. It passes a 4-D mask on untouched, so build that here for the kernels that take bool.
        is_padding_mask = attention_mask is not None and attention_mask.ndim == 2
        if is_padding_mask and self.config._attn_implementation in ("eager", "sdpa"):
            attention_mask = attention_mask[:, None, None, :].bool()  # (B, S) -> (B, 1, 1, S)
        return create_bidirectional_mask(self.config, hidden_states, attention_mask)


class BertPreForPreTraining(BertPrePreTrainedModel):
    """The encoder with both objectives: masked language modelling and next sentence prediction."""

    # Trainer can pass one count and two losses need two, so it shall scale the loss itself. A loop of one's own passes
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
        self.cls = nn.ModuleDict({"predictions": MaskedLMHead(config), "seq_relationship": seq_relationship})
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder onto the vocabulary."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the decoder onto the vocabulary, and the bias tied to it."""
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
        **kwargs: Unpack[TransformersKwargs],
    ) -> BertPreForPreTrainingOutput:
        """Score masked tokens and sentence order (Devlin et al. 2018, section 3.1).

        Without `masked_positions`, `labels` are (B, S) and `prediction_logits` (B, S, V). With it, (B, K), both are
        computed at those positions only, (B, K) and (B, K, V); unused slots hold any valid position and label -100.
        `next_sentence_label` (B,) is 0 where the second segment follows the first, 1 where it is random. Each loss is a
        sum divided by `num_items_in_batch` or `num_pairs_in_batch` (tensors, if the model is compiled), by default by
        the targets of this batch. Raises ValueError when labels and logits disagree in shape.
        """
        outputs = self.bert(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        prediction_logits = self.cls.predictions(outputs.last_hidden_state, masked_positions)
        seq_relationship_logits = self.cls.seq_relationship(outputs.pooler_output)
        mlm_loss = nsp_loss = None
        if labels is not None:
            mlm_loss = cross_entropy(prediction_logits, labels, num_items_in_batch)
        if next_sentence_label is not None:
            nsp_loss = cross_entropy(seq_relationship_logits, next_sentence_label.flatten(), num_pairs_in_batch)
        losses = [partial for partial in (mlm_loss, nsp_loss) if partial is not None]
        return BertPreForPreTrainingOutput(
            loss=sum(losses) if losses else None,
            mlm_loss=mlm_loss,
            nsp_loss=nsp_loss,
            prediction_logits=prediction_logits,
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
        outputs = self.bert(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.cls.predictions(outputs.last_hidden_state, masked_positions)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class BertPreForNextSentencePrediction(BertPrePreTrainedModel):
    """The encoder with next sentence prediction alone."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__(config)
        self.bert = BertPreModel(config)
        self.cls = nn.ModuleDict({"seq_relationship": nn.Linear(config.hidden_size, 2)})
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
        num_items_in_batch: Count = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> NextSentencePredictorOutput:
        """Score sentence order, logits (B, 2); `labels` (B,) are 0 where B follows A, 1 where B is random."""
        outputs = self.bert(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.cls.seq_relationship(outputs.pooler_output)
        loss = None if labels is None else cross_entropy(logits, labels.flatten(), num_items_in_batch)
        return NextSentencePredictorOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class BertPreForSequenceClassification(BertPrePreTrainedModel):
    """The encoder with a classifier of whole sequences.

    "bert" classifies the pooler's output (Devlin et al. 2018, section 4.1); "modern" pools hidden states by
    `config.classifier_pooling`, then applies the transform that masked language modelling trained (as ModernBERT).
    """

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__(config)
        modern = config.architecture == "modern"
        self.bert = BertPreModel(config, add_pooling_layer=not modern)
        if modern:  # under the name it has in pretraining, so that from_pretrained finds it
            self.cls = nn.ModuleDict({"predictions": nn.ModuleDict({"transform": PredictionTransform(config)})})
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.classifier.initial_std = config.hidden_size**-0.5
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
        num_items_in_batch: Count = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Classify sequences, logits (B, C); `labels` are (B,) or, for several labels or targets at once, (B, C)."""
        outputs = self.bert(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(self._summarize(outputs, attention_mask)))
        loss = None if labels is None else classification_loss(self.config, logits, labels, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _summarize(self, outputs: BaseModelOutputWithPooling, attention_mask: Tensor | None) -> Tensor:
        if self.config.architecture == "bert":
            return outputs.pooler_output  # (B, E)
        hidden_states = outputs.last_hidden_state  # (B, S, E)
        is_cls = self.config.classifier_pooling == "cls"
        pooled = hidden_states[:, 0] if is_cls else mean_pool(hidden_states, attention_mask)  # (B, E)
        return self.cls.predictions.transform(pooled)


# ---- Auto classes ----------------------------------------------------------------------------------------------------

AUTO_CLASSES = {
    "AutoModel": BertPreModel,
    "AutoModelForPreTraining": BertPreForPreTraining,
    "AutoModelForMaskedLM": BertPreForMaskedLM,
    "AutoModelForNextSentencePrediction": BertPreForNextSentencePrediction,
    "AutoModelForSequenceClassification": BertPreForSequenceClassification,
}
__all__ = [model_class.__name__ for model_class in AUTO_CLASSES.values()]


def register_for_auto_class() -> None:
    """Make `save_pretrained` copy these three files, so that the folder loads with `trust_remote_code=True`."""
    BertPreConfig.register_for_auto_class()
    for auto_name, model_class in AUTO_CLASSES.items():
        model_class.register_for_auto_class(auto_name)


# A copy of this file on the Hub is found through its config's auto_map; it must leave an installed bertpre alone.
if __package__ == "bertpre.model":
    transformers.AutoConfig.register(BertPreConfig.model_type, BertPreConfig)
    for _auto_name, _model_class in AUTO_CLASSES.items():
        getattr(transformers, _auto_name).register(BertPreConfig, _model_class)
