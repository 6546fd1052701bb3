"""Indexed randomness: each number is a function of its keys, so it does not depend on order or on workers."""

from collections.abc import Iterable

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
LARGEST_SEED = 2**63 - 1


def uniform(*keys: int | np.ndarray) -> np.ndarray:
    """Uniform numbers in [0, 1), one for each combination of the keys (broadcast together)."""
    return (folded(keys) >> np.uint64(11)).astype(np.float64) / (1 << 53)


def folded(keys: Iterable[int | np.ndarray]) -> np.ndarray:
    """SplitMix64's finaliser folded over the keys (Steele et al. 2014, Fast splittable pseudorandom numbers)."""
    state = np.zeros(1, dtype=np.uint64)
    for key in keys:
        state = scramble(state + np.asarray(key).astype(np.uint64) + np.uint64(GOLDEN))
    return state


def scramble(bits: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: every input bit flips every output bit with probability one half."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def seed_from(*keys: int) -> int:
    """A seed for a generator, one for each combination of the keys: 63 bits, the same on every Python."""
    return int(folded(keys)[0] >> np.uint64(1))
