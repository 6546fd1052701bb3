"""The report of a run: a self-contained HTML page, and the closing lines on the terminal."""

import html
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.console import duration, program
from bertpre.files import write_text
from bertpre.recipe import METRICS, Recipe, to_yaml
from bertpre.reporting.evaluation import evaluation_sections, overlap_text
from bertpre.reporting.page import image, new_figure, page, table, to_png
from bertpre.run_directory import read_json, read_manifest, read_results

# What an MLM loss is held against, in the order of its importance; runs of before 2026-11-23 have the entropy only.
REFERENCES = {"context_free_loss": "context-free loss", "unigram_entropy": "unigram entropy"}


def write_report(folder: Path, recipe: Recipe) -> Path:
    """Write `report.html` from the results and metrics in `folder`; returns its path."""
    results, rows = read_results(folder), read_metrics(folder)
    parts = [
        f"<h1>{html.escape(folder.name)}</h1>",
        f"<p class=note>{html.escape(provenance(folder))}</p>",
        "<h2>Results</h2>",
        table(headline_rows(results)),
        *(f"<p>{html.escape(note)}</p>" for note in synthetic_notes(recipe)),
    ]
    if histograms := results.get("prepare", {}).get("histograms"):
        parts += ["<h2>Corpus</h2>", image(plot_lengths(histograms))]
    if any(row["stage"] == "pretrain" for row in rows):
        parts += [
            "<h2>Pretraining</h2>",
            image(plot_pretraining(rows, results)),
            f"<h3>Masked words and the model's guesses</h3>{fillings(results)}",
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
        f"{versions['transformers']}; {hardware['device']}, threads {hardware['threads']}, "
        f"processes {hardware['processes']}, {hardware['precision']}"
    )


def headline_rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """The main results: a name and a value, with the value to compare it with."""
    rows: list[tuple[str, str]] = []
    if prepared := results.get("prepare"):
        rows.append(("Corpus", f"{prepared['documents']:,} documents, {prepared['tokens']:,} tokens"))
        if prepared["dropped"]:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in prepared["dropped"].items())
            rows.append(("Dropped documents", reasons))
    if "pretrain" in results:
        rows += pretraining_rows(results)
    if tuned := results.get("finetune"):
        texts = f"{tuned['epochs']} epoch{'s' * (tuned['epochs'] != 1)} on {tuned['examples']:,} texts"
        rows.append(("Fine-tuning", f"{texts}, {duration(tuned['seconds'])}"))
    if measured := results.get("evaluate"):
        rows += test_rows(measured)
    return rows


def pretraining_rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Length of the pretraining and its validation metrics, each against what needs no context or no model."""
    trained = results["pretrain"]
    length = f"{trained['steps']:,} steps, {trained['tokens']:,} tokens, {duration(trained['seconds'])}"
    return [("Pretraining", length), *validation_rows(trained, results.get("prepare", {}).get("pairs_kind", "nsp"))]


def validation_rows(trained: dict[str, Any], pairs_kind: str) -> list[tuple[str, str]]:
    """The validation metrics of a pretraining, each against what needs no context or no model."""
    validation = trained["validation"]
    references = ", ".join(f"{name} {trained[key]:.3f}" for key, name in REFERENCES.items() if key in trained)
    rows = [
        ("MLM loss", f"{validation['mlm_loss']:.3f} nats per masked token ({references})"),
        ("MLM accuracy", f"{validation['mlm_accuracy']:.1%}"),
    ]
    if pairs_kind == "none":
        return rows
    text = "not measured: no validation pair has a label"
    if validation.get("nsp_pairs", 1) and "nsp_accuracy" in validation:  # older runs do not say of how many pairs
        text = f"{validation['nsp_accuracy']:.1%}"
        if "nsp_interval" in validation:
            low, high = validation["nsp_interval"]
            text += f" of {validation['nsp_pairs']:,} pairs; 95 % CI {low:.1%}-{high:.1%}"
            text += f" (majority class {validation['nsp_majority_share']:.1%})"
    rows.append((f"{pairs_kind.upper()} accuracy", text))
    return rows


def test_rows(measured: dict[str, Any]) -> list[tuple[str, str]]:
    """The main metrics on the test split."""
    rows = []
    units = f"{measured['words']:,} test words" if "words" in measured else f"{measured['examples']:,} test texts"
    for name in dict.fromkeys(name for names in METRICS.values() for name in names if name in measured):
        if name == "loss":
            continue
        form, of = (".2%", f" of {units}") if name == "accuracy" else (".4f", "")
        text = f"{measured[name]:{form}}{of}"
        if name in measured["intervals"]:
            low, high = measured["intervals"][name]
            text += f"; 95 % CI {low:{form}}{'-' if low >= 0 else ' to '}{high:{form}}"
        if "seeds" in measured:
            over = measured["seeds"][name]
            text += f"; over {len(over['values'])} seeds {over['mean']:.4f} ± {over['std']:.4f}"
        if name == "accuracy" and "bag_of_words" in measured:
            accuracy = measured["bag_of_words"]["accuracy"]
            text += f"; bag of words with logistic regression on the same examples: {accuracy:.2%}"
        rows.append((f"Test {name}", text))
    if "overlap" in measured:  # not in results of earlier versions
        rows.append(("Overlap", overlap_text(measured)))
    return rows


def synthetic_notes(recipe: Recipe) -> list[str]:
    """What the results of a run on the embedded corpus mean; empty for any other corpus."""
    notes = []
    if recipe.corpus is not None and recipe.corpus.path == "sample":
        notes.append("The corpus is synthetic: a program in bertpre generates its texts from templates.")
    if recipe.finetune is not None and (recipe.evaluate.path or recipe.finetune.path) == "sample":
        notes.append(
            "The test reviews are generated too. Their accuracy shows that every stage works, not how well the "
            "classifier reads real reviews: those are far more varied."
        )
    return notes


def closing_lines(folder: Path, recipe: Recipe) -> list[str]:
    """What a run prints last: its results, what they mean if the corpus is synthetic, and its files."""
    results = read_results(folder)
    lines = ["", "Results", *(f"  {name:<17} {value}" for name, value in headline_rows(results))]
    lines += [f"  {note}" for note in synthetic_notes(recipe)]
    for filling in results.get("pretrain", {}).get("fillings", []):
        guesses = ", ".join(filling["guesses"])
        lines.append(f"  {filling['sentence']}\n    -> {guesses} (original: {filling['answer']})")
    files = {
        "report.html": "report", "model": "pretrained model", "finetuned": "classifier",
        "tokenizer": "tokenizer", "metrics.jsonl": "metrics of every logged step", "results.json": "all results",
    }  # fmt: skip
    found = [f"  {folder / name}  ({content})" for name, content in files.items() if (folder / name).exists()]
    return [*lines, "", "Files", *found]


def next_lines(folder: Path, recipe: Recipe) -> list[str]:
    """Commands and code for the next steps after a finished run."""
    run, lines = shlex.quote(str(folder)), ["", "Next"]
    if (tuning := recipe.finetune) is not None:
        task = "token-classification" if tuning.task == "tokens" else "text-classification"
        texts = '"A wonderful film."' if tuning.text_pair_column is None else "--file pairs.csv"
        lines += [
            f"  Label texts:        {program()} predict {run} {texts}",
            "  Load in Python:     from transformers import pipeline",
            f'                      classify = pipeline("{task}", {loading(folder / "finetuned")})',
        ]
    else:
        lines += [
            "  Load in Python:     from transformers import pipeline",
            f'                      fill = pipeline("fill-mask", {loading(folder / "model")})',
        ]
    if recipe.corpus is not None and recipe.corpus.path == "sample":
        lines += [
            f"  Use your own data:  {program()} init own-text my.yaml",
            f"                      {program()} run my.yaml corpus.path='notes/**/*.txt' finetune.path=labels.csv",
        ]
    return lines


def loading(model: Path) -> str:
    """The arguments with which transformers loads a model's folder; one with code of its own needs permission."""
    has_code = "auto_map" in read_json(model / "config.json")
    return f'"{model}"{", trust_remote_code=True" if has_code else ""}'


def fillings(results: dict[str, Any]) -> str:
    """A list of the sentences with a masked word."""
    items = []
    for filling in results.get("pretrain", {}).get("fillings", []):
        sentence = html.escape(filling["sentence"]).replace("[MASK]", "<mark>[MASK]</mark>")
        guesses, answer = html.escape(", ".join(filling["guesses"])), html.escape(filling["answer"])
        items.append(f"<li>{sentence}<br>guesses: <b>{guesses}</b>; original: {answer}</li>")
    return f"<ul>{''.join(items)}</ul>"


def plot_lengths(histograms: dict[str, list[int]]) -> bytes:
    """Histograms of the lengths of documents and sentences, in bins of doubling width; a PNG."""
    figure, axes = new_figure(len(histograms))
    for axis, (name, counts) in zip(axes, histograms.items(), strict=True):
        bins = range(len(counts))
        axis.bar(bins, counts, width=0.9)
        axis.set_xticks(bins, [f"{1 << number:,}" for number in bins], rotation=45)
        axis.set(xlabel="tokens (start of each bin)", title=name.replace("_", " "))
    return to_png(figure)


def plot_pretraining(rows: list[dict[str, Any]], results: dict[str, Any]) -> bytes:
    """MLM loss with the context-free loss, and NSP, SOP or else MLM accuracy, over tokens seen; a PNG."""
    figure, (left, right) = new_figure(2)
    pairs = any("nsp_accuracy" in row for row in rows)
    name = "nsp_accuracy" if pairs else "mlm_accuracy"
    title = "SOP" if results.get("prepare", {}).get("pairs_kind") == "sop" else "NSP"
    for split, style in (("train", "-"), ("validation", "o-")):
        chosen = [row for row in rows if row["stage"] == "pretrain" and row["split"] == split]
        tokens = np.array([row["tokens"] for row in chosen]) / 1e6
        left.plot(tokens, [row["mlm_loss"] for row in chosen], style, markersize=3, label=split)
        right.plot(tokens, [row.get(name, np.nan) for row in chosen], style, markersize=3, label=split)
    trained = results.get("pretrain", {})
    for key, name in REFERENCES.items():
        if key in trained:
            left.axhline(trained[key], color="grey", linestyle=":" if "entropy" in key else "--", label=name)
    if majority := trained.get("validation", {}).get("nsp_majority_share"):
        right.axhline(majority, color="grey", linestyle="--", label="majority class")
    left.set(xlabel="million tokens", ylabel="nats per masked token", title="MLM loss")
    right.set(xlabel="million tokens", title=f"{title if pairs else 'MLM'} accuracy")
    left.legend()
    right.legend()
    return to_png(figure)


def plot_finetuning(rows: list[dict[str, Any]]) -> bytes:
    """Training and validation accuracy over the steps; a PNG."""
    figure, (axis,) = new_figure(1)
    for split, style in (("train", "-"), ("validation", "o-")):
        chosen = [row for row in rows if row["stage"] == "finetune" and row["split"] == split and "accuracy" in row]
        axis.plot(
            [row["step"] for row in chosen], [row["accuracy"] for row in chosen], style, markersize=4, label=split
        )
    axis.set(xlabel="step", title="accuracy")
    axis.legend()
    return to_png(figure)
