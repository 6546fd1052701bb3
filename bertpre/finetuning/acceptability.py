"""Which sentence of a pair a masked language model finds likelier."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from bertpre.errors import UserError
from bertpre.finetuning.encoding import whole_backend
from bertpre.finetuning.inference import compile_layers, pays_to_compile
from bertpre.finetuning.pseudo_likelihood import score_from_left, score_tokens, word_ends
from bertpre.model.casting import in_type
from bertpre.runtime import choose_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CLOSE = 0.6  # nats; between a pair's sentences bf16 was off by 0.45 at most (docs/experiments.md, 2026-11-25, tenth)
SHARE_OF_CLOSE = 0.1  # of the pairs, about


@dataclass(frozen=True)
class SentenceScorer:
    """Scores a sentence by the log-likelihoods of its tokens, with `causal` from those before each alone.

    `exact` computes in fp32. Where there is `quick`, in bf16 or fp16, it reads all pairs, and `exact` the close ones.
    """

    tokenizer: "PreTrainedTokenizerBase"
    exact: "PreTrainedModel"
    quick: "PreTrainedModel | None" = None
    causal: bool = False

    @classmethod
    def for_texts(
        cls, network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", texts: list[str], causal: bool = False
    ) -> Self:
        """A scorer with `quick` where the device multiplies its numbers; layers are compiled where texts are many."""
        dtype = choose_dtype("auto", network.device)
        lengths = np.array([len(ids) for ids in encode(tokenizer, texts)])
        reads = lengths ** (1 if causal else 2)  # a text is read once for each of its tokens, with `causal` once
        if dtype == torch.float32:
            return cls(tokenizer, compiled(network, reads.sum()), None, causal)
        quick = compiled(in_type(network, dtype), reads.sum())
        return cls(tokenizer, compiled(network, SHARE_OF_CLOSE * reads.sum()), quick, causal)

    def pair_scores(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        """The scores (N, 2) of the sentences of pairs; only those that differ by less than CLOSE nats are exact.

        Raises UserError where a score is not finite.
        """
        scores = self.scores(self.exact if self.quick is None else self.quick, sides(pairs)).reshape(-1, 2)
        is_close = np.abs(scores[:, 0] - scores[:, 1]) < CLOSE
        close = np.flatnonzero(is_close | ~np.isfinite(scores).all(axis=1))  # fp16 may overflow
        if self.quick is not None and len(close):
            again = [pairs[number] for number in close]
            scores[close] = self.scores(self.exact, sides(again)).reshape(-1, 2)
        if (bad := np.flatnonzero(~np.isfinite(scores).all(axis=1))).size:
            raise UserError(f"the model's score is not a finite number: {pairs[bad[0]][0]!r}")
        return scores

    def scores(self, network: "PreTrainedModel", texts: list[str]) -> np.ndarray:
        """The sum (N,) of the log-likelihoods of each sentence's tokens.

        The later tokens of the same word are masked too: otherwise they reveal the pieces of a rare word (Kauf and
        Ivanova 2023, PLL-word-l2r). Words are those that the tokenizer splits into pieces. Raises UserError if a text
        has no token.
        """
        encodings = whole_backend(self.tokenizer).encode_batch(texts, add_special_tokens=False)
        rows = [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]
        if empty := [text for text, row in zip(texts, rows, strict=True) if not len(row)]:
            raise UserError(f"a sentence has no token: {empty[0]!r}")
        if self.causal:
            return np.array([row.sum(dtype=np.float64) for row in score_from_left(network, self.tokenizer, rows)])
        ends = [word_ends(encoding.word_ids) for encoding in encodings]  # type: ignore[arg-type]  # no special tokens: no None
        found = score_tokens(network, self.tokenizer, rows, ends)
        return np.array([values.sum(dtype=np.float64) for values, _ in found])


def compiled(network: "PreTrainedModel", tokens: float) -> "PreTrainedModel":
    """The network, with its layers compiled where so many tokens pay for it."""
    return compile_layers(network) if pays_to_compile(network, int(tokens)) else network


def sides(pairs: list[tuple[str, str]]) -> list[str]:
    """Both sentences of each pair, one pair after the other."""
    return [side for pair in pairs for side in pair]


def encode(tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> list[np.ndarray]:
    """Token ids of texts, without special tokens."""
    encodings = whole_backend(tokenizer).encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]


def share_preferred(scores: np.ndarray) -> dict[str, Any]:
    """How often the first score of a pair (N, 2) is the higher one; the number of pairs, and of those that tie."""
    better, worse = scores.T
    ties = int((better == worse).sum())
    return {"accuracy": float((better > worse).mean()), "pairs": len(scores), "ties": ties}
