"""The BertPre models: the heads of pretraining and of the tasks that follow it, and their losses.

Shapes: B batch, S sequence, E hidden, V vocabulary, K slots for masked positions, C classes. This file and its siblings
need only torch, transformers and each other, because saving a model with custom code copies these alone.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_bertpre import BertPreConfig
from .encoder_bertpre import BertPreModel, BertPrePreTrainedModel
from .layers_bertpre import Dropout, MaskedLMHead, PredictionTransform, mean_pool

IGNORE_INDEX = -100  # a label that is no target

Count = Tensor | int | None


# ---- losses ----------------------------------------------------------------------------------------------------------


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


# ---- pretraining -----------------------------------------------------------------------------------------------------


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


class BertPreForPreTraining(BertPrePreTrainedModel):
    """The encoder with both objectives: masked language modelling and next sentence prediction.

    Tasks 1 and 2 of Devlin et al. 2018, section 3.1.
    """

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


# ---- tasks -----------------------------------------------------------------------------------------------------------


class BertPreTaskModel(BertPrePreTrainedModel):
    """The encoder with a linear layer on what a task looks at: each token, or a summary of the sequence.

    "bert" puts the layer on the encoder's or the pooler's output (Devlin et al. 2018, section 4). "modern" has no
    pooler; the transform that masked language modelling trained goes between (as ModernBERT).
    """

    def __init__(self, config: BertPreConfig, num_outputs: int, of_sequence: bool, name: str = "classifier") -> None:
        super().__init__(config)
        modern = config.architecture == "modern"
        self.bert = BertPreModel(config, add_pooling_layer=of_sequence and not modern)
        if modern:  # under the name it has in pretraining, so that from_pretrained finds it
            self.cls = nn.ModuleDict({"predictions": nn.ModuleDict({"transform": PredictionTransform(config)})})
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = Dropout(dropout)
        linear = nn.Linear(config.hidden_size, num_outputs)
        linear.initial_std = config.hidden_size**-0.5
        self.add_module(name, linear)
        self.post_init()

    def describe(self, hidden_states: Tensor) -> Tensor:
        """What the linear layer of a task reads, for tokens (B, S, E) or summaries (B, E): the same shape."""
        if self.config.architecture == "modern":
            hidden_states = self.cls.predictions.transform(hidden_states)
        return self.dropout(hidden_states)

    def summarize(self, outputs: BaseModelOutputWithPooling, attention_mask: Tensor | None) -> Tensor:
        """One vector for each sequence, (B, E): the pooler's, or the [CLS] token's or mean by `classifier_pooling`."""
        if self.config.architecture == "bert":
            return outputs.pooler_output
        hidden_states = outputs.last_hidden_state  # (B, S, E)
        is_cls = self.config.classifier_pooling == "cls"
        return hidden_states[:, 0] if is_cls else mean_pool(hidden_states, attention_mask)


class BertPreForSequenceClassification(BertPreTaskModel):
    """The encoder with a classifier of whole sequences (Devlin et al. 2018, section 4.1)."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__(config, config.num_labels, of_sequence=True)

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
        logits = self.classifier(self.describe(self.summarize(outputs, attention_mask)))
        loss = None if labels is None else classification_loss(self.config, logits, labels, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class BertPreForTokenClassification(BertPreTaskModel):
    """The encoder with a classifier of each token, as for named entities (Devlin et al. 2018, section 5.3)."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__(config, config.num_labels, of_sequence=False)

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
        """Classify tokens, logits (B, S, C); `labels` (B, S) are -100 where there is nothing to predict."""
        outputs = self.bert(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.describe(outputs.last_hidden_state))
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class BertPreForQuestionAnswering(BertPreTaskModel):
    """The encoder with scores for where an answer starts and ends (Devlin et al. 2018, section 4.2).

    Raises ValueError unless `config.num_labels` is 2.
    """

    def __init__(self, config: BertPreConfig) -> None:
        if config.num_labels != 2:
            raise ValueError(f"question answering scores start and end: num_labels must be 2, got {config.num_labels}")
        super().__init__(config, 2, of_sequence=False, name="qa_outputs")

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """Score starts and ends, logits (B, S) each; positions (B,) of S and more have been cut off and do not count.

        The loss is the mean of both.
        """
        outputs = self.bert(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        hidden_states = outputs.last_hidden_state
        if self.config.architecture == "modern":  # stock BERT has no dropout here
            hidden_states = self.describe(hidden_states)
        start_logits, end_logits = self.qa_outputs(hidden_states).unbind(-1)  # (B, S, 2) -> 2 x (B, S)
        loss = None
        if start_positions is not None and end_positions is not None:
            pairs = ((start_logits, start_positions.flatten()), (end_logits, end_positions.flatten()))
            inside = [
                (logits, positions.clamp(min=0).masked_fill(positions >= logits.shape[1], IGNORE_INDEX))
                for logits, positions in pairs
            ]
            loss = sum(cross_entropy(logits, positions, None) for logits, positions in inside) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class BertPreForMultipleChoice(BertPreTaskModel):
    """The encoder with one score for each of several sequences, the highest of which is the choice (section 4.4)."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__(config, 1, of_sequence=True)

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
    ) -> MultipleChoiceModelOutput:
        """Score C choices, logits (B, C); the inputs are (B, C, S), or (B, C, S, E), and `labels` (B,)."""
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        num_choices = next(tensor.shape[1] for tensor in (input_ids, inputs_embeds) if tensor is not None)
        flat = [None if tensor is None else tensor.flatten(0, 1) for tensor in given]  # (B, C, ...) -> (B * C, ...)
        outputs = self.bert(*flat, **kwargs)
        logits = self.classifier(self.describe(self.summarize(outputs, flat[1]))).view(-1, num_choices)  # (B, C)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


# ---- Auto classes ----------------------------------------------------------------------------------------------------

AUTO_CLASSES = {
    "AutoModel": BertPreModel,
    "AutoModelForPreTraining": BertPreForPreTraining,
    "AutoModelForMaskedLM": BertPreForMaskedLM,
    "AutoModelForNextSentencePrediction": BertPreForNextSentencePrediction,
    "AutoModelForSequenceClassification": BertPreForSequenceClassification,
    "AutoModelForTokenClassification": BertPreForTokenClassification,
    "AutoModelForQuestionAnswering": BertPreForQuestionAnswering,
    "AutoModelForMultipleChoice": BertPreForMultipleChoice,
}
__all__ = [model_class.__name__ for model_class in AUTO_CLASSES.values()]


def register_for_auto_class() -> None:
    """Make `save_pretrained` copy these four files, so that the folder loads with `trust_remote_code=True`."""
    BertPreConfig.register_for_auto_class()
    for auto_name, model_class in AUTO_CLASSES.items():
        model_class.register_for_auto_class(auto_name)


# A copy of this file on the Hub is found through its config's auto_map; it must leave an installed bertpre alone.
if __package__ == "bertpre.model":
    transformers.AutoConfig.register(BertPreConfig.model_type, BertPreConfig)
    for _auto_name, _model_class in AUTO_CLASSES.items():
        getattr(transformers, _auto_name).register(BertPreConfig, _model_class)
