"""The report: a self-contained page of a run's figures, and the lines that close a run."""

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.recipe import Recipe, to_yaml
from bertpre.run_directory import read_results, write_text

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { margin-bottom: 0; } h2 { margin-top: 2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } td, th { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
th { white-space: nowrap; }
td.number { font-variant-numeric: tabular-nums; } .note { color: #666; } img { max-width: 100%; }
pre { background: #f6f6f6; padding: .8rem; overflow: auto; font-size: 13px; } mark { background: #ffe9a8; }
"""


def write_report(folder: Path, recipe: Recipe) -> Path:
    """Write `report.html` from what the stages left in `folder`; returns its path."""
    results, rows = read_results(folder), read_metrics(folder)
    parts = [
        f"<h1>{html.escape(folder.name)}</h1>",
        f"<p class=note>{html.escape(provenance(folder))}</p>",
        "<h2>What was learned</h2>",
        table(figures(results)),
    ]
    if histograms := results.get("prepare", {}).get("histograms"):
        parts += ["<h2>Corpus</h2>", image(plot_lengths(histograms))]
    parts += [
        "<h2>Pretraining</h2>",
        image(plot_pretraining(rows, results)),
        f"<h3>Words hidden from the model, and its guesses</h3>{fillings(results)}",
    ]
    if any(row["stage"] == "finetune" for row in rows):
        parts += ["<h2>Fine-tuning</h2>", image(plot_finetuning(rows))]
    parts += ["<h2>Recipe</h2>", f"<pre>{html.escape(to_yaml(recipe))}</pre>"]
    page = f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(folder.name)} - bertpre</title>"
    write_text(folder / "report.html", f"{page}<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n")
    return folder / "report.html"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`."""
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def provenance(folder: Path) -> str:
    """Commit, versions and hardware in one line."""
    file = folder / "manifest.json"
    facts = json.loads(file.read_text()).get("pretrain", {}) if file.exists() else {}
    if not facts:
        return ""
    hardware, versions = facts["hardware"], facts["versions"]
    return (
        f"bertpre {versions['bertpre']} (commit {facts['commit']}), torch {versions['torch']}, transformers "
        f"{versions['transformers']}; {hardware['device']}, {hardware['threads']} threads, "
        f"{hardware['processes']} process(es), {hardware['precision']}"
    )


def figures(results: dict[str, Any]) -> list[tuple[str, str]]:
    """The figures a reader wants first: a name and a value with what it must be compared with."""
    rows: list[tuple[str, str]] = []
    if prepared := results.get("prepare"):
        rows.append(("Corpus", f"{prepared['documents']:,} documents, {prepared['tokens']:,} tokens"))
        if prepared["dropped"]:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in prepared["dropped"].items())
            rows.append(("Dropped documents", reasons))
    if trained := results.get("pretrain"):
        validation = trained["validation"]
        rows += [
            (
                "Pretraining",
                f"{trained['steps']:,} steps, {trained['tokens']:,} tokens, {trained['seconds'] / 60:.1f} min",
            ),
            (
                "MLM loss",
                f"{validation['mlm_loss']:.3f} nats per masked token; word frequency alone "
                f"gives {trained['unigram_entropy']:.3f}",
            ),
            ("MLM accuracy", f"{validation['mlm_accuracy']:.1%}"),
        ]
        if "nsp_accuracy" in validation:
            right, guess = validation["nsp_accuracy"], majority(results)
            name = "SOP accuracy" if prepared and prepared.get("pairs_kind") == "sop" else "NSP accuracy"
            rows.append((name, f"{right:.1%}; the commoner answer alone gives {guess:.1%}"))
    if tuned := results.get("finetune"):
        rows.append(
            ("Fine-tuning", f"{tuned['epochs']} epochs on {tuned['examples']:,} texts, {tuned['seconds'] / 60:.1f} min")
        )
    if measured := results.get("evaluate"):
        text = f"{measured['accuracy']:.2%} of {measured['examples']:,} test texts"
        if words := measured.get("bag_of_words"):
            text += f"; a bag of words with logistic regression, same examples: {words['accuracy']:.2%}"
        rows.append(("Test accuracy", text))
    return rows


def majority(results: dict[str, Any]) -> float:
    """The share of the commoner label of the pairs: what knowing nothing gives."""
    share = results.get("prepare", {}).get("random_next_share", 0.5)
    return max(share, 1 - share)


def closing_lines(folder: Path) -> list[str]:
    """What a run prints last: what was learned, and where each artefact lies."""
    results = read_results(folder)
    lines = ["", "What was learned", *(f"  {name:<14} {value}" for name, value in figures(results))]
    for filling in results.get("pretrain", {}).get("fillings", []):
        lines.append(
            f"  {filling['sentence']}\n    -> {', '.join(filling['guesses'])} (the text has: {filling['answer']})"
        )
    artefacts = {
        "report.html": "the report", "model": "the pretrained model", "finetuned": "the classifier",
        "tokenizer": "the tokenizer", "metrics.jsonl": "every logged step", "results.json": "the figures",
    }  # fmt: skip
    lines += [
        "",
        "Where it lies",
        *(f"  {folder / name}  ({what})" for name, what in artefacts.items() if (folder / name).exists()),
    ]
    return lines


def table(rows: list[tuple[str, str]]) -> str:
    """Rows as an HTML table."""
    cells = (f"<tr><th>{html.escape(name)}</th><td class=number>{html.escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{''.join(cells)}</table>"


def fillings(results: dict[str, Any]) -> str:
    """The sentences with a hidden word."""
    items = []
    for filling in results.get("pretrain", {}).get("fillings", []):
        sentence = html.escape(filling["sentence"]).replace("[MASK]", "<mark>[MASK]</mark>")
        guesses = html.escape(", ".join(filling["guesses"]))
        items.append(
            f"<li>{sentence}<br>guesses: <b>{guesses}</b>; the text has: {html.escape(filling['answer'])}</li>"
        )
    return f"<ul>{''.join(items)}</ul>"


def plot_lengths(histograms: dict[str, list[int]]) -> bytes:
    """How long documents and sentences are, on a logarithmic scale; a PNG."""
    figure, axes = new_figure(len(histograms))
    for axis, (name, counts) in zip(axes, histograms.items(), strict=True):
        places = range(len(counts))
        axis.bar(places, counts, width=0.9)
        axis.set_xticks(places, [f"{1 << place:,}" for place in places], rotation=45)
        axis.set(xlabel="tokens, from each number to the next", title=name.replace("_", " "))
    return to_png(figure)


def plot_pretraining(rows: list[dict[str, Any]], results: dict[str, Any]) -> bytes:
    """MLM loss against the unigram entropy, and accuracy on the pairs' label or the masks, over tokens seen; a PNG."""
    figure, (left, right) = new_figure(2)
    pairs = any("nsp_accuracy" in row for row in rows)
    shown, title = ("nsp_accuracy", "accuracy on the label of the pairs") if pairs else ("mlm_accuracy", "MLM accuracy")
    for split, style in (("train", "-"), ("validation", "o-")):
        chosen = [row for row in rows if row["stage"] == "pretrain" and row["split"] == split]
        tokens = np.array([row["tokens"] for row in chosen]) / 1e6
        left.plot(tokens, [row["mlm_loss"] for row in chosen], style, markersize=3, label=split)
        right.plot(tokens, [row[shown] for row in chosen], style, markersize=3, label=split)
    if "pretrain" in results:
        left.axhline(results["pretrain"]["unigram_entropy"], color="grey", linestyle="--", label="unigram entropy")
        if pairs:
            right.axhline(majority(results), color="grey", linestyle="--", label="commoner label")
    left.set(xlabel="million tokens", ylabel="nats per masked token", title="MLM loss")
    right.set(xlabel="million tokens", title=title)
    left.legend()
    right.legend()
    return to_png(figure)


def plot_finetuning(rows: list[dict[str, Any]]) -> bytes:
    """Accuracy over the steps; a PNG."""
    figure, (axis,) = new_figure(1)
    for split, style in (("train", "-"), ("validation", "o-")):
        chosen = [row for row in rows if row["stage"] == "finetune" and row["split"] == split]
        axis.plot(
            [row["step"] for row in chosen], [row["accuracy"] for row in chosen], style, markersize=4, label=split
        )
    axis.set(xlabel="step", title="accuracy")
    axis.legend()
    return to_png(figure)


def new_figure(columns: int) -> tuple[Any, list[Any]]:
    """A figure with axes side by side, drawn without a screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * columns, 3.4), dpi=110, layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, columns)))


def to_png(figure: Any) -> bytes:
    """A figure as a PNG file's bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def image(png: bytes) -> str:
    """A picture inside the page."""
    return f"<img alt='' src='data:image/png;base64,{base64.b64encode(png).decode()}'>"
