"""`bertpre curve`: how much pretraining is worth where labels are few."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.commands.baseline import predictor
from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.fit import encode_once, fit, recipe_fingerprint
from bertpre.finetuning.scores import score, spread
from bertpre.finetuning.splits import read_parts, read_test, require_finetune
from bertpre.recipe import Recipe
from bertpre.reporting.report import write_report
from bertpre.run_directory import claim, one_at_a_time, read_results, write_results
from bertpre.runtime import start_accelerator
from bertpre.training.trackers import MetricsLog

FRACTIONS = (0.004, 0.02, 0.1, 1.0)  # 0.4 %: Sun et al. 2019, section 5.5


@one_at_a_time
def curve(recipe: Recipe, fractions: tuple[float, ...] = FRACTIONS) -> list[dict[str, Any]]:
    """Accuracy on the test split after training on shares of the labels, from `finetune.init` and from nothing.

    Each share is drawn by seed, each class alike; all of it trains and the last epoch is kept, so that no label beyond
    the share is used. Points of the same recipe that are finished are kept: the same command goes on. Without a
    tokenizer of the run's own, where `init` is from elsewhere, there is no network to train from nothing.
    Raises UserError for a share outside 0 to 1, one without two classes, and a task that is not classification.
    """
    settings = require_finetune(recipe)
    if settings.task != "classification":
        raise UserError(f"the curve is for classification; finetune.task is {settings.task}")
    if bad := [share for share in fractions if not 0 < share <= 1]:
        raise UserError(f"--fractions: {bad[0]} is no share above 0 and up to 1")
    folder, given = claim(recipe), recipe
    without = {
        "validation_fraction": 0.0,
        "validation_path": None,
        "validation_split": None,
        "patience": None,
        "unlabelled": None,
    }
    recipe = recipe.model_copy(update={"finetune": settings.model_copy(update=without)})
    parts = read_parts(recipe)
    everything = parts.training
    shares = {share: [draw(everything, share, recipe.seed + n) for n in range(settings.seeds)] for share in fractions}
    test = read_test(recipe, parts)
    told = recipe_fingerprint(recipe) + str(settings.seeds)
    rows = [row for row in read_results(folder).get("curve", []) if row["recipe"] == told]
    inits = [settings.init, "random"] if (folder / "tokenizer").exists() else [settings.init]
    for share, drawn in shares.items():
        for init in dict.fromkeys(inits):
            if any((row["fraction"], row["init"]) == (share, init) for row in rows):
                continue
            rows.append(point(recipe, share, init, drawn, test) | {"recipe": told})
            write_results(folder, "curve", rows)
            over = rows[-1]["accuracy"]
            print(
                f"curve: {share:.1%} of the labels ({rows[-1]['examples']:,}), {init}: "
                f"{over['mean']:.4f} ± {over['deviation']:.4f}",
                flush=True,
            )
    write_report(folder, given)
    return rows


def draw(examples: Examples, share: float, seed: int) -> Examples:
    """A share of the examples of each class; raises UserError where that leaves a class without any."""
    generator = np.random.default_rng([seed, 3])
    chosen: list[int] = []
    for number in range(len(examples.classes)):
        members = np.flatnonzero(examples.labels == number)
        count = round(len(members) * share)
        if len(members) and not count:
            raise UserError(f"--fractions: {share} of {len(members)} examples of {examples.classes[number]} is none")
        chosen += generator.permutation(members)[:count].tolist()
    return examples.subset(sorted(chosen))


def point(recipe: Recipe, share: float, init: str, drawn: list[Examples], test: Examples) -> dict[str, Any]:
    """One point of the curve: accuracy over the seeds."""
    start, accelerator, accuracies = time.perf_counter(), start_accelerator(), []
    for number, examples in enumerate(drawn):
        seed = recipe.seed + number
        stage = f"curve {share:g} {init} seed {seed}"
        log = MetricsLog(Path(recipe.output_dir) / "metrics.jsonl", stage, accelerator.is_main_process)
        encode = encode_once(recipe.finetune, examples, None, accelerator)
        fitted = fit(recipe, examples, None, encode, init, seed, accelerator, log)
        measured = score("classification", test.labels, predictor(recipe, fitted)(test), test.classes)
        accuracies.append(measured["accuracy"])
    return {
        "fraction": share,
        "init": init,
        "examples": len(drawn[0]),
        "accuracy": spread(accuracies),
        "seconds": time.perf_counter() - start,
    }
