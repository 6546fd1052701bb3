"""The curves of a training: losses, accuracies, learning rate, gradient norm and throughput, from `metrics.jsonl`."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertpre.reporting.charts import Curve, line_chart, number, percent
from bertpre.reporting.pair_results import pairs_kind

Rows = Sequence[dict[str, Any]]
# What an MLM loss is held against, in the order of its importance; runs of before 2026-11-23 have the entropy only.
REFERENCES = {"context_free_loss": "context-free loss", "unigram_entropy": "unigram entropy"}
SPLITS = {"train": "training", "validation": "validation"}


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`, without a line that was cut short or is just being written."""
    file, rows = folder / "metrics.jsonl", []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def of_stage(rows: Rows, stage: str, split: str) -> list[dict[str, Any]]:
    """The rows of one stage and split."""
    return [row for row in rows if row["stage"] == stage and row["split"] == split]


def points(rows: Rows, x: str, y: str, unit: float = 1.0) -> list[tuple[float, float]]:
    """One metric over another, which is divided by `unit`; rows without either are left out."""
    return [(row[x] / unit, row[y]) for row in rows if row.get(x) is not None and row.get(y) is not None]


def by_split(rows: Rows, stage: str, x: str, y: str, unit: float = 1.0) -> list[Curve]:
    """A curve for training and one for validation."""
    return [
        Curve(name, points(of_stage(rows, stage, split), x, y, unit), marks=split == "validation")
        for split, name in SPLITS.items()
    ]


def pretraining_charts(rows: Rows, results: dict[str, Any]) -> str:
    """MLM loss and accuracy, next-token loss and the accuracy on pairs, over tokens, each with its references."""
    trained, kind = results.get("pretrain", {}), pairs_kind(results)
    validation = trained.get("validation", {})
    unit, tokens = token_unit(rows)
    levels = {name: trained[key] for key, name in REFERENCES.items() if key in trained}
    majority = {"majority class": validation["nsp_majority_share"]} if validation.get("nsp_majority_share") else {}
    causal = points(of_stage(rows, "pretrain", "train"), "tokens", "clm_loss", unit)
    charts = [
        line_chart(
            "MLM loss", by_split(rows, "pretrain", "tokens", "mlm_loss", unit), tokens, levels,
            note="nats per masked token",
        ),
        line_chart(
            "MLM accuracy", by_split(rows, "pretrain", "tokens", "mlm_accuracy", unit), tokens, y_format=percent
        ),
        line_chart("next-token loss", [Curve("training", causal)], tokens, note="nats per token, in causal steps"),
        line_chart(
            f"{kind.upper()} accuracy", by_split(rows, "pretrain", "tokens", "nsp_accuracy", unit), tokens,
            majority, percent,
        ),
    ]  # fmt: skip
    return grid(charts)


def finetuning_stage(rows: Rows, results: dict[str, Any]) -> str:
    """The name under which the kept classifier's seed was logged: with several seeds all but the first have a name."""
    own = f"finetune seed {results.get('finetune', {}).get('seed')}"
    return own if any(row["stage"] == own for row in rows) else "finetune"


def finetuning_charts(rows: Rows, stage: str) -> str:
    """The loss and the main metrics of a fine-tuning over steps."""
    known = {"loss": number, "accuracy": percent, "f1": number, "pearson": number, "spearman": number}
    return grid(
        [line_chart(name, by_split(rows, stage, "step", name), "step", y_format=form) for name, form in known.items()]
    )


def machine_charts(rows: Rows, stage: str) -> str:
    """Learning rate, gradient norm and throughput of a stage, over steps."""
    train = of_stage(rows, stage, "train")
    kinds = {"learning_rate": "learning rate", "grad_norm": "gradient norm", "tokens_per_second": "tokens per second"}
    charts = [
        line_chart(title, [Curve("", points(train, "step", name), color=place)], "step")
        for place, (name, title) in enumerate(kinds.items(), 3)
    ]
    return grid(charts)


def token_unit(rows: Rows) -> tuple[float, str]:
    """The unit in which the tokens seen are shown, and its name."""
    most = max((row.get("tokens") or 0 for row in rows), default=0)
    return (1e9, "billion tokens") if most >= 2e9 else (1e6, "million tokens")


def grid(charts: Sequence[str]) -> str:
    """Charts side by side where the page is wide enough; empty without any."""
    return f"<div class=charts>{''.join(charts)}</div>" if any(charts) else ""
