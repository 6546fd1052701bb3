"""Confidence intervals of a share, such as an accuracy."""

import math
from statistics import NormalDist

import numpy as np

Z = NormalDist().inv_cdf(0.975)  # standard errors on each side of the middle 95 %


def wilson_interval(share: float, count: float) -> list[float]:
    """The 95 % confidence interval of a share that was measured on `count` independent examples.

    Wilson 1927: unlike a bootstrap or a normal interval it has a width where the share is 0 or 1. `count` may be an
    effective number of examples, with a fraction; without examples the interval is 0 to 1.
    """
    if not count:
        return [0.0, 1.0]
    scale = 1 + Z**2 / count
    middle = (share + Z**2 / (2 * count)) / scale
    half = Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / scale
    return [max(0.0, middle - half) if share > 0 else 0.0, min(1.0, middle + half) if share < 1 else 1.0]


def clustered_interval(hits: np.ndarray, sizes: np.ndarray, strata: np.ndarray) -> list[float]:
    """The 95 % confidence interval of the share `hits.sum() / sizes.sum()` where the examples of a cluster are alike.

    hits, sizes, strata: (G,), one entry for each cluster; `strata` are numbers from 0 on. It is Wilson's interval for
    the effective number of examples, which is their number divided by the design effect (Kish 1965, section 8.2), with
    Student's t for few clusters (Korn and Graubard 1998). The design effect is at least 1, and 1 where the share is 0
    or 1. It counts how clusters of one stratum differ; a single cluster in each gives 0 to 1.
    """
    from scipy.stats import t

    counts, total = np.bincount(strata), sizes.sum()
    freedom = len(sizes) - len(counts)
    if not freedom:
        return [0.0, 1.0]
    share, shares = float(hits.sum() / total), np.bincount(strata, hits) / np.bincount(strata, sizes)
    squares = np.bincount(strata, (hits - shares[strata] * sizes) ** 2)
    variance = (squares * counts / np.maximum(counts - 1, 1)).sum() / total**2
    variance *= counts.sum() / counts[counts > 1].sum()  # a single cluster says nothing of its stratum's variance
    if_independent = share * (1 - share) / total
    design_effect = max(1.0, variance / if_independent) if if_independent else 1.0
    return wilson_interval(share, float(total / design_effect * (Z / t.ppf(0.975, freedom)) ** 2))
