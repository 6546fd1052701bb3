"""The report of a run: a self-contained HTML page, and the closing lines on the terminal."""

import html
import shlex
from pathlib import Path
from typing import Any

from bertpre.console import dropped_text, figure_text, interval_text, program, spread_text, time_text
from bertpre.files import write_text
from bertpre.recipe import METRICS, Recipe, to_yaml
from bertpre.reporting.attention_maps import attention_section
from bertpre.reporting.corpus import corpus_section
from bertpre.reporting.curves import (
    REFERENCES,
    finetuning_charts,
    finetuning_stage,
    machine_charts,
    pretraining_charts,
    read_metrics,
)
from bertpre.reporting.evaluation import evaluation_section, overlap_text
from bertpre.reporting.masks import guesses_section, masked_pairs_section
from bertpre.reporting.page import folded, page, paragraph, table, time_bars
from bertpre.reporting.pair_results import pair_accuracy, pairs_kind
from bertpre.reporting.tiles import stage_seconds, tiles
from bertpre.run_directory import read_json, read_manifest, read_results


def write_report(folder: Path, recipe: Recipe) -> Path:
    """Write `report.html` from the results and metrics in `folder`; returns its path."""
    results, rows, name = read_results(folder), read_metrics(folder), folder.resolve().name
    kind = recipe.finetune.task if recipe.finetune is not None else None
    above = [
        f"<h1>{html.escape(name)}</h1>",
        paragraph(provenance(folder), "note"),
        tiles(results, kind),
        *(paragraph(note) for note in synthetic_notes(recipe)),
    ]
    sections = [
        ("Pretraining", pretraining_charts(rows, results)),
        ("Guesses for [MASK] through training", guesses_section(rows, results)),
        ("Masks at work", masked_pairs_section(folder, recipe) if "prepare" in results else ""),
        ("Attention by head", attention_section(folder, results)),
        ("Fine-tuning", finetuning_section(rows, results)),
        ("Test", evaluation_section(results, kind) if kind else ""),
        ("Corpus", corpus_section(results.get("prepare", {}))),
        ("Machine", machine_section(folder, rows, results)),
        ("All results", table(headline_rows(results))),
        ("What to do next", next_section(folder, recipe)),
        ("Recipe", folded("The complete recipe", f"<pre>{html.escape(to_yaml(recipe))}</pre>")),
    ]
    write_text(folder / "report.html", page(name, above, sections))
    return folder / "report.html"


def provenance(folder: Path) -> str:
    """Date, commit, versions and hardware in one line."""
    stages = read_manifest(folder)
    facts = stages.get("pretrain", stages.get("finetune"))
    if not facts:
        return ""
    hardware, versions = facts["hardware"], facts["versions"]
    return (
        f"{facts['date'][:10]}; bertpre {versions['bertpre']} (commit {facts['commit']}), torch "
        f"{versions['torch']}, transformers {versions['transformers']}; {hardware['device']}, threads "
        f"{hardware['threads']}, processes {hardware['processes']}, {hardware['precision']}"
    )


def finetuning_section(rows: list[dict[str, Any]], results: dict[str, Any]) -> str:
    """The curves of the kept classifier."""
    tuned, charts = results.get("finetune", {}), finetuning_charts(rows, finetuning_stage(rows, results))
    seeds = len(tuned.get("seeds", ()))
    which = "the best" if "validation" in tuned else "the first"
    note = paragraph(f"The curves of seed {tuned['seed']}, {which} of {seeds}.", "note") if charts and seeds else ""
    return note + charts


def machine_section(folder: Path, rows: list[dict[str, Any]], results: dict[str, Any]) -> str:
    """The time of each stage, the curves that show how well the machine was used, and what each stage ran with."""
    seconds = stage_seconds(results)
    if not seconds and not rows:
        return ""
    words = {name: time_text(value) for name, value in seconds.items()}
    parts = ["<h3>Time of each stage</h3>", time_bars(seconds, words)]
    for stage, name in (("pretrain", "Pretraining"), (finetuning_stage(rows, results), "Fine-tuning")):
        if charts := machine_charts(rows, stage):
            parts += [f"<h3>{name}: learning rate, gradient norm, throughput</h3>", charts]
    facts = []
    if parameters := results.get("pretrain", {}).get("parameters"):
        facts.append(("Parameters", f"{parameters:,}"))
    if memory := max((row.get("peak_memory_mb") or 0 for row in rows), default=0):
        facts.append(("Peak memory", f"{memory:,} MB"))
    parts.append(table(facts) if facts else "")
    for stage, each in read_manifest(folder).items():
        parts.append(folded(f"{stage}: versions, hardware and command", table(manifest_rows(folder, each))))
    return "".join(parts)


def manifest_rows(folder: Path, facts: dict[str, Any]) -> list[tuple[str, str]]:
    """What one stage ran with."""
    return [
        ("Date", facts["date"][:10]),
        ("Command", facts["command"]),
        ("Hardware", hardware_text(facts)),
        ("Versions", versions_text(facts)),
        ("Commit", str(facts["commit"])),
    ]


def hardware_text(facts: dict[str, Any]) -> str:
    """The hardware that one stage ran with, for reading."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts["hardware"].items())


def versions_text(facts: dict[str, Any]) -> str:
    """The versions that one stage ran with, for reading; of packages that were there."""
    return ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)


def next_section(folder: Path, recipe: Recipe) -> str:
    """The next steps as commands and code."""
    run = shlex.quote(str(folder))
    lines = next_lines(folder, recipe)[2:]
    if (folder / "model").is_dir():
        lines += [f"  Measure the model:  {program()} probe {run}"]
        lines += [f"  Export, ONNX:       {program()} export {run} --to onnx"]
    if (folder / "model").is_dir() or (folder / "finetuned").is_dir():
        lines += [f"  Share on the Hub:   {program()} push {run} NAME/REPOSITORY"]
    lines += [f"  Compare with a run: {program()} report {run} OTHER_RUN"]
    return f"<pre>{html.escape(chr(10).join(line.removeprefix('  ') for line in lines))}</pre>"


def headline_rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """The main results: a name and a value, with the value to compare it with."""
    rows: list[tuple[str, str]] = []
    if prepared := results.get("prepare"):
        rows.append(("Corpus", f"{prepared['documents']:,} documents, {prepared['tokens']:,} tokens"))
        if prepared["dropped"]:
            rows.append(("Dropped documents", dropped_text(prepared["dropped"])))
    if "pretrain" in results:
        rows += pretraining_rows(results)
    if tuned := results.get("finetune"):
        texts = f"{tuned['epochs']} epoch{'s' * (tuned['epochs'] != 1)} on {tuned['examples']:,} texts"
        rows.append(("Fine-tuning", f"{texts}, {time_text(tuned['seconds'])}"))
    if measured := results.get("evaluate"):
        rows += test_rows(measured)
    return rows


def pretraining_rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Length of the pretraining and its validation metrics, each against what needs no context or no model."""
    trained, kind = results["pretrain"], pairs_kind(results)
    # Runs of before 2026-11-26 lack the epochs.
    epochs = f" ({times_read(trained['epochs'], kind)})" if "epochs" in trained else ""
    length = f"{trained['steps']:,} steps, {trained['tokens']:,} tokens{epochs}, {time_text(trained['seconds'])}"
    return [("Pretraining", length), *validation_rows(trained, kind)]


def times_read(epochs: float, kind: str) -> str:
    """How often a pretraining has read its text; with pairs that is more than its passes: random segments repeat it."""
    return f"{epochs:.1f} " + ("epochs" if kind == "none" else "times the text")


def validation_rows(trained: dict[str, Any], kind: str) -> list[tuple[str, str]]:
    """The validation metrics of a pretraining, each against what needs no context or no model."""
    validation = trained["validation"]
    references = ", ".join(f"{name} {trained[key]:.3f}" for key, name in REFERENCES.items() if key in trained)
    rows = [
        ("MLM loss", f"{validation['mlm_loss']:.3f} nats per masked token ({references})"),
        ("MLM accuracy", f"{validation['mlm_accuracy']:.1%}"),
    ]
    if kind == "none":
        return rows
    text = "not measured: no validation pair has a label"
    if (accuracy := pair_accuracy(validation, kind)) is not None:
        text = f"{accuracy:.1%}"
        if "nsp_interval" in validation:
            text += f" of {validation['nsp_pairs']:,} pairs; {interval_text(validation['nsp_interval'], '.1%')}"
            text += f" (majority class {validation['nsp_majority_share']:.1%})"
    rows.append((f"{kind.upper()} accuracy", text))
    return rows


def test_rows(measured: dict[str, Any]) -> list[tuple[str, str]]:
    """The main metrics on the test split."""
    rows = []
    units = f"{measured['words']:,} test words" if "words" in measured else f"{measured['examples']:,} test texts"
    if unscored := measured.get("unscored_words"):
        units += f" ({unscored:,} more lie beyond finetune.max_length and are not scored)"
    shown = dict.fromkeys((*(name for names in METRICS.values() for name in names), "f1_macro", "rmse", "mae"))
    for name in (name for name in shown if name in measured and name != "loss"):
        form = ".2%" if name == "accuracy" else None
        text = figure_text(measured[name]) if form is None else f"{measured[name]:{form}} of {units}"
        if name == "f1" and "confusion" in measured and "words" not in measured and len(measured["confusion"]) == 2:
            text += f" of {list(measured['per_class'])[1]!r}"
        if name in measured["intervals"]:
            text += f"; {interval_text(measured['intervals'][name], form)}"
        if name in measured.get("seeds", {}):
            over = measured["seeds"][name]
            text += f"; over {len(over['values'])} seeds {spread_text(over)}"
        if name == "accuracy" and "bag_of_words" in measured:
            accuracy = measured["bag_of_words"]["accuracy"]
            text += f"; bag of words with logistic regression on the same examples: {accuracy:.2%}"
        rows.append((f"Test {name}", text))
    if "overlap" in measured:  # not in results of earlier versions
        rows.append(("Overlap", overlap_text(measured)))
    if measured.get("chosen_on_test"):
        rows.append(("Selection", "the best epoch was selected on these test texts, so the scores are optimistic"))
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
    if (tuning := recipe.finetune) is not None and (folder / "finetuned").is_dir():
        task = "token-classification" if tuning.task == "tokens" else "text-classification"
        single = '"A wonderful film."' if tuning.path == "sample" else '"A text of yours."'
        is_words = tuning.task == "tokens"  # that pipeline cuts by itself, and only a word's first token is trained
        options = ', aggregation_strategy="first"' if is_words else ", truncation=True"
        texts = single if tuning.text_pair_column is None else "--file pairs.csv"
        lines += [
            f"  Label texts:        {program()} predict {run} {texts}",
            "  Load in Python:     from transformers import pipeline",
            f'                      classify = pipeline("{task}", {loading(folder / "finetuned")}{options})',
        ]
    elif (folder / "model").is_dir():
        lines += [
            f'  Fill a gap:         {program()} fill {run} "A text with a [MASK]."',
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
