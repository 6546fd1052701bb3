"""`bertpre baseline`: linear models and the network without pretraining, on the same examples, in one table."""

import time
from pathlib import Path
from typing import Any

from bertpre.console import time_text
from bertpre.errors import UserError
from bertpre.finetuning.encoding import without_cut_words
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.fit import FineTuning
from bertpre.finetuning.linear import Predictor, linear_models
from bertpre.finetuning.loading import can_start_at_random, load_own_tokenizer, recipe_tokenizer
from bertpre.finetuning.scores import main_metrics, score
from bertpre.finetuning.seeds import compared_fingerprint, examples_fingerprint, learned_fingerprint
from bertpre.finetuning.splits import Labelled
from bertpre.recipe import Recipe
from bertpre.reporting.evaluation import is_comparable, own_row
from bertpre.reporting.report import write_report
from bertpre.run_directory import claim, one_at_a_time, read_results, write_results
from bertpre.runtime import start_accelerator

UNTRAINED = "no pretraining"


@one_at_a_time
def baseline(recipe: Recipe) -> dict[str, Any]:
    """Train and test what a pretrained model must beat; prints and keeps one table.

    TF-IDF of words, and of words and bigrams, with logistic (or ridge) regression; NB-SVM on trigrams; for the task
    `tokens` the majority tag of each word, and logistic regression on the word and its neighbours, for the words that
    the network reads; and the recipe's network without pretraining, if there is a tokenizer. If `evaluate` has measured
    this run's model on these examples, with these settings, its row is added.
    """
    settings = recipe.required_finetune
    folder, models = claim(recipe), linear_models(settings.task)
    labelled = Labelled(recipe)
    parts, test = labelled.parts, labelled.test
    validation = parts.validation and without_unread_words(recipe, parts.validation)
    read = without_unread_words(recipe, test)
    rows: dict[str, Any] = {}
    for name, fit in models.items():
        start = time.perf_counter()
        row = measure(settings.task, fit(parts.training), validation, read)
        rows[name] = row | {"seconds": time.perf_counter() - start}
        print_row(name, rows[name])
    write_results(folder, "baseline", rows)
    learned, tested = learned_fingerprint(labelled), examples_fingerprint([test])
    write_results(folder, "baseline_of", compared_fingerprint(recipe, learned, tested))
    if can_start_at_random(recipe, "baseline"):
        rows[UNTRAINED] = measure_untrained(labelled)
        print_row(UNTRAINED, rows[UNTRAINED])
        write_results(folder, "baseline", rows)
    results = read_results(folder)
    if is_comparable(results):
        print_row("this run", own_row(settings.task, results))
    elif "evaluate" in results:
        print(
            "warning: this run's model was tested with other texts or settings, so it is not in the table; "
            "`bertpre evaluate` tests it on these"
        )
    write_report(folder, recipe)
    return rows


def without_unread_words(recipe: Recipe, examples: Examples) -> Examples:
    """The examples; in the task `tokens` without the words beyond the network's longest text, if it has a tokenizer."""
    settings, tuned = recipe.required_finetune, Path(recipe.output_dir) / "finetuned"
    if settings.task != "tokens":
        return examples
    try:
        tokenizer = load_own_tokenizer(str(tuned)) if tuned.exists() else recipe_tokenizer(recipe)
    except (UserError, ValueError):
        return examples
    return without_cut_words(tokenizer, examples, settings.max_length)


def measure(kind: str, predict: Predictor, validation: Examples | None, test: Examples) -> dict[str, Any]:
    """The task's main metrics on the test split, and the first of them on the validation part."""
    names, held_out = main_metrics(kind), None
    if validation is not None:
        held_out = score(kind, validation.labels, predict(validation), test.classes)[names[0]]
    tested = score(kind, test.labels, predict(test), test.classes)
    return {"validation": held_out} | {name: tested[name] for name in names}


def measure_untrained(labelled: Labelled) -> dict[str, Any]:
    """The row of the recipe's network, fine-tuned from random weights."""
    start, recipe, parts = time.perf_counter(), labelled.recipe, labelled.parts
    tuning = FineTuning(recipe, "random", start_accelerator(), parts.training, parts.validation, labelled.unlabelled)
    classifier, metrics = tuning.fit(recipe.seed, UNTRAINED)
    labels, outputs = classifier.apply(labelled.test)  # without the words that were cut off
    task = recipe.required_finetune.task
    tested, names = score(task, labels, outputs, labelled.test.classes), main_metrics(task)
    row = {"validation": metrics.get("validation", {}).get(names[0])} | {name: tested[name] for name in names}
    return row | {"seconds": time.perf_counter() - start}


def print_row(name: str, row: dict[str, Any]) -> None:
    """Print one line of the table."""
    values = [f"{metric} {value:.4f}" for metric, value in row.items() if metric != "seconds" and value is not None]
    print(f"baseline: {name:<22} {'  '.join(values)}  {time_text(row['seconds'])}", flush=True)
