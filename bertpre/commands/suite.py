"""`bertpre suite`: one encoder fine-tuned and measured on every task of a suite, in one table."""

from pathlib import Path
from typing import Any

from bertpre.commands.evaluate import evaluate, predict_test
from bertpre.commands.finetune import finetune
from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples, read_examples
from bertpre.finetuning.glue import TASKS, GlueTask
from bertpre.finetuning.scores import score
from bertpre.finetuning.splits import require_finetune
from bertpre.recipe import Recipe
from bertpre.reporting.report import write_report
from bertpre.run_directory import claim, is_finished, read_results, write_results


def suite(recipe: Recipe) -> dict[str, Any]:
    """Fine-tune and measure on GLUE's tasks, each in its folder below `output_dir/glue`; finished ones are kept.

    The figures are the official ones on the development sets, which choose nothing: the best epoch is found on a part
    of the training split. The average is over tasks, of the mean of a task's figures.
    """
    if require_finetune(recipe).test_fraction:
        raise UserError("finetune.test_fraction: GLUE's tasks have their development sets; leave it out")
    folder = claim(recipe)
    recipes = {name: task_recipe(recipe, folder, name) for name in recipe.suite.tasks}
    figures: dict[str, Any] = {}
    for name, of_task in recipes.items():
        figures[name] = measure_task(of_task, TASKS[name])
        print(f"suite: {name:<5} {line(figures[name])}", flush=True)
    means = {name: mean(row) for name, row in figures.items()}
    summary = {"tasks": figures, "average": mean(means)}
    if "wnli" in means and len(means) > 1:  # many leave it out: its development set contradicts its training set
        summary["average_without_wnli"] = mean({name: value for name, value in means.items() if name != "wnli"})
    write_results(folder, "glue", summary)
    write_report(folder, recipe)
    print(f"suite: average of {len(means)} tasks {summary['average']:.4f}")
    return summary


def task_recipe(recipe: Recipe, folder: Path, name: str) -> Recipe:
    """The recipe for one task: the suite's settings, the task's columns, classes and figures.

    STS-B, a regression, goes without what is for classes alone.
    """
    task, settings = TASKS[name], recipe.finetune
    *texts, label = task.columns
    init = str(folder) if settings.init == "pretrained" else settings.init
    tuning = settings.model_dump() | {
        "name": name,
        "task": task.kind,
        "text_column": texts[0],
        "text_pair_column": texts[1] if len(texts) > 1 else None,
        "label_column": label,
        "label_names": list(task.classes) or None,
        "metric": task.figures[0],
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
    """A task's official figures; of a second development set under the set's name."""
    folder = Path(recipe.output_dir)
    if not is_finished(folder, "finetune"):
        finetune(recipe)
    if not is_finished(folder, "evaluate"):
        evaluate(recipe)
    for split in task.splits[1:]:
        if not is_finished(folder, split):
            like = Examples([], [], None, [], task.classes, list(task.classes))
            test = read_examples(recipe.finetune, split, recipe.evaluate.limit, like=like)
            labels, outputs = predict_test(recipe, folder / "finetuned", test)
            write_results(folder, split, score(task.kind, labels, outputs, test.classes))
    results = read_results(folder)
    figures = {name: results["evaluate"][name] for name in task.figures}
    for split in task.splits[1:]:
        figures |= {f"{name}_{split.removeprefix('validation_')}": results[split][name] for name in task.figures}
    return figures


def mean(values: dict[str, float]) -> float:
    """The mean of a mapping's values."""
    return sum(values.values()) / len(values)


def line(figures: dict[str, float]) -> str:
    """Figures in a line."""
    return ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
