"""`bertpre evaluate`: the classifier on the test split, which is read once, next to a bag of words."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.console import interval_text, spread_text
from bertpre.data.failures import failures_explained
from bertpre.data.local_files import files_by_split
from bertpre.errors import UserError
from bertpre.files import write_bytes
from bertpre.finetuning.encoding import cut_text
from bertpre.finetuning.examples import Examples, overlap, read_examples
from bertpre.finetuning.label_advice import shifted_class
from bertpre.finetuning.linear import fit_tfidf
from bertpre.finetuning.loading import load_classifier
from bertpre.finetuning.mistakes import worst_mistakes
from bertpre.finetuning.scores import intervals, main_metrics, score
from bertpre.finetuning.seeds import compared_fingerprint, examples_fingerprint, learned_fingerprint, measure_seeds
from bertpre.finetuning.splits import (
    Labelled,
    Parts,
    chosen_on_test,
    digest_of_test,
    groups_of_alike,
    known_from_validation,
    own_parts,
    place_of_test,
    state_of_label_files,
)
from bertpre.recipe import Recipe, with_absolute_paths
from bertpre.recipe.schema import Evaluate
from bertpre.reporting.evaluation import overlap_text
from bertpre.reporting.report import write_report
from bertpre.run_directory import (
    claim,
    drop_results,
    is_finished,
    one_at_a_time,
    read_results,
    refuse_other_recipe,
    write_results,
)
from bertpre.runtime import start_accelerator

CHANGED = "the labelled texts have changed since the classifier was trained; `bertpre finetune` trains it on them"


@one_at_a_time
def evaluate(recipe: Recipe, labelled: Labelled | None = None) -> dict[str, Any]:
    """Measure the fine-tuned classifier on the test split; returns the metrics for `results.json`.

    With several seeds all their classifiers are measured, and mean and standard deviation reported too. `labelled` are
    the recipe's texts where they may have been read already.
    """
    settings, folder = recipe.required_finetune, claim(recipe)
    refuse_without_classifier(folder)
    start = time.perf_counter()
    start_accelerator()  # the process's settings for torch; hides the libraries' progress bars too
    labelled = labelled or Labelled(recipe)
    parts = labelled.parts
    if digest_of_test(parts) != read_results(folder).get("finetune", {}).get("test_digest"):
        raise UserError(
            "finetune.test_fraction: another part is set aside now than when the classifier was trained, because the "
            "texts, their labels or bertpre changed; run `bertpre finetune` again"
        )
    test, unlabelled = labelled.test, labelled.unlabelled
    learned, tested = learned_fingerprint(labelled), examples_fingerprint([test])
    has_changed = learned != read_results(folder)["finetune"].get("examples_digest")
    if has_changed:
        print(f"warning: {CHANGED}")
    known = known_from_validation(settings, parts, test)
    if is_chosen := chosen_on_test(recipe) or known == len(test):
        print("warning: the best epoch was selected on this test set; scores are optimistic")
    elif known:
        print(f"warning: {known:,} of {len(test):,} test texts equal a validation text, which chose the best epoch")
    metrics, labels, outputs = measure(recipe, parts, unlabelled, test)
    if settings.seeds > 1:
        metrics["seeds"] = measure_seeds(recipe, test, read_results(folder)["finetune"]["seed"], metrics)
    metrics |= {"examples_digest": tested, "label_files": state_of_label_files(recipe)}
    compared = compared_fingerprint(recipe, learned, tested)
    metrics |= {"chosen_on_test": is_chosen, "compared": None if has_changed else compared}
    write_predictions(folder / "predictions.parquet", test, labels, outputs)
    metrics["mistakes"] = worst_mistakes(settings.task, test, labels, outputs)
    metrics["seconds"] = time.perf_counter() - start
    if recipe.evaluate.bag_of_words and settings.task == "classification":
        start = time.perf_counter()
        words = score(settings.task, test.labels, fit_tfidf(parts.training)(test), test.classes)
        metrics["bag_of_words"] = {"accuracy": words["accuracy"], "seconds": time.perf_counter() - start}
    write_results(folder, "evaluate", metrics)
    if read_results(folder).get("baseline_of") not in (None, compared):
        print("evaluate: `bertpre baseline` had other texts or settings; its rows are removed, run it again")
        drop_results(folder, "baseline", "baseline_of")
    write_report(folder, recipe)
    print(f"evaluate: {summary(settings.task, metrics)} on {len(test):,} test texts")
    print(f"evaluate: {overlap_text(metrics)}")
    return metrics


def evaluate_file(recipe: Recipe, file: str) -> dict[str, Any]:
    """Measure the fine-tuned classifier on other labelled texts, a file or a folder; writes nothing, returns metrics.

    Their columns and classes are those of the recipe, whose training texts are read, too.
    """
    settings, folder, labelled = recipe.required_finetune, Path(recipe.output_dir), Labelled(recipe)
    refuse_without_classifier(folder)
    refuse_other_recipe(with_absolute_paths(recipe), folder / "recipe.yaml")
    if not file.strip():
        raise UserError("--file: is empty; give a file or a folder with labelled texts")
    start_accelerator()
    _, split = place_of_test(recipe.model_copy(update={"evaluate": Evaluate(path=file)}))
    with failures_explained(file, None, split, "--file"):
        splits = list(files_by_split(Path(file), None)[0]) if Path(file).is_dir() else []
    if len(splits) == 1:
        split = splits[0]  # whatever its files are called
    encoder = labelled.parts.training.encoder
    test = read_examples(settings, split, path=file, encoder=encoder, key="--file")
    metrics, _, _ = measure(recipe, labelled.parts, labelled.unlabelled, test)
    print(f"evaluate: {summary(settings.task, metrics)} on {len(test):,} texts of {file}; nothing is written")
    print(f"evaluate: {overlap_text(metrics)}")
    return metrics


def evaluate_run_or_file(recipe: Recipe, file: str | None = None) -> dict[str, Any]:
    """`evaluate`, or `evaluate_file` where there is a file."""
    return evaluate(recipe) if file is None else evaluate_file(recipe, file)


def refuse_without_classifier(folder: Path) -> None:
    """Raise UserError where no fine-tuning has finished in a run directory."""
    if not is_finished(folder, "finetune"):
        raise UserError(f"no finished classifier in {folder}/finetuned; run `bertpre finetune` first")


def measure(
    recipe: Recipe, parts: Parts, unlabelled: Examples | None, test: Examples
) -> tuple[dict[str, Any], Any, Any]:
    """The classifier's metrics on some texts, their labels, and what it says of each; prints what to know of them."""
    settings = recipe.required_finetune
    classifier = load_classifier(recipe, Path(recipe.output_dir) / "finetuned", test.classes)
    encoded = classifier.encode(test)
    labels, outputs = classifier.apply(encoded)
    if encoded.num_cut:
        print(f"evaluate: {cut_text(settings, 'test', encoded.num_cut, len(test))}")
    unscored = sum(map(len, test.texts)) - sum(map(len, labels)) if settings.task == "tokens" else 0
    if unscored:
        limit = f"finetune.max_length={settings.max_length}"
        print(f"warning: {unscored:,} words lie beyond {limit} tokens and are not scored")
    if warning := shifted_class(settings.task, parts.training, test):
        print(f"warning: {warning}")
    if settings.task == "classification" and (warning := never_predicted(test.classes, labels, outputs)):
        print(f"warning: {warning}")
    metrics = score(settings.task, labels, outputs, test.classes)
    if unscored:
        metrics["unscored_words"] = unscored
    blocks = groups_of_alike(settings, test)
    by_class = settings.task == "classification" and settings.validation_block > 1
    found = intervals(settings.task, labels, outputs, test.classes, blocks, by_class)
    metrics |= {"intervals": found, "examples": len(test)}
    metrics |= measure_overlap(settings.task, own_parts(settings, parts), unlabelled, test, labels, outputs)
    return metrics, labels, outputs


def never_predicted(classes: Sequence[str], labels: np.ndarray, outputs: np.ndarray) -> str | None:
    """A warning that names the test texts' classes that no text is predicted to have; accuracy hides a rare one."""
    tested = np.bincount(labels, minlength=len(classes))
    missed = np.flatnonzero((tested > 0) & (np.bincount(outputs.argmax(-1), minlength=len(classes)) == 0))
    if not len(missed):
        return None
    named = ", ".join(
        f"{classes[number]!r} ({tested[number]:,} of {len(labels):,} test texts)" for number in missed[:5]
    )
    more = f" and {len(missed) - 5:,} more classes" if len(missed) > 5 else ""
    of_one = f"; 'f1' is that of {classes[1]!r}" if len(classes) == 2 else ""
    return f"the classifier never predicts {named}{more}{of_one}"


def measure_overlap(
    kind: str, training: Sequence[Examples], unlabelled: Examples | None, test: Examples, labels: Any, outputs: Any
) -> dict[str, Any]:
    """How many test texts equal a labelled training text or, counted by themselves too, only an unlabelled one.

    If there are any, with the task's main metrics on the other test texts.
    """
    is_known = overlap(test, training)
    found: dict[str, Any] = {}
    if unlabelled is not None:
        is_unlabelled = overlap(test, [unlabelled]) & ~is_known
        is_known |= is_unlabelled
        found["overlap_unlabelled"] = int(is_unlabelled.sum())
    found["overlap"] = int(is_known.sum())
    if 0 < found["overlap"] < len(test):
        others = np.flatnonzero(~is_known)
        metrics = score(kind, rows(labels, others), rows(outputs, others), test.classes)
        found["without_overlap"] = {name: metrics[name] for name in main_metrics(kind)} | {"examples": len(others)}
    return found


def rows(values: Any, numbers: np.ndarray) -> Any:
    """The rows of an array, or the entries of a list, with these numbers."""
    return [values[number] for number in numbers] if isinstance(values, list) else values[numbers]


def write_predictions(file: Path, test: Examples, labels: Any, outputs: Any) -> None:
    """Write a row for each text, in the split's order: id, text, label, prediction, probability of each class."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    written = pa.BufferOutputStream()
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
    write_table(pa.table(columns), written)
    write_bytes(file, written.getvalue().to_pybytes())


def summary(kind: str, metrics: dict[str, Any]) -> str:
    """The main metrics in a line, the first one with its confidence interval."""
    first, *others = main_metrics(kind)
    parts = [f"{first} {metrics[first]:.4f}"]
    if first in metrics["intervals"]:
        parts[0] += f" ({interval_text(metrics['intervals'][first])})"
    parts += [f"{name} {metrics[name]:.4f}" for name in others]
    if "seeds" in metrics:
        over = metrics["seeds"][first]
        parts.append(f"over {len(over['values'])} seeds {spread_text(over)}")
    return ", ".join(parts)
