"""`bertpre finetune`: a model + labelled texts -> classifier; and `fit`, which every verb that trains one calls."""

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate import Accelerator

from bertpre.files import write_text
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.fit import Encoder, encode_once, fit, goodness, recipe_fingerprint
from bertpre.finetuning.scores import spread
from bertpre.finetuning.splits import read_further, read_parts, require_finetune
from bertpre.recipe import Finetune, Recipe
from bertpre.run_directory import claim, one_at_a_time, write_manifest, write_results
from bertpre.runtime import choose_dtype, manifest, start_accelerator
from bertpre.training.trackers import MetricsLog, start_trackers

if TYPE_CHECKING:
    pass

FIGURES = "figures.json"


@one_at_a_time
def finetune(recipe: Recipe) -> dict[str, Any]:
    """Train a classifier on the recipe's labelled texts, for each seed; returns the figures for `results.json`.

    The epoch with the best figure on the validation part is kept, and of several seeds the best one's classifier.
    """
    settings = require_finetune(recipe)
    accelerator = start_accelerator()
    if accelerator.is_main_process:
        claim(recipe)
    accelerator.wait_for_everyone()
    start, folder = time.perf_counter(), Path(recipe.output_dir)
    parts = read_parts(recipe)
    unlabelled = read_further(recipe, parts)
    if accelerator.is_main_process:
        print_doubts(recipe, parts.validation)
    encode = encode_once(settings, parts.training, unlabelled, accelerator)
    seeds = range(recipe.seed, recipe.seed + settings.seeds)
    each = [fit_seed(recipe, parts.training, parts.validation, encode, seed, accelerator) for seed in seeds]
    best = best_of(each, settings)
    figures = each[best] | {"seconds": time.perf_counter() - start, "init": settings.init}
    if unlabelled is not None:
        figures["unlabelled"] = len(unlabelled)
    if settings.seeds > 1:
        figures |= {"seeds": each, "spread": spread_of(each)}
    if accelerator.is_main_process:
        if settings.seeds > 1:
            keep_classifier(folder, seeds[best])
        dtype = choose_dtype(recipe.training.precision, accelerator.device)
        write_manifest(folder, "finetune", manifest(accelerator.device, dtype, accelerator.num_processes))
        write_results(folder, "finetune", figures)
        print(closing_line(figures, settings))
    accelerator.wait_for_everyone()
    return figures


def print_doubts(recipe: Recipe, validation: Examples | None) -> None:
    """Say what seldom goes well, and what to set instead."""
    settings = recipe.finetune
    is_own = settings.init in ("pretrained", "random")
    if is_own and recipe.model.hidden_size <= 512 and settings.optimizer == "adamw" and settings.learning_rate < 1e-4:
        print(
            f"finetune: learning_rate is {settings.learning_rate:g}, which suits published models of base size; a "
            "small one of your own wants 3e-4 to 1e-3"
        )
    if is_own and recipe.model.architecture == "modern" and recipe.pairs.kind == "none" and settings.pooling == "cls":
        print("finetune: pooling is cls, a token that pairs.kind=none taught nothing; pooling=mean suits such a model")
    if validation is not None and len(validation) < 100:
        print(
            f"finetune: only {len(validation)} examples choose the best epoch: give a larger validation_fraction, or "
            "0, which keeps the last one"
        )


# ---- seeds -----------------------------------------------------------------------------------------------------------


def fit_seed(
    recipe: Recipe,
    training: Examples,
    validation: Examples | None,
    encode: Encoder,
    seed: int,
    accelerator: Accelerator,
) -> dict[str, Any]:
    """Train and save the classifier of one seed, unless that was done before; returns its figures."""
    settings, folder = recipe.finetune, Path(recipe.output_dir)
    is_only = settings.seeds == 1
    target = folder / "finetuned" if is_only else folder / "seeds" / str(seed)
    told = recipe_fingerprint(recipe)
    if not is_only and (target / FIGURES).exists():
        known = json.loads((target / FIGURES).read_text())
        if known["recipe"] == told:
            if accelerator.is_main_process:
                print(f"finetune: seed {seed} is finished")
            return known["figures"]
    is_main = accelerator.is_main_process
    stage = "finetune" if seed == recipe.seed else f"finetune seed {seed}"
    trackers = start_trackers(folder, stage.replace(" ", "-"), recipe.training, recipe.model_dump()) if is_main else []
    log = MetricsLog(folder / "metrics.jsonl", stage, is_main, trackers)
    fitted = fit(recipe, training, validation, encode, settings.init, seed, accelerator, log)
    if is_main:
        fitted.model.save_pretrained(target)
        fitted.tokenizer.save_pretrained(target)
        if not is_only:
            write_text(target / FIGURES, json.dumps({"recipe": told, "figures": fitted.figures}, indent=2))
    accelerator.wait_for_everyone()
    return fitted.figures


def best_of(each: list[dict[str, Any]], settings: Finetune) -> int:
    """Which seed's classifier is the best in validation; the first one without validation."""
    if not settings.has_validation:
        return 0
    return int(np.argmax([goodness(figures["validation"], settings.best_by) for figures in each]))


def spread_of(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and deviation over the seeds of every validation figure."""
    rows = [figures.get("validation", {}) for figures in each]
    return {name: spread([row[name] for row in rows]) for name in rows[0] if name != "examples"}


def keep_classifier(folder: Path, seed: int) -> None:
    """Copy one seed's classifier to where the run's classifier lies."""
    partial = folder / "finetuned.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(folder / "seeds" / str(seed), partial, ignore=shutil.ignore_patterns(FIGURES))
    shutil.rmtree(folder / "finetuned", ignore_errors=True)
    partial.rename(folder / "finetuned")


def closing_line(figures: dict[str, Any], settings: Finetune) -> str:
    """What is said at the end."""
    text = f"finetune: {figures['seconds']:.0f} s"
    if "validation" in figures:
        metric = settings.best_by
        where = f"after epoch {figures['best_epoch']} of {figures['epochs']}"
        text += f"; validation {metric} {figures['validation'][metric]:.4f} {where} (seed {figures['seed']})"
    if "spread" in figures and figures["spread"]:
        over = figures["spread"][metric]
        text += f"; over {settings.seeds} seeds {over['mean']:.4f} ± {over['deviation']:.4f}"
    return text


# ---- one training ----------------------------------------------------------------------------------------------------
