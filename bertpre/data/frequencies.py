"""How often each token occurs, and the MLM loss that this alone allows."""

import numpy as np


def entropy(counts: np.ndarray) -> float:
    """The entropy of a distribution given by counts, in nats."""
    return conditional_entropy(counts / counts.sum(), np.ones(len(counts)))


def conditional_entropy(joint: np.ndarray, known: np.ndarray) -> float:
    """The sum of -p log(p / q) in nats, for joint probabilities p and those of what is known, q; 0 where p is 0."""
    occurs = joint > 0
    return float(-(joint[occurs] * np.log(joint[occurs] / known[occurs])).sum())


def context_free_loss(
    counts: np.ndarray, replacement_ids: np.ndarray, mask_split: tuple[float, float, float] = (0.8, 0.1, 0.1)
) -> float:
    """The lowest MLM loss, in nats per target, of a model that sees only the masked token itself, not its context.

    It knows how frequent each token is and how targets are masked: at a [MASK] it can only guess by frequency; at any
    other token it weighs whether that one was kept or put in place of another. So its loss is the conditional entropy
    of a target given the token shown. counts: of each token id, (V,). replacement_ids: the ids that can be targets and
    replacements, (R,). mask_split: shares of the targets shown as [MASK], as a random token, and unchanged.
    """
    masked, replaced, kept = mask_split
    share = counts[replacement_ids] / counts[replacement_ids].sum()
    replacing = replaced / len(share)  # probability that a target shows a given token at random
    shown = kept * share + replacing  # probability that a target shows this token, for any reason
    guess_by_frequency = entropy(counts[replacement_ids])
    loss = masked * guess_by_frequency + conditional_entropy(
        (kept + replacing) * share, shown
    )  # the token shown is the target
    if replaced:  # or it is in place of another: each other one has the probability `replacing * share`
        others = guess_by_frequency + share * np.log(share, where=share > 0, out=np.zeros_like(share))
        loss += float((replacing * (others - (1 - share) * np.log(replacing / shown))).sum())
    return loss
