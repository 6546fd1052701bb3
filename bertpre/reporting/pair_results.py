"""What a run's results say of its sentence pairs."""

from typing import Any


def pairs_kind(results: dict[str, Any]) -> str:
    """The kind of a run's pairs: nsp, sop or none."""
    return results.get("prepare", {}).get("pairs_kind", "nsp")


def pair_accuracy(validation: dict[str, Any], kind: str) -> float | None:
    """The validation accuracy on pairs; None without pairs, and where none of them has a label."""
    has_labels = kind != "none" and validation.get("nsp_pairs", 1)  # older runs do not say of how many pairs
    return validation.get("nsp_accuracy") if has_labels else None
