"""The collator: pairs -> a padded batch with 80/10/10 masks, which depend only on (seed, epoch, example)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch

from bertpre.data.pairs import IGNORE_INDEX, KINDS, SHORTEST_ROW
from bertpre.data.randomness import LARGEST_SEED, uniform
from bertpre.data.sampler import Example
from bertpre.data.tokenizer import SPECIAL_TOKENS, all_special_ids, maskable_ids, refuse_other_tokens
from bertpre.errors import UserError, refuse_outside, refuse_unknown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHOICE, ACTION, REPLACEMENT, SPAN = range(4)  # the random numbers of a token
NOT_A_CANDIDATE = 2.0  # choice number above all others, which are below 1
SPAN_STOP, LONGEST_SPAN = 0.2, 10  # as in SpanBERT


class MaskingCollator:
    """Builds `[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]`, and masks it (Devlin et al. 2018, section 3.1, task 1).

    In each row the share `masked_lm_prob` of the tokens (at least one) become targets; `mask_split` gives the shares of
    these that show [MASK], a random token, and themselves. Special tokens are never targets or replacements.
    `masking` selects single `tokens`; whole `words` (google-research/bert, README, May 2019), where the tokens of
    `continuations` belong to the token before; or `spans` of one to ten words, 3.8 on average, whose neighbouring
    targets all show the same of the three (Joshi et al. 2019, section 3.1). Words are masked as a whole: one that would
    exceed the share is left out, and the next one that does not takes its place.
    """

    def __init__(
        self,
        vocab_size: int,
        special_ids: dict[str, int],
        replacement_ids: np.ndarray,
        max_length: int,
        masked_lm_prob: float = 0.15,
        seed: int = 0,
        masking: str = "tokens",
        continuations: np.ndarray | None = None,
        mask_split: tuple[float, float, float] = (0.8, 0.1, 0.1),
    ) -> None:
        self.max_length, self.seed = max_length, seed
        self.special_ids, self.replacement_ids = special_ids, replacement_ids
        self.masked_lm_prob, self.masking, self.mask_split = masked_lm_prob, masking, mask_split
        self.is_special, self.is_continuation = np.zeros((2, vocab_size), dtype=bool)
        self.is_special[list(special_ids.values())] = True
        if continuations is not None:
            self.is_continuation[continuations] = True
        self.max_predictions = max(1, round(max_length * masked_lm_prob))  # google's max_predictions_per_seq

    @classmethod
    def from_tokenizer(cls, tokenizer: "PreTrainedTokenizerBase", max_length: int, **settings: Any) -> Self:
        """A collator for a BERT tokenizer; `settings` are arguments of the constructor."""
        special_ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
        words, vocabulary = maskable_ids(tokenizer), tokenizer.get_vocab().items()
        continuations = np.array([i for token, i in vocabulary if token.startswith("##")], dtype=np.int64)
        collator = cls(len(tokenizer), special_ids, words, max_length, continuations=continuations, **settings)
        collator.is_special[list(all_special_ids(tokenizer))] = True
        return collator

    def __call__(self, examples: list[Example], masked_lm_prob: float | None = None) -> dict[str, torch.Tensor]:
        """A batch of B pairs, padded to S = max_length, with M = max_predictions slots for targets.

        input_ids, attention_mask, token_type_ids: (B, S). next_sentence_label: (B,), 1 if segment B is random, -100 if
        the pair has no label. masked_positions: (B, M), 0 in unused slots. labels: (B, M), -100 in unused slots.
        `masked_lm_prob` may be lower here than the collator's own, which sets the number of slots.
        """
        ids, token_types, lengths = self.layout(examples)
        keys = np.array([example.key for example in examples])
        probability = self.masked_lm_prob if masked_lm_prob is None else masked_lm_prob
        inputs, positions, labels = self.mask(ids, lengths, keys, probability)
        batch = {
            "input_ids": inputs,
            "attention_mask": (np.arange(self.max_length) < lengths[:, None]).astype(np.int64),
            "token_type_ids": token_types,
            "masked_positions": positions,
            "labels": labels,
            "next_sentence_label": np.array([example.is_random_next for example in examples]),
        }
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def next_tokens(self, examples: list[Example]) -> dict[str, torch.Tensor]:
        """A batch of causal language modelling: unmasked rows, whose tokens are predicted from those before them.

        input_ids: (B, S). labels: (B, S), of each position the next token, -100 where there is none. attention_mask:
        (1, 1, S, S), True where a position (row) may see another (column): itself or one before it. Padding comes last,
        so no token sees it. Texts without a second segment only.
        """
        ids, _, lengths = self.layout(examples)
        has_next = np.arange(1, self.max_length) < lengths[:, None]
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[:, :-1] = np.where(has_next, ids[:, 1:], IGNORE_INDEX)
        sees = torch.ones(self.max_length, self.max_length, dtype=torch.bool).tril()
        return {
            "input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels), "attention_mask": sees[None, None],
        }  # fmt: skip

    def layout(self, examples: list[Example]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids (B, S) and token types (B, S) of the unmasked pairs, and their lengths (B,); segment B may be empty."""
        ids = np.full((len(examples), self.max_length), self.special_ids["[PAD]"], dtype=np.int64)
        token_types = np.zeros_like(ids)
        lengths = np.zeros(len(examples), dtype=np.int64)
        ids[:, 0] = self.special_ids["[CLS]"]
        for row, example in enumerate(examples):
            middle = end = 1 + len(example.a)
            ids[row, 1:middle] = example.a
            if len(example.b):
                end = middle + 1 + len(example.b)
                ids[row, middle + 1 : end] = example.b
                token_types[row, middle + 1 : end + 1] = 1
            ids[row, [middle, end]] = self.special_ids["[SEP]"]
            lengths[row] = end + 1
        return ids, token_types, lengths

    def mask(
        self, ids: np.ndarray, lengths: np.ndarray, keys: np.ndarray, probability: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Masked ids (B, S), the targets' positions (B, M) and their labels (B, M)."""
        epoch, index, position = keys[:, :1], keys[:, 1:], np.arange(self.max_length)
        choice = uniform(self.seed, epoch, index, position, CHOICE)
        choice[self.is_special[ids]] = NOT_A_CANDIDATE
        wanted = np.maximum(1, np.round(lengths * probability))[:, None]
        if self.masking == "tokens":
            positions = np.argsort(choice, axis=1)[:, : self.max_predictions]  # (B, M)
            is_target = np.arange(positions.shape[1]) < wanted
        else:
            slots = max(1, round(self.max_length * probability))
            positions, is_target = self.whole_words(ids, choice, keys, wanted, slots)
        is_target &= np.take_along_axis(choice, positions, 1) < NOT_A_CANDIDATE
        decided_at = self.first_of_run(positions, is_target) if self.masking == "spans" else positions
        action = uniform(self.seed, epoch, index, decided_at, ACTION)
        drawn = uniform(self.seed, epoch, index, positions, REPLACEMENT) * len(self.replacement_ids)
        originals = np.take_along_axis(ids, positions, 1)
        masked_share, random_share, _ = self.mask_split
        shown = np.where(
            action < masked_share, self.special_ids["[MASK]"], self.replacement_ids[drawn.astype(np.int64)]
        )
        shown = np.where((action >= masked_share + random_share) | ~is_target, originals, shown)
        masked = ids.copy()
        np.put_along_axis(masked, positions, shown, axis=1)
        return masked, np.where(is_target, positions, 0), np.where(is_target, originals, IGNORE_INDEX)

    def whole_words(
        self, ids: np.ndarray, choice: np.ndarray, keys: np.ndarray, wanted: np.ndarray, slots: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions of tokens, ordered by the choice number of their words, (B, M), and whether each is a target.

        A word has the choice number of its first token; with spans, the lowest number of all spans that contain it.
        """
        is_special, columns = self.is_special[ids], np.arange(self.max_length)
        is_first = ~self.is_continuation[ids] | is_special | np.roll(is_special, 1, axis=1)
        word = np.cumsum(is_first, axis=1) - 1  # (B, S): which word each token belongs to

        def by_word(values: np.ndarray) -> np.ndarray:
            """Values of first tokens, (B, S), in the columns of their words; other tokens share an unused column."""
            result = np.full(ids.shape, NOT_A_CANDIDATE)
            np.put_along_axis(result, np.where(is_first, word, self.max_length - 1), values, axis=1)
            return result

        number = by_word(choice)
        if self.masking == "spans":
            draw = uniform(self.seed, keys[:, :1], keys[:, 1:], columns, SPAN)
            number = spread_over_spans(number, by_word(span_lengths(draw)), by_word(np.cumsum(is_special, axis=1)))
        rank = np.take_along_axis(number, word, 1)
        order = np.argsort(rank, axis=1, kind="stable")
        sorted_word = np.take_along_axis(word, order, 1)
        is_begin, is_end = (np.diff(sorted_word, axis=1, **{side: -1}) != 0 for side in ("prepend", "append"))
        begin = np.maximum.accumulate(np.where(is_begin, columns, 0), axis=1)
        end = np.minimum.accumulate(np.where(is_end, columns, self.max_length)[:, ::-1], axis=1)[:, ::-1]
        length = np.where(np.take_along_axis(rank, order, 1) < NOT_A_CANDIDATE, end - begin + 1, self.max_length)
        is_target = words_that_fit(length, end, wanted)
        # Where no word fits, the first one up to the number of slots: a row has at least one target.
        is_target |= ~is_target.any(axis=1, keepdims=True) & (begin == 0) & (columns < slots)
        row, column = np.nonzero(is_target)
        slot = (np.cumsum(is_target, axis=1) - 1)[row, column]
        positions = np.zeros((len(ids), self.max_predictions), dtype=np.int64)  # of [CLS] in unused slots
        is_used = np.zeros(positions.shape, dtype=bool)
        positions[row, slot], is_used[row, slot] = order[row, column], True
        return positions, is_used

    def first_of_run(self, positions: np.ndarray, is_target: np.ndarray) -> np.ndarray:
        """For each target the first position of its run of neighbouring targets, (B, M)."""
        chosen = np.zeros((len(positions), self.max_length), dtype=bool)
        np.put_along_axis(chosen, positions, is_target, axis=1)
        is_first = np.diff(chosen, axis=1, prepend=False) & chosen
        first = np.maximum.accumulate(np.where(is_first, np.arange(self.max_length), 0), axis=1)
        return np.take_along_axis(first, positions, 1)


class DataCollatorForPretraining:
    """Examples of the pair datasets -> a masked batch for any model of transformers.

    Arguments as of MaskingCollator; `max_length` and `kind` are those of the dataset. The masks are a function of
    (seed, epoch, pair): they change with the dataset's `set_epoch`, and not with workers, processes or batch sizes.
    """

    __slots__ = ("collator", "kind")  # `collate.masked_lm_prob = 0.4` would do nothing

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        max_length: int = 128,
        *,
        kind: Literal["nsp", "sop", "none"] = "nsp",
        masked_lm_prob: float = 0.15,
        masking: Literal["tokens", "words", "spans"] = "tokens",
        mask_split: tuple[float, float, float] = (0.8, 0.1, 0.1),
        seed: int = 0,
    ) -> None:
        refuse_unknown("kind", kind, KINDS)
        refuse_unknown("masking", masking, ("tokens", "words", "spans"))
        refuse_outside("max_length", max_length, SHORTEST_ROW)
        refuse_outside("seed", seed, 0, LARGEST_SEED)
        if not hasattr(tokenizer, "get_vocab"):
            raise UserError(f"tokenizer: is {tokenizer!r:.60}, not a tokenizer; give store.tokenizer")
        if not 0 < masked_lm_prob < 1:
            raise UserError(f"masked_lm_prob: {masked_lm_prob} is not above 0 and below 1")
        if len(mask_split) != 3 or not min(mask_split) >= 0 or not abs(sum(mask_split) - 1) <= 1e-6:  # NaN, too
            raise UserError(f"mask_split: {mask_split} are not three fractions that add up to 1")
        refuse_other_tokens(tokenizer, "tokenizer: it")
        self.kind = kind
        settings = {"masked_lm_prob": masked_lm_prob, "masking": masking, "mask_split": mask_split, "seed": seed}
        self.collator = MaskingCollator.from_tokenizer(tokenizer, max_length, **settings)

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """A batch of B examples, padded to S = max_length.

        input_ids, attention_mask, token_type_ids, labels: (B, S), int64; `labels` are -100 where nothing is predicted.
        next_sentence_label: (B,), 1 for a random or swapped segment, 0 for a true one, -100 for a pair without a label;
        with the kind `none` there is no such entry. If no pair of the batch had a label, each has its true one: the
        mean over no label would be NaN. Raises UserError for an empty batch, a malformed example, one longer than
        max_length, and examples of the kind `none` where there should be pairs, as far as they show it, or pairs for
        the kind `none`.
        """
        if not examples:
            raise UserError("examples: there are none in the batch")
        if others := [each for each in examples if not isinstance(each, Example)]:
            raise UserError(
                f"examples: one is a {type(others[0]).__name__}; give those of a SegmentPairDataset, or wrap token ids "
                "without special tokens: Example(ids, [], -100, key=(epoch, number))"
            )
        self.refuse_malformed(examples)
        longest = max(len(example.a) + len(example.b) + 2 + bool(len(example.b)) for example in examples)
        if longest > self.collator.max_length:
            raise UserError(
                f"max_length: an example has {longest} tokens, this collator {self.collator.max_length}; "
                "give dataset and collator the same max_length"
            )
        batch = self.collator(list(examples))
        separator = self.collator.special_ids["[SEP]"]
        is_packed = self.kind != "none" and any(separator in example.a for example in examples)
        if is_packed or (self.kind == "nsp" and not any(len(example.b) for example in examples)):
            raise UserError("kind: the examples have no second segment; give dataset and collator the same kind")
        if self.kind == "none" and any(len(example.b) for example in examples):
            raise UserError("kind: the examples have a second segment; give dataset and collator the same kind")
        labels = torch.full_like(batch["input_ids"], IGNORE_INDEX)
        batch["labels"] = labels.scatter(1, batch.pop("masked_positions"), batch["labels"])
        label = batch["next_sentence_label"]
        if self.kind == "none":
            del batch["next_sentence_label"]
        elif (label == IGNORE_INDEX).all():  # those of sop are in their order
            true = [int(self.kind == "nsp" and not example.is_next) for example in examples]
            batch["next_sentence_label"] = torch.tensor(true)
        return batch

    def refuse_malformed(self, examples: Sequence[Example]) -> None:
        """Raise UserError for examples that no dataset makes, but a caller may have made."""
        ends, size = tuple(map(self.collator.special_ids.get, ("[CLS]", "[SEP]"))), len(self.collator.is_special)
        segments = [np.asarray(segment) for example in examples for segment in (example.a, example.b)]
        if others := [ids for ids in segments if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size)]:
            raise UserError(f"examples: {others[0]!r:.60} are no token ids; give tokenizer(text)['input_ids']")
        together = np.concatenate([ids for ids in segments if ids.size] or [np.zeros(1, dtype=np.int64)])
        if not 0 <= together.min() <= together.max() < size:
            raise UserError(f"examples: token ids are outside of the {size:,}; give the tokenizer that made them")
        if any(ids.size and (ids[0], ids[-1]) == ends for ids in segments):
            raise UserError(
                "examples: one begins with [CLS] and ends with [SEP], which the collator adds; leave them out: "
                "tokenizer(text, add_special_tokens=False)"
            )
        for example in examples:
            if example.is_random_next not in (0, 1, IGNORE_INDEX):
                raise UserError(f"examples: is_random_next is {example.is_random_next!r:.60}; give 0, 1 or -100")
            if not isinstance(example.key, tuple) or len(example.key) != 2:
                raise UserError(f"examples: a key is {example.key!r:.60}; give two numbers, (epoch, number)")


def words_that_fit(length: np.ndarray, end: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which tokens belong to the words that are taken in turn while no more than `wanted` tokens are, (B, S).

    A word that would exceed them is left out, and the next one that does not is taken, as in google-research/bert,
    `create_masked_lm_predictions`. length, end: of each token's word and the column of its last token, (B, S); wanted:
    (B, 1). Each round takes words up to the first that does not fit, then drops all that never will.
    """
    fits, rows = length <= wanted, np.arange(len(length))
    while len(rows):
        mine = fits[rows]
        taken = np.take_along_axis(np.cumsum(mine, axis=1), end[rows], 1)  # tokens up to the end of this word
        is_taken = mine & (taken <= wanted[rows])
        room = wanted[rows] - is_taken.sum(axis=1, keepdims=True)
        fits[rows] = still = is_taken | (mine & (length[rows] <= room))
        rows = rows[(still != is_taken).any(axis=1)]
    return fits


def span_lengths(draw: np.ndarray) -> np.ndarray:
    """Lengths of 1 to 10 from uniform numbers: geometric, with the probability of longer ones shared out among these.

    So the mean is 3.80 (SpanBERT, section 3.1); if longer ones were cut to 10, it would be 4.46.
    """
    within = 1 - (1 - SPAN_STOP) ** LONGEST_SPAN
    return 1 + np.floor(np.log1p(-draw * within) / np.log1p(-SPAN_STOP))


def spread_over_spans(number: np.ndarray, length: np.ndarray, segment: np.ndarray) -> np.ndarray:
    """Choice numbers of words, (B, W), each lowered to the lowest of the spans that contain it in its segment."""
    result = number.copy()
    for distance in range(1, LONGEST_SPAN):
        start, here = slice(None, -distance), slice(distance, None)
        reached = (
            (length[:, start] > distance)
            & (segment[:, start] == segment[:, here])
            & (number[:, here] < NOT_A_CANDIDATE)
        )
        result[:, here] = np.where(reached, np.minimum(result[:, here], number[:, start]), result[:, here])
    return result
