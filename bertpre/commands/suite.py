"""`bertpre suite`: an encoder fine-tuned and measured on every task of GLUE, in one table."""

from pathlib import Path
from statistics import fmean
from typing import Any

from bertpre.commands.evaluate import evaluate
from bertpre.commands.finetune import finetune
from bertpre.errors import UserError
from bertpre.finetuning.examples import read_examples
from bertpre.finetuning.glue import TASKS, GlueTask
from bertpre.finetuning.labels import LabelEncoder
from bertpre.finetuning.loading import load_classifier
from bertpre.finetuning.scores import score
from bertpre.finetuning.seeds import weights_fingerprint
from bertpre.recipe import Recipe
from bertpre.reporting.report import write_report
from bertpre.run_directory import claim, is_finished, read_results, undone_after_mistake, write_results


def suite(recipe: Recipe) -> dict[str, Any]:
    """Fine-tune and measure on GLUE's tasks, each in its folder below `output_dir/glue`; finished tasks are kept.

    The metrics are the official ones on the development sets. The best epoch is selected on a part of the training
    split, not on these. The average over tasks takes the mean of each task's metrics.
    """
    if recipe.required_finetune.test_fraction:
        raise UserError("finetune.test_fraction: leave it out; GLUE's tasks are measured on their development sets")
    if recipe.required_finetune.metric is not None:
        raise UserError("finetune.metric: leave it out; each task of GLUE selects its best epoch by its own metric")
    folder = claim(recipe)
    recipes = {name: task_recipe(recipe, folder, name) for name in recipe.suite.tasks}
    metrics: dict[str, Any] = {}
    with undone_after_mistake(folder / "glue"):
        for name, of_task in recipes.items():
            metrics[name] = measure_task(of_task, TASKS[name])
            shown = ", ".join(f"{metric} {value:.4f}" for metric, value in metrics[name].items())
            print(f"suite: {name:<5} {shown}", flush=True)
    means = {name: fmean(row.values()) for name, row in metrics.items()}
    summary = {"tasks": metrics, "average": fmean(means.values())}
    if "wnli" in means and len(means) > 1:  # often left out: its development set contradicts its training set
        summary["average_without_wnli"] = fmean(value for name, value in means.items() if name != "wnli")
    write_results(folder, "glue", summary)
    write_report(folder, recipe)
    print(f"suite: average of {len(means)} tasks {summary['average']:.4f}")
    return summary


def task_recipe(recipe: Recipe, folder: Path, name: str) -> Recipe:
    """The recipe for one task: the suite's settings with the task's columns, classes and metrics.

    The settings that need classes are left out for STS-B, a regression.
    """
    task, settings = TASKS[name], recipe.required_finetune
    *texts, label = task.columns
    init = str(folder) if settings.init == "pretrained" else settings.init
    tuning = settings.model_dump() | {
        "name": name,
        "task": task.kind,
        "text_column": texts[0],
        "text_pair_column": texts[1] if len(texts) > 1 else None,
        "label_column": label,
        "label_names": list(task.classes) or None,
        "metric": task.metrics[0],
        "init": init,
    }
    if not task.classes:
        tuning |= {"label_smoothing": 0.0, "class_weights": None, "unlabelled": None}
    values = recipe.model_dump() | {
        "output_dir": str(folder / "glue" / name),
        "finetune": tuning,
        "evaluate": recipe.evaluate.model_dump() | {"split": task.splits[0], "bag_of_words": False},
    }
    if init == "random":  # with this run's vocabulary
        values["tokenizer"]["path"] = values["tokenizer"]["path"] or str(folder / "tokenizer")
    return Recipe.model_validate(values)


def measure_task(recipe: Recipe, task: GlueTask) -> dict[str, float]:
    """A task's official metrics; those of a second development set have its name appended.

    A task that was finished from other weights in the same place is fine-tuned again, and so is one that is not
    measured yet and has lost its classifier.
    """
    folder, weights = Path(recipe.output_dir), weights_fingerprint(recipe)
    kept = read_results(folder).get("finetune")
    is_measured = all(is_finished(folder, stage) for stage in ("evaluate", *task.splits[1:]))
    is_usable = is_measured or is_finished(folder, "finetune")
    if kept is None or kept.get("init_weights", weights) != weights or not is_usable:
        finetune(recipe)
    if not is_finished(folder, "evaluate"):
        evaluate(recipe)
    for split in task.splits[1:]:
        if not is_finished(folder, split):
            names = list(task.classes)
            encoder = LabelEncoder(task.kind, task.classes, label_names=names, indexed_names=names)
            test = read_examples(recipe.required_finetune, split, recipe.evaluate.limit, encoder=encoder)
            labels, outputs = load_classifier(recipe, folder / "finetuned", test.classes).apply(test)
            write_results(folder, split, score(task.kind, labels, outputs, test.classes))
    results = read_results(folder)
    metrics = {name: results["evaluate"][name] for name in task.metrics}
    for split in task.splits[1:]:
        metrics |= {f"{name}_{split.removeprefix('validation_')}": results[split][name] for name in task.metrics}
    return metrics
