"""The report: a self-contained page of a run's figures, and the lines that close a run."""

import html
import json
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.files import write_text
from bertpre.recipe import METRICS, Recipe, to_yaml
from bertpre.reporting.evaluation import evaluation_sections
from bertpre.reporting.page import image, new_figure, page, table, to_png
from bertpre.run_directory import read_manifest, read_results


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
    if any(row["stage"] == "pretrain" for row in rows):
        parts += [
            "<h2>Pretraining</h2>",
            image(plot_pretraining(rows, results)),
            f"<h3>Words hidden from the model, and its guesses</h3>{fillings(results)}",
        ]
    if any("accuracy" in row for row in rows if row["stage"] == "finetune"):
        parts += ["<h2>Fine-tuning</h2>", image(plot_finetuning(rows))]
    if recipe.finetune is not None:
        parts += evaluation_sections(results, recipe.finetune.task)
    parts += ["<h2>Recipe</h2>", f"<pre>{html.escape(to_yaml(recipe))}</pre>"]
    write_text(folder / "report.html", page(folder.name, parts))
    return folder / "report.html"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`."""
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def provenance(folder: Path) -> str:
    """Commit, versions and hardware in one line."""
    stages = read_manifest(folder)
    facts = stages.get("pretrain", stages.get("finetune"))
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
        rows += test_figures(measured)
    return rows


def test_figures(measured: dict[str, Any]) -> list[tuple[str, str]]:
    """The main figures on the test split."""
    rows = []
    for name in dict.fromkeys(name for names in METRICS.values() for name in names if name in measured):
        if name == "loss":
            continue
        is_share = name == "accuracy"
        of = f"{measured['words']:,} test words" if "words" in measured else f"{measured['examples']:,} test texts"
        text = f"{measured[name]:.2%} of {of}" if is_share else f"{measured[name]:.4f}"
        if name in measured["intervals"]:
            low, high = measured["intervals"][name]
            form = ".2%" if is_share else ".4f"
            text += f"; 95 % between {low:{form}} and {high:{form}}"
        if "seeds" in measured:
            over = measured["seeds"][name]
            text += f"; over {len(over['values'])} seeds {over['mean']:.4f} ± {over['std']:.4f}"
        if is_share and "bag_of_words" in measured:
            words = measured["bag_of_words"]["accuracy"]
            text += f"; a bag of words with logistic regression, same examples: {words:.2%}"
        rows.append((f"Test {name}", text))
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
        chosen = [row for row in rows if row["stage"] == "finetune" and row["split"] == split and "accuracy" in row]
        axis.plot(
            [row["step"] for row in chosen], [row["accuracy"] for row in chosen], style, markersize=4, label=split
        )
    axis.set(xlabel="step", title="accuracy")
    axis.legend()
    return to_png(figure)
