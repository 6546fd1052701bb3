"""Pseudo-likelihoods of a masked language model: each token is masked in turn, and predicted from all others."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertpre.errors import UserError
from bertpre.finetuning.encoding import Template, in_slices
from bertpre.finetuning.loading import readable_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOKENS = 4096  # in one forward pass, which gives logits for all of them
PER_MILLION = (1000.0, 100.0, 10.0, 1.0, 0.0)  # the lower ends of the bins of token frequency


def running_text(
    network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", rows: list[np.ndarray], counts: np.ndarray
) -> dict[str, Any]:
    """Pseudo-perplexity per token (Salazar et al. 2020, section 2.3), and accuracy by frequency of the masked token.

    `counts` (V,) are the tokens' occurrences in the text that frequencies are taken from.
    """
    scored = list(score_tokens(network, tokenizer, rows))
    likelihoods, right = (np.concatenate([row[part] for row in scored]) for part in (0, 1))
    frequency = counts[np.concatenate(rows)] / max(counts.sum(), 1) * 1e6
    bin_of = np.array([np.argmax(np.array(PER_MILLION) <= each) for each in frequency])
    bins = []
    for number, begin in enumerate(PER_MILLION):
        here = bin_of == number
        if here.any():
            bins.append(
                {
                    "per_million_from": begin,
                    "tokens": int(here.sum()),
                    "accuracy": float(right[here].mean()),
                    "loss": float(-likelihoods[here].mean()),
                }
            )
    return {
        "pseudo_perplexity": float(np.exp(-likelihoods.mean())),
        "accuracy": float(right.mean()),
        "tokens": len(right),
        "texts": len(rows),
        "by_frequency": bins,
    }


def score_tokens(
    network: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: list[np.ndarray],
    ends: list[np.ndarray] | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each row of token ids (T,): the log-likelihood (T,) of each token when masked, and if it is the likeliest.

    With `ends`, the index (T,) after the last token of each token's word, the rest of the word is masked too.
    Raises UserError if a row is longer than the model reads.
    """
    template, mask_id = Template.of(tokenizer, pairs=False), tokenizer.mask_token_id
    longest = readable_length(network) or 1 << 20
    first = len(template.parts[0])
    for number, ids in enumerate(rows):
        row = template.fill(ids.tolist())[0]
        if len(row) > longest:
            raise UserError(f"a text has {len(row)} tokens, but the model reads {longest}: shorten it")
        copies = np.tile(row, (len(ids), 1))
        positions = np.arange(len(ids)) + first
        copies[np.arange(len(ids)), positions] = mask_id
        for copy_of, end in enumerate(ends[number] if ends else ()):
            copies[copy_of, positions[copy_of] : end + first] = mask_id
        yield likelihoods(network, copies, positions, ids)


def word_ends(words: list[int]) -> np.ndarray:
    """The index (T,) after the last token of each token's word, from the tokens' word numbers."""
    return np.searchsorted(words, words, side="right")


@torch.no_grad()
def likelihoods(
    network: "PreTrainedModel", copies: np.ndarray, positions: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The log-likelihood of each copy's target at its position, and whether it is the likeliest token there."""
    size = max(1, TOKENS // copies.shape[1])
    values, right = [], []
    for part in in_slices(len(copies), size):
        inputs = torch.from_numpy(copies[part]).to(network.device)
        logits = network(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits
        at_position = logits[torch.arange(len(inputs)), torch.from_numpy(positions[part])].float()
        target = torch.from_numpy(targets[part]).to(network.device)
        values.append(at_position.log_softmax(-1).gather(1, target[:, None])[:, 0].cpu().numpy())
        right.append((at_position.argmax(-1) == target).cpu().numpy())
    return np.concatenate(values), np.concatenate(right)
