"""Wilson's interval against scipy's."""

import pytest
from scipy import stats

from bertpre.training.intervals import wilson_interval


@pytest.mark.parametrize(("right", "count"), [(0, 1), (20, 20), (45, 50), (23_224, 24_996), (0, 256)])
def test_wilsons_interval_equals_scipys(right: int, count: int) -> None:
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    assert wilson_interval(right / count, count) == pytest.approx([expected.low, expected.high], abs=1e-12)


def test_fewer_effective_examples_give_a_wider_interval() -> None:
    low, high = wilson_interval(1.0, 12.5)
    assert low < wilson_interval(1.0, 50)[0] and high == 1
    assert wilson_interval(0.0, 0) == [0, 1]
