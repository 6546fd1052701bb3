"""`bertpre run` and `bertpre quickstart`: all stages, one after the other, each skipped where it is finished."""

from pathlib import Path

from bertpre.commands.evaluate import evaluate
from bertpre.commands.finetune import finetune
from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.finetuning.splits import read_further, read_parts, read_test
from bertpre.finetuning.task import build_task
from bertpre.recipe import Recipe, load_recipe
from bertpre.reporting.report import closing_lines, write_report
from bertpre.run_directory import claim, is_finished

STAGES = {"prepare": prepare, "pretrain": pretrain, "finetune": finetune, "evaluate": evaluate}


def run(recipe: Recipe) -> Path:
    """Run every stage that the recipe has and that is not finished, then write the report; returns the run's folder."""
    folder = claim(recipe)
    if recipe.finetune is not None and not is_finished(folder, "finetune"):
        check_labels(recipe)  # before hours of pretraining
    for name, stage in STAGES.items():
        if recipe.finetune is None if name in ("finetune", "evaluate") else recipe.corpus is None:
            continue
        if is_finished(folder, name):
            print(f"{name}: finished before, skipped")
        else:
            stage(recipe)
    write_report(folder, recipe)
    print("\n".join(closing_lines(folder)))
    return folder


def check_labels(recipe: Recipe) -> None:
    """Raise UserError where labelled texts, of the training or the test split, are not as the recipe says."""
    parts = read_parts(recipe)
    build_task(recipe.finetune, parts.training)
    read_further(recipe, parts)
    read_test(recipe, parts)


def quickstart(output_dir: str) -> Path:
    """Run the shipped quickstart recipe in `output_dir`."""
    return run(load_recipe("quickstart", [f"output_dir={output_dir}"]))
