"""Size and arithmetic of a BertPre model, computed from its configuration alone.

Parameters of the pretraining model (E hidden, I intermediate, V vocabulary, P positions, T segments, L layers):

 1. embeddings           bert: (V + P + T) E + 2E                    modern: V E + 2E
 2. attention of a layer bert: 4 (E^2 + E) + 2E                      modern: 4 E^2 + E (the first layer: no norm, 4 E^2)
 3. MLP of a layer       bert: (E I + I) + (I E + E) + 2E            modern: 3 E I + E
 4. after the layers     bert: -                                     modern: E (final norm)
 5. pooler               E^2 + E
 6. MLM head             bert: E^2 + E + 2E + V                      modern: E^2 + E + V (the decoder is V E of line 1)
 7. NSP head             2E + 2

FLOPs per token, forward (a multiplication and an addition count as two; S sequence length, m = masked positions / S):

 8. A matrix product of (n, a) and (a, b) costs 2 n a b, so a linear layer costs 2 a b for each token it sees.
 9. Linear layers of a layer: 2 (4 E^2 + 2 E I) in bert, 2 (4 E^2 + 3 E I) in modern.
10. Attention of a layer: in each of H heads the scores, (S, D) by (D, S), and the mixing, (S, S) by (S, D), cost
    2 S^2 D each; together 4 S^2 D H = 4 S^2 E per sequence, 4 S E per token.
11. MLM head, at masked positions only: m 2 (E^2 + E V).
12. Pooler and NSP head, once per sequence: 2 (E^2 + 2 E) / S.
13. Total: L (line 9 + line 10) + line 11 + line 12. Embedding look-ups, norms, activations, softmax and dropout are
    left out, as usual (Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022, appendix B).
14. These are the full model's FLOPs. bertpre computes fewer: where `masked_positions` is given, the last layer leaves
    out positions that nothing reads. Rates and MFU count the full model's all the same, so they compare across runs.
15. Training costs three times the forward pass: for each matrix product, the backward pass computes two of the same
    size, the gradients of its two factors. Recomputation under activation checkpointing is not counted.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_bertpre import BertPreConfig


@dataclass(frozen=True)
class Sizes:
    """What the formulas need of a configuration, for callers that would rather not import transformers."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2


def count_parameters(config: "BertPreConfig | Sizes") -> int:
    """Number of parameters of `BertPreForPreTraining`; tied ones count once (lines 1 to 7)."""
    hidden, intermediate, vocabulary = config.hidden_size, config.intermediate_size, config.vocab_size
    pooler_and_nsp = (hidden**2 + hidden) + (2 * hidden + 2)
    if config.architecture == "bert":
        embeddings = (vocabulary + config.max_position_embeddings + config.type_vocab_size) * hidden + 2 * hidden
        attention = 4 * (hidden**2 + hidden) + 2 * hidden
        mlp = (hidden * intermediate + intermediate) + (intermediate * hidden + hidden) + 2 * hidden
        layers = config.num_hidden_layers * (attention + mlp)
        mlm_head = hidden**2 + hidden + 2 * hidden + vocabulary
    else:
        embeddings = vocabulary * hidden + 2 * hidden
        attention = 4 * hidden**2 + hidden
        mlp = 3 * hidden * intermediate + hidden
        # The first layer has one norm less; the final norm takes its place in the sum.
        layers = config.num_hidden_layers * (attention + mlp)
        mlm_head = hidden**2 + hidden + vocabulary
    return embeddings + layers + pooler_and_nsp + mlm_head


def flops_per_token(
    config: "BertPreConfig | Sizes", sequence_length: int, masked_fraction: float, training: bool = True
) -> float:
    """FLOPs of `BertPreForPreTraining` per token of a sequence, forward or forward and backward (lines 8 to 15).

    It is the full model's, whatever the last layer leaves out (line 14).
    `masked_fraction` is the number of positions whose vocabulary logits are computed, unused slots included, divided by
    `sequence_length`: 1.0 when the model runs without `masked_positions`. Padding tokens cost as much as others.
    Raises ValueError for a length below 1 or a fraction outside [0, 1].
    """
    if sequence_length < 1 or not 0 <= masked_fraction <= 1:
        raise ValueError(
            f"sequence_length must be at least 1 and masked_fraction in [0, 1], got {sequence_length} and "
            f"{masked_fraction}"
        )
    hidden, intermediate = config.hidden_size, config.intermediate_size
    mlp_matrices = 2 if config.architecture == "bert" else 3
    linear = 2 * (4 * hidden**2 + mlp_matrices * hidden * intermediate)
    attention = 4 * sequence_length * hidden
    mlm_head = masked_fraction * 2 * (hidden**2 + hidden * config.vocab_size)
    pooler_and_nsp = 2 * (hidden**2 + 2 * hidden) / sequence_length
    forward = config.num_hidden_layers * (linear + attention) + mlm_head + pooler_and_nsp
    return 3 * forward if training else forward
