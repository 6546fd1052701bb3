"""The collator: pairs -> one padded batch with fresh 80/10/10 masks, a function of (seed, epoch, example) alone."""

import numpy as np
import torch

from bertpre.data.randomness import uniform
from bertpre.data.sampler import Example

IGNORED = -100  # torch's and transformers' mark for "no target here"
CHOICE, ACTION, REPLACEMENT = range(3)  # the three random numbers of a token


class MaskingCollator:
    """Builds `[CLS] A [SEP] B [SEP]` and masks it (Devlin et al. 2018, section 3.1, task 1).

    Of each row's tokens the share `masked_lm_prob` (at least one) become targets; of these 80 % show [MASK], 10 % a
    random token, 10 % themselves. Special tokens are never targets and never drawn as replacements.
    """

    def __init__(
        self,
        vocab_size: int,
        special_ids: dict[str, int],
        replacement_ids: np.ndarray,
        max_length: int,
        masked_lm_prob: float = 0.15,
        seed: int = 0,
    ) -> None:
        self.vocab_size, self.max_length, self.seed = vocab_size, max_length, seed
        self.special_ids, self.replacement_ids = special_ids, replacement_ids
        self.masked_lm_prob = masked_lm_prob
        self.max_predictions = max(1, round(max_length * masked_lm_prob))  # google's max_predictions_per_seq

    def __call__(self, examples: list[Example]) -> dict[str, torch.Tensor]:
        """A batch of B pairs, padded to S = max_length, with M = max_predictions slots for targets.

        input_ids, attention_mask, token_type_ids: (B, S). next_sentence_label: (B,), 1 where B is random.
        masked_positions: (B, M), unused slots hold 0. labels: (B, M), unused slots hold -100.
        """
        ids, token_types, lengths = self.layout(examples)
        inputs, positions, labels = self.mask(ids, lengths, np.array([example.key for example in examples]))
        batch = {
            "input_ids": inputs,
            "attention_mask": (np.arange(self.max_length) < lengths[:, None]).astype(np.int64),
            "token_type_ids": token_types,
            "masked_positions": positions,
            "labels": labels,
            "next_sentence_label": np.array([example.is_random_next for example in examples]),
        }
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def layout(self, examples: list[Example]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids (B, S) and token types (B, S) of the unmasked pairs, and their lengths (B,)."""
        ids = np.full((len(examples), self.max_length), self.special_ids["[PAD]"], dtype=np.int64)
        token_types = np.zeros_like(ids)
        lengths = np.zeros(len(examples), dtype=np.int64)
        ids[:, 0] = self.special_ids["[CLS]"]
        for row, example in enumerate(examples):
            middle = 1 + len(example.a)
            end = middle + 1 + len(example.b)
            ids[row, 1:middle] = example.a
            ids[row, middle + 1 : end] = example.b
            ids[row, [middle, end]] = self.special_ids["[SEP]"]
            token_types[row, middle + 1 : end + 1] = 1
            lengths[row] = end + 1
        return ids, token_types, lengths

    def mask(self, ids: np.ndarray, lengths: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Masked ids (B, S), the targets' positions (B, M) and their labels (B, M)."""
        epoch, index, position = keys[:, :1], keys[:, 1:], np.arange(self.max_length)
        choice = uniform(self.seed, epoch, index, position, CHOICE)
        choice[np.isin(ids, list(self.special_ids.values()))] = 2.0  # behind every candidate
        positions = np.argsort(choice, axis=1)[:, : self.max_predictions]  # (B, M)
        wanted = np.maximum(1, np.round(lengths * self.masked_lm_prob))[:, None]
        is_target = (np.arange(positions.shape[1]) < wanted) & (np.take_along_axis(choice, positions, 1) < 1)
        action = uniform(self.seed, epoch, index, positions, ACTION)
        drawn = uniform(self.seed, epoch, index, positions, REPLACEMENT) * len(self.replacement_ids)
        originals = np.take_along_axis(ids, positions, 1)
        shown = np.where(action < 0.8, self.special_ids["[MASK]"], self.replacement_ids[drawn.astype(np.int64)])
        shown = np.where((action >= 0.9) | ~is_target, originals, shown)
        masked = ids.copy()
        np.put_along_axis(masked, positions, shown, axis=1)
        return masked, np.where(is_target, positions, 0), np.where(is_target, originals, IGNORED)
