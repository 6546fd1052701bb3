"""`bertpre finetune`: a model + labelled texts -> classifier."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertpre.console import console, spread_text, time_text
from bertpre.finetuning.fit import FineTuning
from bertpre.finetuning.label_advice import balance, contradictions, lone_labels
from bertpre.finetuning.loading import start_place
from bertpre.finetuning.seeds import (
    best_of,
    checkpoint_folder,
    fit_seed,
    keep_classifier,
    learned_fingerprint,
    open_checkpoints,
    recipe_fingerprint,
    seeds_of,
    spread_of,
    weights_fingerprint,
)
from bertpre.finetuning.splits import (
    Labelled,
    Parts,
    digest_of_test,
    is_validation_elsewhere,
)
from bertpre.manifest import manifest
from bertpre.recipe import Finetune, Recipe, flatten
from bertpre.run_directory import (
    drop_results,
    is_run,
    load_run,
    one_at_a_time,
    read_results,
    write_manifest,
    write_results,
)
from bertpre.runtime import arithmetic_here, choose_dtype, own_device, start_accelerator
from bertpre.training.agreement import refuse_different_starts
from bertpre.training.trainer import Trainer

WEIGHTS, EXAMPLES = "the weights' checksum", "the examples' checksum"
OF_THE_CLASSIFIER = ("evaluate", "validation_mismatched")  # results that another classifier makes untrue


@one_at_a_time
def finetune(
    recipe: Recipe, after_step: Callable[[Trainer], None] | None = None, labelled: Labelled | None = None
) -> dict[str, Any]:
    """Train a classifier on the recipe's labelled texts, for each seed; returns the metrics for `results.json`.

    The best epoch on the validation part is kept, and of several seeds the best one's classifier. `after_step` is
    called after each step with the trainer; `labelled` are the recipe's texts where they may have been read already.
    """
    settings = recipe.required_finetune
    accelerator = start_accelerator()
    accelerator.wait_for_everyone()  # for the first one, which claims the folder
    start, folder = time.perf_counter(), Path(recipe.output_dir)
    labelled = labelled or Labelled(recipe)
    started = refuse_different_starts(lambda: start_of(recipe, labelled))
    parts, unlabelled = labelled.parts, labelled.unlabelled
    if settings.init != "random":
        start_place(recipe, settings.init)  # before the results of an earlier classifier are dropped
    if accelerator.is_main_process:
        for name, part in vars(parts).items():
            if part is not None:
                console.say(f"finetune: {name} examples: {balance(settings.task, part)}")
        print_advice(recipe, parts)
    made_from = recipe_fingerprint(recipe) + started[WEIGHTS] + started[EXAMPLES]
    checkpoints = open_checkpoints(recipe, accelerator, made_from)
    tuning = FineTuning(
        recipe, settings.init, accelerator, parts.training, parts.validation, unlabelled, checkpoints, after_step
    )
    start_up = time.perf_counter() - start
    if accelerator.is_main_process:
        if read_results(folder).keys() & set(OF_THE_CLASSIFIER):
            console.say("finetune: replaces the earlier classifier and drops its evaluation")
        drop_results(folder, "finetune", *OF_THE_CLASSIFIER)
    each = [fit_seed(tuning, seed, made_from) for seed in seeds_of(recipe)]
    best = best_of(each, settings)
    metrics = results_of(each, best, settings, labelled, started)
    metrics["seconds"] = start_up + sum(of_seed["seconds"] for of_seed in each)  # also those before an interruption
    if accelerator.is_main_process:
        if settings.seeds > 1:
            keep_classifier(recipe, seeds_of(recipe)[best])
        dtype = choose_dtype(recipe.training.precision, accelerator.device)
        write_manifest(folder, "finetune", manifest(accelerator.device, dtype, accelerator.num_processes))
        write_results(folder, "finetune", metrics)
        shutil.rmtree(checkpoint_folder(recipe), ignore_errors=True)
        print(closing_line(metrics, settings))
    accelerator.wait_for_everyone()
    return metrics


def results_of(
    each: list[dict[str, Any]], best: int, settings: Finetune, labelled: Labelled, started: dict[str, Any]
) -> dict[str, Any]:
    """What `results.json` says of the fine-tunings with `each` seed, of which number `best` is kept."""
    metrics = each[best] | {"init": settings.init, "init_weights": started[WEIGHTS]}
    metrics["examples_digest"] = started[EXAMPLES]
    if labelled.parts.test is not None:
        metrics["test_digest"] = digest_of_test(labelled.parts)
    if labelled.unlabelled is not None:
        metrics["unlabelled"] = len(labelled.unlabelled)
    return metrics | ({"seeds": each, "spread": spread_of(each)} if settings.seeds > 1 else {})


def start_of(recipe: Recipe, labelled: Labelled) -> dict[str, Any]:
    """What a fine-tuning starts from, by name; raises UserError as `Labelled` does."""
    keys = flatten(recipe.model_dump(include={"seed", "model", "training", "checkpoint", "finetune"}))
    keys |= arithmetic_here(recipe.training.precision, recipe.required_finetune.optimizer, own_device())
    return keys | {WEIGHTS: weights_fingerprint(recipe), EXAMPLES: learned_fingerprint(labelled)}


def print_advice(recipe: Recipe, parts: Parts) -> None:
    """Name settings that seldom work well, and what to set instead."""
    settings, validation = recipe.required_finetune, parts.validation
    limits = [key for key in ("max_steps", "max_tokens", "max_epochs", "budget") if getattr(recipe.training, key)]
    if recipe.corpus is None and limits:
        print(f"warning: training.{limits[0]} limits pretraining alone; fine-tuning ends after finetune.epochs")
    own = recipe if settings.uses_recipe_model else load_run(settings.init)[1] if is_run(settings.init) else None
    if own and own.model.hidden_size <= 512 and settings.optimizer == "adamw" and settings.learning_rate < 1e-4:
        print(
            f"warning: finetune.learning_rate is {settings.learning_rate:g}, which suits published models of base "
            "size; small models of your own need 3e-4 to 1e-3"
        )
    reads_cls = settings.task != "tokens" and settings.pooling != "mean"
    if own and own.model.architecture == "modern" and own.pairs.kind == "none" and reads_cls:
        print(
            "warning: the classifier reads [CLS], but pretraining with pairs.kind=none does not train that token; set "
            "finetune.pooling=mean"
        )
    if validation is not None and len(validation) < 100:
        remedy = "raise finetune.validation_fraction, or set it to 0 to keep the last epoch"
        if is_validation_elsewhere(settings):
            remedy = "give a larger finetune.validation_path or validation_split, or neither to set a part aside"
        print(f"warning: only {len(validation)} examples choose the best epoch; {remedy}")
    for warning in (lone_labels(settings.task, parts.training), contradictions(settings.task, parts.training)):
        if warning:
            print(f"warning: {warning}")


def closing_line(metrics: dict[str, Any], settings: Finetune) -> str:
    """Seconds, the best epoch's metric, and its spread over seeds."""
    text, metric = f"finetune: {time_text(metrics['seconds'])}", settings.best_by
    if "validation" in metrics:
        where = f"after epoch {metrics['best_epoch']} of {metrics['epochs']}"
        text += f"; validation {metric} {metrics['validation'][metric]:.4f} {where} (seed {metrics['seed']})"
    if metrics.get("spread"):
        over = metrics["spread"][metric]
        text += f"; over {settings.seeds} seeds {spread_text(over)}"
    return text
