"""The line that `bertpre evaluate` prints."""

from bertpre.commands.evaluate import summary


def test_the_summary_has_the_confidence_interval_and_the_spread() -> None:
    metrics = {"accuracy": 0.9, "f1": 0.8, "matthews": 0.7, "loss": 0.3, "intervals": {"accuracy": [0.85, 0.95]}}
    assert summary("classification", metrics) == "accuracy 0.9000 (95 % CI 0.8500-0.9500), f1 0.8000, matthews 0.7000"
    seeds = {"accuracy": {"mean": 0.88, "std": 0.01, "values": [0.87, 0.89]}}
    assert summary("classification", metrics | {"seeds": seeds}).endswith(", over 2 seeds 0.8800 ± 0.0100")
