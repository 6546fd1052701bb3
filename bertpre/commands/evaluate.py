"""`bertpre evaluate`: the classifier on the test split, read once, beside a bag of words."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.inference import apply
from bertpre.finetuning.linear import words_classifier
from bertpre.finetuning.loading import load_classifier
from bertpre.finetuning.mistakes import worst_mistakes
from bertpre.finetuning.scores import intervals, score, spread
from bertpre.finetuning.splits import chosen_on_test, read_parts, read_test, require_finetune
from bertpre.finetuning.task import Task
from bertpre.recipe import METRICS, Recipe
from bertpre.reporting.report import write_report
from bertpre.run_directory import claim, read_results, write_results
from bertpre.runtime import start_accelerator

if TYPE_CHECKING:
    pass


def evaluate(recipe: Recipe) -> dict[str, Any]:
    """Measure the fine-tuned classifier on the test split; returns the figures for `results.json`.

    Where there are several seeds all of them are measured, and mean and deviation given too.
    """
    settings, folder = require_finetune(recipe), claim(recipe)
    if not (folder / "finetuned").exists():
        raise UserError(f"no classifier in {folder}/finetuned: run `bertpre finetune` first")
    start = time.perf_counter()
    start_accelerator()  # keeps the libraries' bars off the screen
    parts = read_parts(recipe)
    test = read_test(recipe, parts)
    if chosen_on_test(recipe):
        print("evaluate: the best epoch was chosen on these very texts: what follows is flattered")
    labels, outputs = predict_test(recipe, folder / "finetuned", test)
    figures = score(settings.task, labels, outputs, test.classes)
    if settings.seeds > 1:
        figures["seeds"] = over_seeds(recipe, folder, test, figures)
    figures |= {"intervals": intervals(settings.task, labels, outputs, test.classes), "examples": len(test)}
    write_predictions(folder / "predictions.parquet", test, labels, outputs)
    figures["mistakes"] = worst_mistakes(settings.task, test, labels, outputs)
    figures["seconds"] = time.perf_counter() - start
    if recipe.evaluate.bag_of_words and settings.task == "classification":
        before = time.perf_counter()
        predicted = words_classifier(parts.training)(test)
        words = score(settings.task, test.labels, predicted, test.classes)
        figures["bag_of_words"] = {"accuracy": words["accuracy"], "seconds": time.perf_counter() - before}
    write_results(folder, "evaluate", figures)
    write_report(folder, recipe)
    print(f"evaluate: {summary(settings.task, figures)} on {len(test):,} test texts")
    return figures


def predict_test(recipe: Recipe, folder: Path, test: Examples) -> tuple[Any, Any]:
    """The labels of the test split and what the classifier in `folder` makes of it."""
    model, tokenizer = load_classifier(folder, recipe.finetune.task, test.classes)
    return apply(recipe, model, tokenizer, Task(recipe.finetune.task, test.classes), test)


def over_seeds(recipe: Recipe, folder: Path, test: Examples, best: dict[str, Any]) -> dict[str, Any]:
    """Mean, deviation and each value of the figures over the classifiers of all seeds; `best` is the kept one's."""
    kept, rows = read_results(folder)["finetune"]["seed"], []
    for seed in range(recipe.seed, recipe.seed + recipe.finetune.seeds):
        measured = best
        if seed != kept:
            labels, outputs = predict_test(recipe, folder / "seeds" / str(seed), test)
            measured = score(recipe.finetune.task, labels, outputs, test.classes)
        rows.append({name: value for name, value in measured.items() if isinstance(value, float)})
    return {name: spread([row[name] for row in rows]) for name in rows[0]}


def write_predictions(file: Path, test: Examples, labels: Any, outputs: Any) -> None:
    """One row a text, in the split's order: name, text, label, prediction, and what the model gives each class."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    columns: dict[str, Any] = {"id": test.ids, "text": test.texts}
    if test.pairs is not None:
        columns["text_pair"] = test.pairs
    if isinstance(labels, list):  # words
        name = test.classes.__getitem__
        columns["labels"] = [list(map(name, row)) for row in labels]
        columns["predictions"] = [list(map(name, row.argmax(-1))) for row in outputs]
    elif outputs.ndim == 1:  # numbers
        columns |= {"label": labels, "prediction": outputs}
    else:
        if labels.ndim == 1:
            columns["label"] = [test.classes[label] for label in labels]
            columns["prediction"] = [test.classes[label] for label in outputs.argmax(-1)]
        else:
            columns |= {f"label_{name}": labels[:, number] for number, name in enumerate(test.classes)}
        columns |= {f"probability_{name}": outputs[:, number] for number, name in enumerate(test.classes)}
    write_table(pa.table(columns), file)


def summary(kind: str, figures: dict[str, Any]) -> str:
    """The main figures in a line, with their intervals."""
    names = [name for name in METRICS[kind] if name != "loss"]
    parts = []
    for name in names:
        low, high = figures["intervals"].get(name, (None, None))
        between = "" if low is None else f" (95 % between {low:.4f} and {high:.4f})"
        parts.append(f"{name} {figures[name]:.4f}{between if name == names[0] else ''}")
    if "seeds" in figures:
        over = figures["seeds"][names[0]]
        parts.append(f"over {len(over['values'])} seeds {over['mean']:.4f} ± {over['deviation']:.4f}")
    return ", ".join(parts)
