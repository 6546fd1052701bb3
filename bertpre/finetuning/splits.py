"""Which labelled examples are learned from, which choose the best epoch, and which are only tested on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples, check_variety, read_examples
from bertpre.finetuning.pseudo_labels import read_unlabelled
from bertpre.recipe import Finetune, Recipe


@dataclass(frozen=True)
class Parts:
    """What a recipe makes of its training split; `test` is what `finetune.test_fraction` sets aside."""

    training: Examples
    validation: Examples | None
    test: Examples | None


def require_finetune(recipe: Recipe) -> Finetune:
    """The recipe's finetune section; raises UserError where it has none."""
    if recipe.finetune is None:
        raise UserError("this recipe has no finetune section: say which labelled texts with finetune.path=...")
    return recipe.finetune


def read_parts(recipe: Recipe) -> Parts:
    """Training and validation part, checked, and what is set aside; None for what the recipe does not want."""
    settings = require_finetune(recipe)
    training, validation, test = read_examples(settings, settings.split, settings.limit), None, None
    if settings.test_fraction:
        training, test = set_aside(recipe, training)
    if is_validation_elsewhere(settings):
        path, split = validation_place(settings)
        validation = read_examples(settings, split, path=path, like=training)
    elif settings.validation_fraction:
        training, validation = split_off_validation(recipe, training)
    check_variety(settings.task, training, f"finetune: {settings.path} (split {settings.split})")
    return Parts(training, validation, test)


def is_validation_elsewhere(settings: Finetune) -> bool:
    """Whether the validation texts are no part of the training split."""
    return bool(settings.validation_path or settings.validation_split)


def validation_place(settings: Finetune) -> tuple[str, str]:
    """Path and split of validation texts that are elsewhere."""
    return settings.validation_path or settings.path, settings.validation_split or "train"


def set_aside(recipe: Recipe, examples: Examples) -> tuple[Examples, Examples]:
    """What is trained on, and the part `finetune.test_fraction` that is only tested on, both in their order."""
    settings = recipe.finetune
    is_test = drawn(
        examples, settings.test_fraction, settings.validation_block, (recipe.seed, 4), "finetune.test_fraction"
    )
    training, test = (examples.subset(np.flatnonzero(is_test == out)) for out in (False, True))
    return training, test


def split_off_validation(recipe: Recipe, examples: Examples) -> tuple[Examples, Examples]:
    """Training and validation part, drawn by the recipe's seed alone, in blocks of neighbouring examples.

    Raises UserError where the validation part would be empty, or too small to measure on.
    """
    settings = recipe.finetune
    share = settings.validation_fraction
    is_held_out = drawn(examples, share, settings.validation_block, (recipe.seed, 1), "finetune.validation_fraction")
    shuffled = np.random.default_rng([recipe.seed, 2]).permutation(len(examples))
    training, validation = (examples.subset([i for i in shuffled if is_held_out[i] == out]) for out in (False, True))
    one = {"classification": "one class", "regression": "one number"}.get(settings.task)
    if one and len(np.unique(validation.labels)) < 2:
        raise UserError(
            f"finetune.validation_fraction: {share} of {len(examples)} examples is too small a validation part: it has "
            f"{one} only; give more examples or a larger fraction, or 0 to keep the last epoch"
        )
    return training, validation


def drawn(examples: Examples, share: float, block: int, seed: tuple[int, int], key: str) -> np.ndarray:
    """Which examples (N,) are in a share of them, in blocks of neighbours; raises UserError where there are none."""
    blocks = np.arange(len(examples)) // block
    order = np.random.default_rng(seed).permutation(blocks[-1] + 1)
    count = round(len(order) * share)
    if not 0 < count < len(order):
        blockwise = f", in finetune.validation_block={block} together," if block > 1 else ""
        raise UserError(
            f"{key}: {share} of {len(examples)} examples{blockwise} leaves nothing to measure on; give more examples "
            "or a larger fraction, or 0 to do without"
        )
    return np.isin(blocks, order[:count])


def read_further(recipe: Recipe, parts: Parts) -> Examples | None:
    """The recipe's texts without labels, less those of any part of the labelled ones; None where it has none."""
    if recipe.finetune.unlabelled is None:
        return None
    labelled = [parts.training, parts.validation, parts.test]
    return read_unlabelled(recipe.finetune, [part for part in labelled if part is not None])


def read_test(recipe: Recipe, parts: Parts) -> Examples:
    """The test texts, with the training split's classes.

    Raises UserError where there are none, or they are those of the training.
    """
    if parts.test is not None:
        return parts.test
    settings, place = recipe.finetune, place_of_test(recipe)
    if same_place(place, (settings.path, settings.split)):
        raise UserError(
            f"evaluate: {place[0]} (split {place[1]}) is what the classifier learns from: give other texts with "
            "evaluate.path or evaluate.split, or set a part of them aside with finetune.test_fraction=0.1"
        )
    return read_examples(settings, place[1], recipe.evaluate.limit, path=place[0], like=parts.training)


def place_of_test(recipe: Recipe) -> tuple[str, str]:
    """Path and split of test texts that are no part of the training split."""
    path = recipe.evaluate.path or recipe.finetune.path
    return path, recipe.evaluate.split or ("train" if Path(path).is_file() else "test")


def same_place(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two pairs of path and split are the same, however the path is written."""
    return Path(one[0]).resolve() == Path(other[0]).resolve() and one[1] == other[1]


def chosen_on_test(recipe: Recipe) -> bool:
    """Whether the test texts are those that chose the best epoch."""
    settings = recipe.finetune
    is_elsewhere = is_validation_elsewhere(settings) and not settings.test_fraction
    return is_elsewhere and same_place(place_of_test(recipe), validation_place(settings))
