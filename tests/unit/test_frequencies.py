"""The entropy of the tokens, and the loss that word frequencies alone allow."""

import math

import numpy as np
import pytest
import torch

from bertpre.data.frequencies import context_free_loss, entropy
from bertpre.data.masking import MaskingCollator
from bertpre.data.sampler import Example

COUNTS = np.array([0, 0, 40, 1, 7, 0, 30, 22])  # the first two ids are special, and one word never occurs
WORDS = np.arange(2, 8)


def test_entropy_is_in_nats() -> None:
    assert entropy(np.array([3, 3, 0, 3])) == pytest.approx(math.log(3))
    assert entropy(np.array([7, 0])) == 0


@pytest.mark.parametrize(
    "split", [(0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.8, 0.2, 0.0), (0.8, 0.0, 0.2), (0.0, 0.5, 0.5), (0.1, 0.6, 0.3)]
)
def test_the_context_free_loss_is_the_conditional_entropy_of_the_target(split: tuple[float, float, float]) -> None:
    masked, replaced, kept = split
    share = COUNTS[WORDS] / COUNTS.sum()
    joint = np.column_stack([masked * share, np.diag(kept * share) + np.outer(share, np.full(6, replaced / 6))])
    shown = np.broadcast_to(joint.sum(0), joint.shape)
    expected = -(joint[joint > 0] * np.log(joint[joint > 0] / shown[joint > 0])).sum()
    assert context_free_loss(COUNTS, WORDS, split) == pytest.approx(expected, rel=1e-12)


def test_no_guess_from_the_token_shown_does_better_on_the_collators_masks() -> None:
    """The best table of guesses, counted from the batches themselves, has the loss that was computed."""
    tokens = np.random.default_rng(0).choice(8, size=(400, 126), p=COUNTS / COUNTS.sum())
    examples = [Example(row, row[:0], -100, (0, number)) for number, row in enumerate(tokens)]
    special = {"[PAD]": 0, "[UNK]": 0, "[CLS]": 1, "[SEP]": 1, "[MASK]": 8}
    batch = MaskingCollator(9, special, WORDS, 128, masked_lm_prob=0.5)(examples)
    shown, labels = batch["input_ids"].gather(1, batch["masked_positions"]), batch["labels"]
    table = torch.zeros(9, 9).index_put_((shown[labels >= 0], labels[labels >= 0]), torch.ones(()), accumulate=True)
    joint = (table / table.sum()).double()
    given = joint.sum(1, keepdim=True).expand_as(joint)
    counted = -(joint[joint > 0] * (joint / given)[joint > 0].log()).sum().item()
    assert counted == pytest.approx(context_free_loss(COUNTS, WORDS), abs=0.01)
