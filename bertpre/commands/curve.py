"""`bertpre curve`: accuracy with few labels and with all, pretrained and from scratch."""

import time
from typing import Any

import numpy as np

from bertpre.console import spread_text
from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.fit import FineTuning
from bertpre.finetuning.loading import can_start_at_random
from bertpre.finetuning.scores import mean_and_std, score
from bertpre.finetuning.seeds import examples_fingerprint, recipe_fingerprint, seeds_of, weights_fingerprint
from bertpre.finetuning.splits import Labelled
from bertpre.recipe import Recipe
from bertpre.reporting.report import write_report
from bertpre.run_directory import claim, one_at_a_time, read_results, write_results
from bertpre.runtime import start_accelerator

FRACTIONS = (0.004, 0.02, 0.1, 1.0)  # 0.4 %: Sun et al. 2019, section 5.5
ONLY_LABELS = {  # no label outside the share is used: all of it trains, and the last epoch is kept
    "validation_fraction": 0.0,
    "validation_path": None,
    "validation_split": None,
    "patience": None,
    "unlabelled": None,
}


@one_at_a_time
def curve(recipe: Recipe, fractions: tuple[float, ...] = FRACTIONS) -> list[dict[str, Any]]:
    """Accuracy on the test split after training on shares of the labels, from `finetune.init` and from scratch.

    Each share is drawn by seed and keeps the proportions of the classes. Finished points of the same recipe are kept,
    so that the same command resumes. Without a tokenizer there is no model to train from scratch.
    Raises UserError for a share outside 0 to 1, a share without an example of a class, and another task than
    classification.
    """
    settings = recipe.required_finetune
    if settings.task != "classification":
        raise UserError(f"finetune.task is {settings.task}; the curve is for classification")
    if bad := [share for share in fractions if not 0 < share <= 1]:
        raise UserError(f"--fractions: {bad[0]} is not a share above 0 and up to 1")
    folder, given = claim(recipe), recipe
    recipe = recipe.model_copy(update={"finetune": settings.model_copy(update=ONLY_LABELS)})
    labelled = Labelled(recipe)
    training = labelled.parts.training
    shares = {share: [draw(training, share, seed) for seed in seeds_of(recipe)] for share in fractions}
    test = labelled.test
    texts = examples_fingerprint([training, test])
    fingerprint = recipe_fingerprint(recipe) + weights_fingerprint(recipe) + texts + str(settings.seeds)
    rows = [row for row in read_results(folder).get("curve", []) if row["recipe"] == fingerprint]
    inits = [settings.init, "random"] if can_start_at_random(recipe, "curve") else [settings.init]
    wanted = [(share, init) for share in shares for init in dict.fromkeys(inits)]
    finished = {(row["fraction"], row["init"]) for row in rows}
    for row in rows:
        print_point(row)
    for share, init in wanted:
        if (share, init) not in finished:
            rows.append(point(recipe, share, init, shares[share], test) | {"recipe": fingerprint})
            write_results(folder, "curve", rows)
            print_point(rows[-1])
    write_report(folder, given)
    return rows


def draw(examples: Examples, share: float, seed: int) -> Examples:
    """A share of the examples of each class; raises UserError if that leaves a class without any."""
    generator = np.random.default_rng([seed, 3])
    chosen: list[int] = []
    for number in range(len(examples.classes)):
        members = np.flatnonzero(examples.labels == number)
        count = round(len(members) * share)
        if len(members) and not count:
            name = examples.classes[number]
            advice = "give larger fractions, e.g. --fractions 0.1,0.5,1"
            raise UserError(f"--fractions: {share} of {len(members)} examples of {name} is none; {advice}")
        chosen += generator.permutation(members)[:count].tolist()
    return examples.subset(sorted(chosen))


def point(recipe: Recipe, share: float, init: str, drawn: list[Examples], test: Examples) -> dict[str, Any]:
    """One point of the curve: accuracy over the seeds, each with its own share of the labels."""
    start, accelerator, accuracies = time.perf_counter(), start_accelerator(), []
    for seed, examples in zip(seeds_of(recipe), drawn, strict=True):
        classifier, _ = FineTuning(recipe, init, accelerator, examples).fit(seed, f"curve {share:g} {init} seed {seed}")
        metrics = score("classification", *classifier.apply(test), test.classes)
        accuracies.append(metrics["accuracy"])
    return {
        "fraction": share,
        "init": init,
        "examples": len(drawn[0]),
        "accuracy": mean_and_std(accuracies),
        "seconds": time.perf_counter() - start,
    }


def print_point(row: dict[str, Any]) -> None:
    """Print one point of the curve."""
    share = f"{row['fraction']:.1%} of the labels ({row['examples']:,})"
    print(f"curve: {share}, {row['init']}: {spread_text(row['accuracy'])}", flush=True)
