"""`bertpre baseline`: what a pretrained model must beat, on the same examples, in one table."""

import time
from typing import Any

from bertpre.bags import BAGS, Predictor
from bertpre.data.labelled import Examples, encode_examples
from bertpre.errors import UserError
from bertpre.evaluate import read_test
from bertpre.finetune import Fitted, fit, infer, read_parts, require_finetune
from bertpre.recipe import Recipe
from bertpre.report import write_report
from bertpre.report_evaluation import own_row
from bertpre.run_directory import claim, one_at_a_time, read_results, write_results
from bertpre.runtime import choose_dtype, start_accelerator
from bertpre.scores import score
from bertpre.training.trackers import MetricsLog


@one_at_a_time
def baseline(recipe: Recipe) -> dict[str, Any]:
    """Train and test what a user would otherwise do; prints and keeps one table.

    TF-IDF with logistic regression, of words and of words and bigrams; NB-SVM with trigrams; and the recipe's network
    without pretraining, where the run has a tokenizer; beside them this run's classifier, where `evaluate` has measured
    it. Raises UserError for a task that is not classification.
    """
    settings = require_finetune(recipe)
    if settings.task != "classification":
        raise UserError(f"baselines are for classification; finetune.task is {settings.task}")
    folder = claim(recipe)
    training, validation = read_parts(recipe)
    test = read_test(recipe, training.classes)
    rows: dict[str, Any] = {}
    for name, train in BAGS.items():
        start = time.perf_counter()
        rows[name] = measured(train(training), validation, test) | {"seconds": time.perf_counter() - start}
        print_row(name, rows[name])
    if (folder / "tokenizer").exists():
        start, accelerator = time.perf_counter(), start_accelerator()
        log = MetricsLog(folder / "metrics.jsonl", "no pretraining", accelerator.is_main_process)
        fitted = fit(recipe, training, validation, "random", recipe.seed, accelerator, log)
        row = measured(predictor(recipe, fitted), None, test)
        row["validation_accuracy"] = fitted.figures.get("validation", {}).get("accuracy")
        rows["no pretraining"] = row | {"seconds": time.perf_counter() - start}
        print_row("no pretraining", rows["no pretraining"])
    write_results(folder, "baseline", rows)
    results = read_results(folder)
    if "evaluate" in results:
        print_row("this run", own_row(results))
    write_report(folder, recipe)
    return rows


def predictor(recipe: Recipe, fitted: Fitted) -> Predictor:
    """A trained network as the bags of words are: examples in, probabilities out."""

    def predict(examples: Examples) -> Any:
        settings, accelerator = recipe.finetune, start_accelerator()
        encoded = encode_examples(fitted.tokenizer, examples, settings.max_length, settings.truncation)
        dtype = choose_dtype(recipe.training.precision, accelerator.device)
        return infer(fitted.model, fitted.task, encoded, fitted.tokenizer.pad_token_id, dtype, accelerator)

    return predict


def measured(predict: Predictor, validation: Examples | None, test: Examples) -> dict[str, float | None]:
    """Accuracy and F1 on the test split, and the accuracy on the validation part."""
    tested = score("classification", test.labels, predict(test), test.classes)
    held_out = None
    if validation is not None:
        held_out = score("classification", validation.labels, predict(validation), test.classes)["accuracy"]
    return {"validation_accuracy": held_out, "accuracy": tested["accuracy"], "f1": tested["f1"]}


def print_row(name: str, row: dict[str, Any]) -> None:
    """One line of the table."""
    held_out = row["validation_accuracy"]
    shown = "" if held_out is None else f"validation {held_out:.4f}  "
    line = f"baseline: {name:<22} {shown}test {row['accuracy']:.4f}  F1 {row['f1']:.4f}  {row['seconds']:.0f} s"
    print(line, flush=True)
