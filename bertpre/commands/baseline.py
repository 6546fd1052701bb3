"""`bertpre baseline`: what a pretrained model must beat, on the same examples, in one table."""

import time
from typing import Any

from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.fit import Fitted, encode_once, fit
from bertpre.finetuning.inference import apply
from bertpre.finetuning.linear import BAGS, Predictor
from bertpre.finetuning.scores import score
from bertpre.finetuning.splits import read_further, read_parts, read_test, require_finetune
from bertpre.recipe import METRICS, Recipe
from bertpre.reporting.evaluation import own_row
from bertpre.reporting.report import write_report
from bertpre.run_directory import claim, one_at_a_time, read_results, write_results
from bertpre.runtime import start_accelerator
from bertpre.training.trackers import MetricsLog


@one_at_a_time
def baseline(recipe: Recipe) -> dict[str, Any]:
    """Train and test what a user would otherwise do; prints and keeps one table.

    TF-IDF with logistic (or ridge) regression, of words and of words and bigrams; NB-SVM with trigrams; and the
    recipe's network without pretraining, where the run has a tokenizer; beside them this run's model, where `evaluate`
    has measured it. Raises UserError for words, which have no such baselines.
    """
    settings = require_finetune(recipe)
    if settings.task not in BAGS:
        raise UserError(f"baselines are for {', '.join(BAGS)}; finetune.task is {settings.task}")
    folder = claim(recipe)
    parts = read_parts(recipe)
    training, validation, test = parts.training, parts.validation, read_test(recipe, parts)
    rows: dict[str, Any] = {}
    for name, train in BAGS[settings.task].items():
        start = time.perf_counter()
        row = measured(settings.task, train(training), validation, test)
        rows[name] = row | {"seconds": time.perf_counter() - start}
        print_row(name, rows[name])
    if (folder / "tokenizer").exists():
        start, accelerator = time.perf_counter(), start_accelerator()
        log = MetricsLog(folder / "metrics.jsonl", "no pretraining", accelerator.is_main_process)
        unlabelled = read_further(recipe, parts)
        encode = encode_once(settings, training, unlabelled, accelerator)
        fitted = fit(recipe, training, validation, encode, "random", recipe.seed, accelerator, log)
        row = measured(settings.task, predictor(recipe, fitted), None, test)
        row["validation"] = fitted.figures.get("validation", {}).get(METRICS[settings.task][0])
        rows["no pretraining"] = row | {"seconds": time.perf_counter() - start}
        print_row("no pretraining", rows["no pretraining"])
    write_results(folder, "baseline", rows)
    results = read_results(folder)
    if "evaluate" in results:
        print_row("this run", own_row(settings.task, results))
    write_report(folder, recipe)
    return rows


def predictor(recipe: Recipe, fitted: Fitted) -> Predictor:
    """A trained network as the bags of words are: examples in, probabilities out."""

    return lambda examples: apply(recipe, fitted.model, fitted.tokenizer, fitted.task, examples)[1]


def measured(kind: str, predict: Predictor, validation: Examples | None, test: Examples) -> dict[str, Any]:
    """The task's main figures on the test split, and the first of them on the validation part."""
    row = main_figures(kind, score(kind, test.labels, predict(test), test.classes))
    held_out = None
    if validation is not None:
        held_out = score(kind, validation.labels, predict(validation), test.classes)[METRICS[kind][0]]
    return {"validation": held_out} | row


def main_figures(kind: str, figures: dict[str, Any]) -> dict[str, float]:
    """The figures that name how good a model is."""
    return {name: figures[name] for name in METRICS[kind] if name != "loss"}


def print_row(name: str, row: dict[str, Any]) -> None:
    """One line of the table."""
    told = [f"{of} {value:.4f}" for of, value in row.items() if of != "seconds" and value is not None]
    print(f"baseline: {name:<22} {'  '.join(told)}  {row['seconds']:.0f} s", flush=True)
