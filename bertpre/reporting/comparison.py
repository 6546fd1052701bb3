"""Several runs side by side on one page: their metrics, their curves over each other, and how their recipes differ."""

import html
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bertpre.console import time_text
from bertpre.files import write_text
from bertpre.recipe import METRICS, Recipe, flatten
from bertpre.reporting.charts import Curve, line_chart, number, percent
from bertpre.reporting.curves import finetuning_stage, grid, of_stage, points, read_metrics, token_unit
from bertpre.reporting.page import page, paragraph
from bertpre.reporting.pair_results import pair_accuracy, pairs_kind
from bertpre.reporting.tiles import stage_seconds
from bertpre.run_directory import read_results

LOWER_IS_BETTER = ("MLM loss", "test loss")
CURVES = {  # stage, metric: title, number format
    ("pretrain", "mlm_loss"): ("MLM loss", number),
    ("pretrain", "nsp_accuracy"): ("Accuracy on pairs", percent),
    ("finetune", "loss"): ("Fine-tuning loss", number),
    ("finetune", "accuracy"): ("Fine-tuning accuracy", percent),
    ("finetune", "f1"): ("Fine-tuning F1", percent),
    ("finetune", "pearson"): ("Fine-tuning Pearson correlation", number),
}


@dataclass(frozen=True)
class RunFacts:
    """What a comparison shows of one run."""

    name: str
    folder: Path
    recipe: Recipe
    results: dict[str, Any]
    rows: list[dict[str, Any]]

    def of(self, stage: str, split: str) -> list[dict[str, Any]]:
        """The rows of a stage and a split; of several seeds' fine-tuning those of the one that was kept."""
        return of_stage(self.rows, finetuning_stage(self.rows, self.results) if stage == "finetune" else stage, split)


def read_facts(runs: Sequence[tuple[Path, Recipe]]) -> list[RunFacts]:
    """What runs have left in their directories."""
    names = short_names([folder for folder, _ in runs])
    return [
        RunFacts(name, folder, recipe, read_results(folder), read_metrics(folder))
        for name, (folder, recipe) in zip(names, runs, strict=True)
    ]


def write_comparison(each: Sequence[RunFacts]) -> Path:
    """Write `comparison.html` into the first run's directory; returns its path."""
    start = each[0].folder
    file = start / "comparison.html"
    links = ", ".join(link(run, start) for run in each)
    above = [f"<h1>{len(each)} runs side by side</h1>", f"<p>Reports: {links}</p>"]
    sections = [
        ("Metrics", metrics_table(each)),
        ("Curves", grid(overlaid(each))),
        ("Recipes", recipe_table(each)),
    ]
    write_text(file, page("comparison", above, sections))
    return file


def link(run: RunFacts, start: Path) -> str:
    """A link to a run's report, from the folder `start`."""
    path = quote(Path(os.path.relpath(run.folder / "report.html", start)).as_posix())
    return f"<a href='{html.escape(path, quote=True)}'>{html.escape(run.name)}</a>"


def short_names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, or their paths from the folder that has them all where two names are equal."""
    paths = [os.path.abspath(folder) for folder in folders]
    names = [Path(path).name for path in paths]
    if len(set(names)) == len(names) or len(set(paths)) == 1:
        return names
    return [Path(os.path.relpath(path, os.path.commonpath(paths))).as_posix() for path in paths]


def measures(run: RunFacts) -> dict[str, tuple[float, str]]:
    """The numbers of one run that can be compared, each with its text."""
    results, found = run.results, {}
    if trained := results.get("pretrain"):
        validation = trained["validation"]
        found["MLM loss"] = (validation["mlm_loss"], f"{validation['mlm_loss']:.3f}")
        if "context_free_loss" in trained:
            gain = trained["context_free_loss"] - validation["mlm_loss"]
            found["nats below the context-free loss"] = (gain, f"{gain:.3f}")
        found["MLM accuracy"] = (validation["mlm_accuracy"], f"{validation['mlm_accuracy']:.1%}")
        kind = pairs_kind(results)
        if (accuracy := pair_accuracy(validation, kind)) is not None:
            text = with_interval(accuracy, validation.get("nsp_interval"), ".1%")
            found[f"{kind.upper()} accuracy"] = (accuracy, text)
    if (measured := results.get("evaluate")) and run.recipe.finetune is not None:
        for name in (each for each in METRICS[run.recipe.finetune.task] if each in measured):
            form = ".1%" if name == "accuracy" else ".3f"
            text = with_interval(measured[name], measured.get("intervals", {}).get(name), form)
            found[f"test {name}"] = (measured[name], text)
    if glue := results.get("glue"):
        scores = {f"{task} {name}": value for task, each in glue["tasks"].items() for name, value in each.items()}
        for name, value in (scores | {"average": glue["average"]}).items():
            found[f"GLUE {name}"] = (value, f"{value:.4f}")
    found |= {f"time of {stage}": (value, time_text(value)) for stage, value in stage_seconds(results).items()}
    sizes = results.get("pretrain", {})
    return found | {
        f"pretraining {key}": (sizes[key], f"{sizes[key]:,}")
        for key in ("parameters", "tokens", "steps")
        if key in sizes
    }


def printed_metrics(runs: Sequence[RunFacts]) -> Iterator[str]:
    """The numbers of the runs as lines of a terminal: a row for each metric, a column for each run."""
    each = [measures(run) for run in runs]
    names = list(dict.fromkeys(name for found in each for name in found))
    table = [["", *(run.name for run in runs)]]
    table += [[name, *(found[name][1] if name in found else "-" for found in each)] for name in names]
    first, *others = (max(map(len, column)) for column in zip(*table, strict=True))
    for name, *cells in table:
        right = "  ".join(f"{text:>{width}}" for text, width in zip(cells, others, strict=True))
        yield f"{name:<{first}}  {right}"


def with_interval(value: float, interval: Sequence[float] | None, form: str) -> str:
    """A value and its 95 % confidence interval."""
    return f"{value:{form}}" + (f" ({interval[0]:{form}} to {interval[1]:{form}})" if interval else "")


def metrics_table(runs: Sequence[RunFacts]) -> str:
    """A row for each metric, a column for each run; the best of a row is marked."""
    each = [measures(run) for run in runs]
    tasks = {run.recipe.finetune.task for run in runs if run.recipe.finetune is not None}
    unranked = ("pretraining", "time") + (("test",) if len(tasks) > 1 else ())
    names = list(dict.fromkeys(name for found in each for name in found))
    head = "".join(f"<th scope=col>{html.escape(run.name)}</th>" for run in runs)
    lines = []
    for name in names:
        values = [found[name][0] for found in each if name in found]
        best = min(values) if name in LOWER_IS_BETTER else max(values)
        is_ranked = not name.startswith(unranked) and len(set(values)) > 1
        cells = "".join(cell(found.get(name), best if is_ranked else None) for found in each)
        lines.append(f"<tr><th scope=row>{html.escape(name)}</th>{cells}</tr>")
    note = paragraph(
        "In brackets: 95 % confidence intervals. The best value of a row is bold; runs on different data, or with "
        "different tokenizers, do not have comparable MLM losses.", "note",
    )  # fmt: skip
    return (
        f"<div class=wide><table class=runs><thead><tr><th></th>{head}</tr></thead>{''.join(lines)}</table></div>{note}"
    )


def cell(measure: tuple[float, str] | None, best: float | None) -> str:
    """One run's value."""
    if measure is None:
        return "<td class=number>-</td>"
    return f"<td class='number{' best' * (measure[0] == best)}'>{html.escape(measure[1])}</td>"


def overlaid(runs: Sequence[RunFacts]) -> list[str]:
    """Each metric's validation curves of all runs in one chart, or its training curves where none was validated."""
    unit, tokens = token_unit([row for run in runs for row in run.rows])
    charts = []
    for (stage, metric), (title, form) in CURVES.items():
        x, x_label, size = ("tokens", tokens, unit) if stage == "pretrain" else ("step", "step", 1.0)
        for split in ("validation", "train"):
            curves = [
                Curve(run.name, points(run.of(stage, split), x, metric, size), marks=split == "validation")
                for run in runs
            ]
            if chart := line_chart(
                title, curves, x_label, y_format=form, note="validation" if split == "validation" else "training"
            ):
                charts.append(chart)
                break
    speed = [
        Curve(run.name, points(of_stage(run.rows, "pretrain", "train"), "tokens", "tokens_per_second", unit))
        for run in runs
    ]
    return [*charts, line_chart("Throughput", speed, tokens, note="tokens per second")]


def recipe_table(runs: Sequence[RunFacts]) -> str:
    """The recipe keys whose values differ."""
    flat = [flatten(run.recipe.model_dump(mode="json")) for run in runs]
    keys = sorted({key for each in flat for key in each} - {"output_dir"})
    rows = [(key, *(str(each.get(key, "-")) for each in flat)) for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    if not differing:
        return paragraph("The recipes are the same but for output_dir.")
    head = "".join(f"<th scope=col>{html.escape(run.name)}</th>" for run in runs)
    lines = "".join(
        f"<tr><th scope=row>{html.escape(key)}</th>{''.join(f'<td>{html.escape(value)}</td>' for value in values)}</tr>"
        for key, *values in differing
    )
    return f"<div class=wide><table class=runs><thead><tr><th>key</th>{head}</tr></thead>{lines}</table></div>"
