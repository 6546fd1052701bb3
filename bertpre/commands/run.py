"""`bertpre run` and `bertpre quickstart`: all stages in order; finished ones are skipped."""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bertpre.commands.evaluate import CHANGED, evaluate
from bertpre.commands.finetune import finetune
from bertpre.commands.prepare import CHANGED_CORPUS, corpus_has_changed, prepare
from bertpre.commands.pretrain import pretrain
from bertpre.commands.push import push_result
from bertpre.console import command_line, console
from bertpre.errors import UserError
from bertpre.finetuning.seeds import examples_fingerprint, learned_fingerprint
from bertpre.finetuning.splits import Labelled, state_of_label_files
from bertpre.finetuning.task import build_task
from bertpre.recipe import Recipe, load_recipe
from bertpre.reporting.report import closing_lines, next_lines, write_report
from bertpre.run_directory import claim, is_finished, is_prepared, read_manifest, read_results, refuse_unknown_starts
from bertpre.training.trainer import Trainer


def run(recipe: Recipe, after_step: Callable[[Trainer], None] | None = None) -> Path:
    """Run every unfinished stage, write the report and push to `hub.repo_id`; returns the run directory.

    `after_step` is called with the trainer after each step of pretraining.
    """
    folder, labelled = claim(recipe), Labelled(recipe)
    if recipe.finetune is not None and not is_finished(folder, "finetune"):
        refuse_unknown_starts(recipe)
        check_labels(labelled)  # a mistake in the labels shows now, not after hours of pretraining
    elif recipe.finetune is not None and is_finished(folder, "evaluate"):
        mention_changes(folder, labelled)
    has_own_model = recipe.corpus is not None and (not starts_elsewhere(recipe) or is_prepared(recipe))
    if recipe.corpus is not None and not has_own_model:
        console.say(
            "prepare, pretrain: left out, as finetune.init names another model; `bertpre pretrain` trains one of this "
            "recipe after `bertpre prepare`"
        )
    stages: dict[str, Callable[[Recipe], object]] = {}
    if has_own_model:
        stages |= {"prepare": prepare, "pretrain": partial(pretrain, after_step=after_step)}
    if recipe.finetune is not None:
        stages |= {"finetune": partial(finetune, labelled=labelled), "evaluate": partial(evaluate, labelled=labelled)}
    for name, stage in stages.items():
        is_done = is_prepared(recipe) if name == "prepare" else is_finished(folder, name)
        if is_done:
            console.say(f"{name}: already finished, skipped")
            if name == "prepare" and corpus_has_changed(recipe, folder):
                print(f"warning: {CHANGED_CORPUS}")
        else:
            if name == "pretrain":
                refuse_to_replace_several(folder)
            stage(recipe)
    write_report(folder, recipe)
    push_result(recipe)
    print("\n".join([*closing_lines(folder, recipe), *next_lines(folder, recipe)]))
    return folder


def starts_elsewhere(recipe: Recipe) -> bool:
    """Whether the classifier begins from a model that is not the recipe's own."""
    return recipe.finetune is not None and not recipe.finetune.uses_recipe_model


def refuse_to_replace_several(folder: Path) -> None:
    """Raise UserError where several processes began to pretrain: this one alone would take many times as long."""
    count = read_manifest(folder).get("pretrain", {}).get("hardware", {}).get("processes", 1)
    if count > 1:
        raise UserError(
            f"{folder}: {count} processes have begun to pretrain here, and have not finished. To resume, start them "
            f"again as before (-m {shlex.join(['bertpre.pretrain', str(folder)])}); one process resumes with "
            f"`{command_line('pretrain', folder)}`"
        )


def check_labels(labelled: Labelled) -> None:
    """Raise UserError for labelled texts, of the training or the test split, that do not match the recipe."""
    build_task(labelled.recipe.required_finetune, labelled.parts.training)
    _ = labelled.unlabelled, labelled.test  # reads and checks them


def mention_changes(folder: Path, labelled: Labelled) -> None:
    """Say so where finished stages have used other labelled texts; they are read only where their files differ.

    A finished run needs them no more, so nothing is said where they are gone.
    """
    results, state = read_results(folder), state_of_label_files(labelled.recipe)
    if state in (None, results["evaluate"].get("label_files", state)):
        return
    if learned_fingerprint(labelled) != results["finetune"].get("examples_digest"):
        print(f"warning: {CHANGED}")
    elif examples_fingerprint([labelled.test]) != results["evaluate"].get("examples_digest"):
        print("warning: the test texts have changed since they were measured; `bertpre evaluate` measures them again")


def quickstart(output_dir: str) -> Path:
    """Run the shipped quickstart recipe in `output_dir`."""
    return run(load_recipe("quickstart", [f"output_dir={output_dir}"]))
