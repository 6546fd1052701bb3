"""Configuration of the bertpre encoder."""

from dataclasses import is_dataclass
from typing import Any

import transformers

try:
    from huggingface_hub.dataclasses import strict
    from transformers import PreTrainedConfig

    if not is_dataclass(PreTrainedConfig):  # as in transformers 5.0
        raise ImportError
except ImportError:  # a copy of this file in a model's folder
    raise ImportError("the code of this model needs transformers 5.17 or later: pip install -U transformers") from None

ARCHITECTURES = ("bert", "modern")
POOLINGS = ("cls", "mean")
COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)


@strict
class BertPreConfig(PreTrainedConfig):
    """Sizes and choices of a BertPre model; every field is keyword-only and type-checked.

    `architecture` selects the whole layout; the two cannot be mixed:

    - `"bert"`: post-LN, learned positions, segment embeddings, biases (Devlin et al. 2018, section 3).
      `classifier_pooling` must be `"cls"`; `rope_theta` has no effect.
    - `"modern"`: pre-LN, rotary positions, GeGLU, no biases (Warner et al. 2024, "ModernBERT", section 2.1), with full
      attention in every layer. `type_vocab_size` has no effect, and no weight depends on `max_position_embeddings`.

    `intermediate_size` is the width after the activation. The GeGLU of `"modern"` has a second input matrix of that
    width, so two thirds of BERT's width give the same number of parameters. `classifier_dropout=None` means
    `hidden_dropout_prob`. `reads_pairs` and `truncation` (head, tail or head_tail) tell what a classifier was
    trained on, pairs of texts and which ends of long ones; they change no number.
    A value of the wrong type, or one that breaks a rule below, raises an error that names the field
    (StrictDataclassError, a ValueError or TypeError).
    """

    model_type = "bertpre"
    # Without this, Trainer would collect the two partial losses as predictions.
    keys_to_ignore_at_inference = ["mlm_loss", "nsp_loss", "hidden_states", "attentions"]

    architecture: str = "bert"
    vocab_size: int = 30528
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    rope_theta: float | int = 10000.0
    classifier_pooling: str = "cls"
    classifier_dropout: float | int | None = None
    reads_pairs: bool = False
    truncation: str | None = None
    pad_token_id: int | None = 0
    unk_token_id: int | None = 1
    cls_token_id: int | None = 2
    sep_token_id: int | None = 3
    mask_token_id: int | None = 4
    tie_word_embeddings: bool = True

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Any:
        """As in transformers; raises ValueError for a ModernBERT's, whose fields and weights have other names."""
        if isinstance(options.get("truncation"), bool):  # `AutoTokenizer` passes its own options on to here
            options = {name: value for name, value in options.items() if name != "truncation"}
        if config_dict.get("model_type") == "modernbert":
            raise ValueError("this is a stock modernbert model; load it with bertpre.model.load_model")
        return super().from_dict(config_dict, **options)

    @property
    def head_dim(self) -> int:
        """Width of one attention head (D)."""
        return self.hidden_size // self.num_attention_heads

    # These rules run at construction and before saving, in alphabetical order; two of them replace transformers' own.

    def validate_architecture(self) -> None:
        """`architecture` must be one of ARCHITECTURES."""
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {self.architecture!r}")

    def validate_classifier_pooling(self) -> None:
        """`classifier_pooling` must be one of POOLINGS; "bert" classifies the pooler's output, which reads [CLS]."""
        if self.classifier_pooling not in POOLINGS:
            choices = ", ".join(POOLINGS)
            raise ValueError(f"classifier_pooling must be one of {choices}, got {self.classifier_pooling!r}")
        if self.architecture == "bert" and self.classifier_pooling != "cls":
            raise ValueError("classifier_pooling must be 'cls' with architecture 'bert'; 'mean' needs 'modern'")

    def validate_decoder(self) -> None:
        """`is_decoder`, which stock BERT would obey, must not be set."""
        if getattr(self, "is_decoder", False):
            raise ValueError("is_decoder is not read: every token sees both sides; give an attention_mask (B, 1, S, S)")

    def validate_heads(self) -> None:
        """Heads must divide the hidden size; rotary embeddings rotate pairs, so their head dimension must be even."""
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads != 0:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads "
                f"({self.num_attention_heads})"
            )
        if self.architecture == "modern" and self.head_dim % 2 != 0:
            raise ValueError(
                f"architecture 'modern' needs an even head dimension, got hidden_size / num_attention_heads = "
                f"{self.head_dim}"
            )

    def validate_probabilities(self) -> None:
        """Dropout probabilities must be in [0, 1)."""
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} must be in [0, 1), got {value}")

    def validate_rope_parameters(self) -> None:
        """ModernBERT's `rope_parameters`, which transformers would keep without effect, must not be given."""
        if getattr(self, "rope_parameters", None):
            raise ValueError("rope_parameters is not read: give the base of the rotary embeddings as rope_theta")

    def validate_sizes(self) -> None:
        """Counts must be at least 1 and scales positive."""
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("layer_norm_eps", "initializer_range", "rope_theta"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    def validate_tie_word_embeddings(self) -> None:
        """The decoder must be tied to the token embeddings, as in both published architectures."""
        if not self.tie_word_embeddings:
            raise ValueError("tie_word_embeddings must be True: BertPre models have no separate decoder")

    def validate_token_ids(self) -> None:
        """Ids of special tokens must be rows of the embedding table (transformers only warns)."""
        for name in ("pad_token_id", "unk_token_id", "cls_token_id", "sep_token_id", "mask_token_id"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < self.vocab_size:
                raise ValueError(f"{name} must be in [0, vocab_size={self.vocab_size}), got {value}")


__all__ = ["BertPreConfig"]

# A copy of this file in a model's folder is found by the config's auto_map; it must not replace an installed bertpre.
if __package__ == "bertpre.model":
    BertPreConfig.register_for_auto_class()
    transformers.AutoConfig.register(BertPreConfig.model_type, BertPreConfig)
