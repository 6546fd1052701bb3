"""The audit's arithmetic."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertpre.data.audit import bars, histogram


@given(st.lists(st.integers(1, 5000), min_size=1))
def test_a_histogram_counts_every_length_by_its_power_of_two(lengths: list[int]) -> None:
    counts = histogram(np.array(lengths))
    assert counts == [sum(1 << k <= length < 2 << k for length in lengths) for k in range(len(counts))]
    assert sum(counts) == len(lengths)


def test_bars_are_proportional_to_the_counts() -> None:
    assert bars([0, 1, 4, 8]) == " ▁▄█"
