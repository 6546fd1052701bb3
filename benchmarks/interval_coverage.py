"""How often a 95 % interval of an accuracy holds the true one, on simulated test sets; prints one JSON line.

python benchmarks/interval_coverage.py

Blocks of alike texts have accuracies from a beta distribution with the intraclass correlation. Compared: the bootstrap
of whole blocks, Wilson's interval as if texts were independent, and bertpre's (`clustered_interval`).
"""

import json

import numpy as np

from bertpre.training.intervals import clustered_interval, wilson_interval

SIMULATIONS, RESAMPLES = 1500, 1000
CASES = ((50, 1, 0.95, 0.0), (200, 125, 0.93, 0.02), (20, 125, 0.95, 0.05), (10, 5, 0.95, 0.3), (8, 125, 0.99, 0.05))


def coverage(blocks: int, size: int, accuracy: float, correlation: float) -> dict[str, float]:
    """The share of simulated test sets whose interval holds the accuracy, by kind of interval."""
    generator, held = np.random.default_rng(0), {"bootstrap": 0, "wilson": 0, "bertpre": 0}
    sizes, strata = np.full(blocks, size), np.zeros(blocks, dtype=int)
    spread = (1 - correlation) / correlation if correlation else 0.0
    for _ in range(SIMULATIONS):
        means = generator.beta(accuracy * spread, (1 - accuracy) * spread, blocks) if spread else accuracy
        hits = generator.binomial(size, means, blocks)
        draws = generator.multinomial(blocks, np.full(blocks, 1 / blocks), RESAMPLES)
        own = clustered_interval(hits, sizes, strata)
        ends = {
            "bootstrap": np.percentile(draws @ hits / (blocks * size), (2.5, 97.5)),
            "wilson": wilson_interval(hits.sum() / (blocks * size), blocks * size),
            "bertpre": wilson_interval(hits.mean(), blocks) if size == 1 else own,
        }
        for name, (low, high) in ends.items():
            held[name] += int(low <= accuracy <= high)
    return {name: round(count / SIMULATIONS, 3) for name, count in held.items()}


if __name__ == "__main__":
    rows = [
        {"blocks": blocks, "size": size, "accuracy": accuracy, "correlation": correlation}
        | coverage(blocks, size, accuracy, correlation)
        for blocks, size, accuracy, correlation in CASES
    ]
    print(json.dumps({"benchmark": "interval_coverage", "rows": rows}))
