"""The curves of a pretraining as one PNG, for places that show no SVG, such as a model card."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertpre.reporting.curves import REFERENCES, SPLITS, of_stage, points, token_unit
from bertpre.reporting.pair_results import pairs_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def pretraining_png(rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> bytes:
    """The curves as a PNG."""
    buffer = io.BytesIO()
    pretraining_figure(rows, results).savefig(buffer, format="png")
    return buffer.getvalue()


def pretraining_figure(rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> "Figure":
    """MLM loss with its references, and NSP, SOP or else MLM accuracy, over tokens seen."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(10, 3.4), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    name = "nsp_accuracy" if any("nsp_accuracy" in row for row in rows) else "mlm_accuracy"
    kind = pairs_kind(results) if name == "nsp_accuracy" else "mlm"
    unit, label = token_unit(rows)
    for split, shown in SPLITS.items():
        for axis, metric in ((left, "mlm_loss"), (right, name)):
            found = points(of_stage(rows, "pretrain", split), "tokens", metric, unit)
            style = "o-" if split == "validation" else "-"
            axis.plot([x for x, _ in found], [y for _, y in found], style, markersize=3, label=shown)
    trained = results.get("pretrain", {})
    for key, shown in REFERENCES.items():
        if key in trained:
            left.axhline(trained[key], color="grey", linestyle=":" if "entropy" in key else "--", label=shown)
    if name == "nsp_accuracy" and (share := trained.get("validation", {}).get("nsp_majority_share")):
        right.axhline(share, color="grey", linestyle="--", label="majority class")
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    left.set(xlabel=label, ylabel="nats per masked token", title="MLM loss")
    right.set(xlabel=label, title=f"{kind.upper()} accuracy")
    left.legend()
    right.legend()
    return figure
