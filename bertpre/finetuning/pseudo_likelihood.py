"""Pseudo-likelihoods of a masked language model: each token is masked in turn, and predicted from all others."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertpre.errors import UserError, first_line
from bertpre.finetuning.encoding import Template, in_slices
from bertpre.finetuning.inference import read
from bertpre.finetuning.loading import readable_length
from bertpre.model.modeling_bertpre import BertPreForMaskedLM

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Scored = tuple[np.ndarray, np.ndarray]  # log-likelihoods, and if each token is the likeliest
TOKENS = 4096  # in one forward pass
COPIES = 1 << 22  # token ids of masked copies that are made at a time
PER_MILLION = (1000.0, 100.0, 10.0, 1.0, 0.0)  # the lower ends of the bins of token frequency


def running_text(
    network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", rows: list[np.ndarray], counts: np.ndarray
) -> dict[str, Any]:
    """Pseudo-perplexity per token (Salazar et al. 2020, section 2.3), and accuracy by frequency of the masked token.

    `counts` (V,) are the tokens' occurrences in the text that frequencies are taken from. Unknown tokens are counted
    and not scored: pretraining never predicts them. Raises UserError where there are no others.
    """
    tokens = np.concatenate(rows)
    is_known = tokens != tokenizer.unk_token_id
    if not is_known.any():
        raise UserError(f"every token of the texts is unknown ({tokenizer.unk_token})")
    scored = score_tokens(network, tokenizer, rows)
    likelihoods, right = (np.concatenate([row[part] for row in scored])[is_known] for part in (0, 1))
    frequency = counts[tokens[is_known]] / max(counts.sum(), 1) * 1e6
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
        "unknown_tokens": int((~is_known).sum()),
        "texts": len(rows),
        "by_frequency": bins,
    }


def score_tokens(
    network: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: list[np.ndarray],
    ends: list[np.ndarray] | None = None,
) -> list[Scored]:
    """For each row of token ids (T,): the log-likelihood (T,) of each token when masked, and if it is the likeliest.

    With `ends`, the index (T,) after the last token of each token's word, the rest of the word is masked too.
    Raises UserError if a row is longer than the model reads.
    """
    template = Template.of(tokenizer, pairs=False)
    lengths = readable_lengths(network, rows, template)
    if ends is None:
        ends = [np.arange(length) + 1 for length in lengths]
    scored: list[Scored] = [(np.empty(0), np.empty(0, dtype=bool))] * len(rows)
    for length in np.unique(lengths[lengths > 0]):  # rows of the same length need no padding
        same = np.flatnonzero(lengths == length)
        for part in in_slices(len(same), max(1, COPIES // length**2)):
            texts, word_end = (np.stack([each[number] for number in same[part]]) for each in (rows, ends))
            copies, positions = masked_copies(texts, word_end, template, tokenizer.mask_token_id)
            values, right = likelihoods(network, copies, positions, texts.ravel())
            for number, *row in zip(same[part], values.reshape(texts.shape), right.reshape(texts.shape), strict=True):
                scored[number] = (row[0], row[1])
    return scored


@torch.no_grad()
def score_from_left(
    network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", rows: list[np.ndarray]
) -> list[np.ndarray]:
    """For each row of token ids (T,): the log-likelihood (T,) of each token, of which the model sees those before it.

    For a model that has learned causal language modelling too. Raises UserError if a row is longer than it reads, or
    than a local layer does: this mask replaces the one of such a layer.
    """
    template = Template.of(tokenizer, pairs=False)
    lengths, before = readable_lengths(network, rows, template), len(template.parts[0])
    window = network.config.sliding_window if "sliding_attention" in layer_types(network) else math.inf
    if (longest := lengths.max(initial=0) + template.length) > window:
        raise UserError(f"--causal: a text has {longest} tokens, more than the {window} that a local layer looks back")
    scored = [np.empty(0, dtype=np.float32)] * len(rows)
    for length in np.unique(lengths[lengths > 0]):  # rows of the same length need no padding
        same, size = np.flatnonzero(lengths == length), length + template.length
        hidden = torch.full((size, size), torch.finfo(network.dtype).min, dtype=network.dtype, device=network.device)
        for part in in_slices(len(same), max(1, TOKENS // size)):
            full = np.stack([template.fill(rows[number])[0] for number in same[part]])  # (N, S)
            ids = torch.from_numpy(full).to(network.device)
            logits = read(network, input_ids=ids, attention_mask=hidden.triu(1).expand(len(ids), 1, -1, -1))
            logits, targets = logits[:, before - 1 : before - 1 + length], ids[:, before : before + length]
            values = logits.float().log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
            for number, row in zip(same[part], values.cpu().numpy(), strict=True):
                scored[number] = row
    return scored


def refuse_without_causal_mask(network: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raise UserError for a model from which `score_from_left` cannot hide the tokens that follow.

    Some read no such mask (ConvBERT, FNet) or cannot take one (DeBERTa).
    """
    kind, template = network.config.model_type, Template.of(tokenizer, pairs=False)
    if not template.parts[0]:
        raise UserError("--causal: the tokenizer begins a text with no token of its own, from which to read the first")
    row = np.full(min(8, (readable_length(network) or 512) - template.length), tokenizer.mask_token_id)
    other = np.append(row[:-1], (row[-1] + 1) % network.config.vocab_size)
    try:
        before, after = (values[:-1] for values in score_from_left(network, tokenizer, [row, other]))
    except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"--causal: a {kind} takes no mask that hides later tokens: {first_line(error)}") from None
    if not np.allclose(before, after, rtol=0, atol=1e-4, equal_nan=True):
        raise UserError(f"--causal: a {kind} reads the tokens that follow, whatever the mask")


def layer_types(network: "PreTrainedModel") -> Sequence[str]:
    """What kinds of attention a model's layers have, where its configuration says so."""
    return getattr(network.config, "layer_types", None) or ()


def readable_lengths(network: "PreTrainedModel", rows: list[np.ndarray], template: Template) -> np.ndarray:
    """The numbers of tokens (N,) of the rows; raises UserError if a row is longer than the model reads."""
    lengths = np.array([len(ids) for ids in rows])
    longest = readable_length(network)
    if longest and lengths.max(initial=0) + template.length > longest:
        raise UserError(
            f"a text has {lengths.max() + template.length} tokens, but the model reads {longest}: shorten it"
        )
    return lengths


def word_ends(words: list[int]) -> np.ndarray:
    """The index (T,) after the last token of each token's word, from the tokens' word numbers."""
    return np.searchsorted(words, words, side="right")


def masked_copies(
    texts: np.ndarray, ends: np.ndarray, template: Template, mask_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """T copies of each text (N, T) with special tokens, (N * T, S), and each copy's first masked position (N * T,).

    Copy t of a text is masked from its token t up to `ends` (N, T).
    """
    before, (number, length) = len(template.parts[0]), texts.shape
    full = np.stack([template.fill(text)[0] for text in texts])  # (N, S)
    column = np.arange(full.shape[1]) - before  # counts from the text's first token
    masked = (column >= np.arange(length)[:, None]) & (column < ends[..., None])  # (N, T, S)
    copies = np.where(masked, mask_id, full[:, None, :])
    return copies.reshape(number * length, -1), np.tile(np.arange(length) + before, number)


@torch.no_grad()
def likelihoods(network: "PreTrainedModel", copies: np.ndarray, positions: np.ndarray, targets: np.ndarray) -> Scored:
    """The log-likelihood of each copy's target at its position, and whether it is the likeliest token there.

    Equal copies (M, S) with equal positions are computed once: two sentences that differ in one word are equal where
    it is masked.
    """
    distinct, copy_of = np.unique(np.column_stack([positions, copies]), axis=0, return_inverse=True)
    copy_of = copy_of.ravel()
    by_copy = np.argsort(copy_of, kind="stable")
    values, right = np.empty(len(targets), dtype=np.float32), np.empty(len(targets), dtype=bool)
    for part in in_slices(len(distinct), max(1, TOKENS // copies.shape[1])):
        begin, end = np.searchsorted(copy_of[by_copy], [part.start, part.stop])
        wanted = by_copy[begin:end]
        rows = torch.from_numpy(distinct[part]).to(network.device)
        log_probabilities = logits_at(network, rows[:, 1:], rows[:, 0]).float().log_softmax(-1)
        here, target = (torch.from_numpy(each[wanted]).to(network.device) for each in (copy_of - part.start, targets))
        values[wanted] = log_probabilities[here, target].cpu().numpy()
        right[wanted] = (log_probabilities.argmax(-1)[here] == target).cpu().numpy()
    return values, right


def logits_at(network: "PreTrainedModel", input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Logits (B, V) at one position (B,) of each row (B, S), computed only there if the network allows it.

    bertpre's own models compute the last layer only there. Masked language models of transformers are a base model and
    a head that reads its last hidden states one by one: so the head is given those of the positions alone. Of a network
    that is built otherwise, all logits are computed.
    """
    if isinstance(network, BertPreForMaskedLM):
        return read(network, input_ids=input_ids, masked_positions=positions.unsqueeze(1))[:, 0]
    rows = torch.arange(len(input_ids), device=input_ids.device)

    def keep_positions(_module: torch.nn.Module, _inputs: object, outputs: Any) -> Any:
        if getattr(outputs, "last_hidden_state", None) is not None:
            outputs.last_hidden_state = outputs.last_hidden_state[rows, positions].unsqueeze(1)  # (B, 1, E)
        return outputs

    hook = network.base_model.register_forward_hook(keep_positions)
    try:
        logits = read(network, input_ids=input_ids, attention_mask=torch.ones_like(input_ids))
    finally:
        hook.remove()
    return logits[:, 0] if logits.shape[1] == 1 else logits[rows, positions]
