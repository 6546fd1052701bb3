"""`bertpre run` and `bertpre quickstart`: all stages in order; finished ones are skipped."""

from collections.abc import Callable
from pathlib import Path

from bertpre.commands.evaluate import evaluate
from bertpre.commands.finetune import finetune
from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.console import console
from bertpre.finetuning.splits import read_further, read_parts, read_test
from bertpre.finetuning.task import build_task
from bertpre.recipe import Recipe, load_recipe
from bertpre.reporting.report import closing_lines, next_lines, write_report
from bertpre.run_directory import claim, is_finished

STAGES: dict[str, Callable[[Recipe], object]] = {
    "prepare": prepare, "pretrain": pretrain, "finetune": finetune, "evaluate": evaluate,
}  # fmt: skip


def run(recipe: Recipe) -> Path:
    """Run every unfinished stage of the recipe, then write the report; returns the run directory."""
    folder = claim(recipe)
    if recipe.finetune is not None and not is_finished(folder, "finetune"):
        check_labels(recipe)  # a mistake in the labels shows now, not after hours of pretraining
    for name, stage in STAGES.items():
        if recipe.finetune is None if name in ("finetune", "evaluate") else recipe.corpus is None:
            continue
        if is_finished(folder, name):
            console.say(f"{name}: already finished, skipped")
        else:
            stage(recipe)
    write_report(folder, recipe)
    print("\n".join([*closing_lines(folder, recipe), *next_lines(folder, recipe)]))
    return folder


def check_labels(recipe: Recipe) -> None:
    """Raise UserError for labelled texts, of the training or the test split, that do not match the recipe."""
    parts = read_parts(recipe)
    build_task(recipe.required_finetune, parts.training)
    read_further(recipe, parts)
    read_test(recipe, parts)


def quickstart(output_dir: str) -> Path:
    """Run the shipped quickstart recipe in `output_dir`."""
    return run(load_recipe("quickstart", [f"output_dir={output_dir}"]))
