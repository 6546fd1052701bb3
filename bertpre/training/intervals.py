"""The confidence interval of a share, such as an accuracy."""

import math
from statistics import NormalDist

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
    return [max(0.0, middle - half), min(1.0, middle + half)]
