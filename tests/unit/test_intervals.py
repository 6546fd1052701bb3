"""Wilson's interval against scipy's, and how often intervals hold the true share."""

import numpy as np
import pytest
from scipy import stats

from bertpre.training.intervals import clustered_interval, wilson_interval


@pytest.mark.parametrize(("right", "count"), [(0, 1), (20, 20), (45, 50), (23_224, 24_996), (0, 256)])
def test_wilsons_interval_equals_scipys(right: int, count: int) -> None:
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    assert wilson_interval(right / count, count) == pytest.approx([expected.low, expected.high], abs=1e-12)


def test_fewer_effective_examples_give_a_wider_interval() -> None:
    low, high = wilson_interval(1.0, 12.5)
    assert low < wilson_interval(1.0, 50)[0] and high == pytest.approx(1)
    assert wilson_interval(0.0, 0) == [0, 1]
    for count in range(1, 300):
        assert wilson_interval(0.0, count)[0] == 0.0 and wilson_interval(1.0, count)[1] == 1.0


def test_the_interval_holds_a_share_of_095_in_96_of_100_samples_of_fifty() -> None:
    counts = np.arange(51)
    ends = np.array([wilson_interval(count / 50, 50) for count in counts])
    is_inside = (ends[:, 0] <= 0.95) & (ends[:, 1] >= 0.95)
    assert stats.binom.pmf(counts, 50, 0.95)[is_inside].sum() == pytest.approx(0.962, abs=1e-3)


def test_clusters_that_differ_widen_the_interval_enough() -> None:
    generator, sizes, is_inside = np.random.default_rng(0), np.full(20, 125), []
    for _ in range(400):
        hits = generator.binomial(sizes, generator.beta(18, 2, 20))  # intraclass correlation 1 / 21
        found = clustered_interval(hits, sizes, np.zeros(20, dtype=int)), wilson_interval(hits.sum() / 2500, 2500)
        is_inside.append([low <= 0.9 <= high for low, high in found])
    clustered, independent = np.mean(is_inside, axis=0)
    assert clustered == pytest.approx(0.95, abs=0.03)
    assert independent < 0.7


def test_clusters_that_do_not_differ_leave_the_interval_as_it_is() -> None:
    sizes, one_stratum = np.full(1000, 2), np.zeros(1000, dtype=int)
    hits = np.random.default_rng(0).binomial(2, 0.9, 1000)
    share = hits.sum() / 2000
    assert clustered_interval(hits, sizes, one_stratum) == pytest.approx(wilson_interval(share, 2000), abs=2e-3)
    low, high = clustered_interval(sizes, sizes, one_stratum)
    assert 0.99 < low < 1 and high == pytest.approx(1)
    assert clustered_interval(sizes[:1], sizes[:1], one_stratum[:1]) == [0, 1]


def test_strata_that_differ_do_not_widen_the_interval() -> None:
    sizes, strata = np.full(40, 25), np.repeat([0, 1], 20)
    hits = np.random.default_rng(0).binomial(25, np.where(strata, 0.6, 0.95))
    independent = wilson_interval(hits.sum() / 1000, 1000)
    assert np.ptp(clustered_interval(hits, sizes, strata)) == pytest.approx(np.ptp(independent), rel=0.1)
    assert np.ptp(clustered_interval(hits, sizes, 0 * strata)) > 1.5 * np.ptp(independent)


def test_the_interval_of_clusters_equals_the_formulas() -> None:
    hits, sizes, strata = np.array([9, 5, 8, 2, 6, 3]), np.array([10, 10, 10, 5, 8, 4]), np.array([0, 0, 0, 1, 1, 2])
    residuals = hits - np.array([22 / 30] * 3 + [8 / 13] * 2 + [3 / 4]) * sizes
    of_strata = [3 * residuals[:3].var(ddof=1), 2 * residuals[3:5].var(ddof=1)]
    variance = sum(of_strata) / 47**2 * 6 / 5  # the last stratum has one cluster
    share = 33 / 47
    count = 47 / (variance / (share * (1 - share) / 47)) * (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 3)) ** 2
    assert clustered_interval(hits, sizes, strata) == pytest.approx(wilson_interval(share, count))


def test_clusters_more_alike_than_chance_do_not_narrow_the_interval() -> None:
    hits, sizes = np.full(200, 9), np.full(200, 10)
    low, high = clustered_interval(hits, sizes, np.zeros(200, dtype=int))
    expected = wilson_interval(0.9, 2000)
    assert low <= expected[0] and high >= expected[1]
