"""Splits the labelled examples: for training, for choosing the best epoch, and for the test."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples, read_examples, refuse_single_class
from bertpre.finetuning.pseudo_labels import read_unlabelled
from bertpre.recipe import Finetune, Recipe


@dataclass(frozen=True)
class Parts:
    """The training split of a recipe, split up; `test` is the part that `finetune.test_fraction` sets aside."""

    training: Examples
    validation: Examples | None
    test: Examples | None


def read_parts(recipe: Recipe) -> Parts:
    """The parts of the training split, checked; None for a part that the recipe does not ask for."""
    settings = recipe.required_finetune
    training, validation, test = read_examples(settings, settings.split, settings.limit), None, None
    if settings.test_fraction:
        training, test = set_aside(recipe, training)
    if is_validation_elsewhere(settings):
        path, split = validation_place(settings)
        validation = read_examples(settings, split, path=path, encoder=training.encoder)
    elif settings.validation_fraction:
        training, validation = split_off_validation(recipe, training)
    refuse_single_class(settings.task, training, f"finetune: {settings.path} (split {settings.split})")
    return Parts(training, validation, test)


def is_validation_elsewhere(settings: Finetune) -> bool:
    """Whether the validation texts come from outside the training split."""
    return bool(settings.validation_path or settings.validation_split)


def validation_place(settings: Finetune) -> tuple[str, str]:
    """Path and split of validation texts from outside the training split."""
    return settings.validation_path or settings.path, settings.validation_split or "train"


def set_aside(recipe: Recipe, examples: Examples) -> tuple[Examples, Examples]:
    """The examples without and with the part `finetune.test_fraction`, which is only tested on, in their order."""
    settings = recipe.required_finetune
    is_test = draw_blocks(
        examples, settings.test_fraction, settings.validation_block, (recipe.seed, 4), "finetune.test_fraction"
    )
    training, test = (examples.subset(np.flatnonzero(is_test == out)) for out in (False, True))
    return training, test


def split_off_validation(recipe: Recipe, examples: Examples) -> tuple[Examples, Examples]:
    """The training and the validation part, drawn by the recipe's seed, in blocks of neighbouring examples.

    Raises UserError if the validation part would be empty or too small to measure on.
    """
    settings = recipe.required_finetune
    share, key = settings.validation_fraction, "finetune.validation_fraction"
    is_held_out = draw_blocks(examples, share, settings.validation_block, (recipe.seed, 1), key)
    shuffled = np.random.default_rng([recipe.seed, 2]).permutation(len(examples))
    training, validation = (examples.subset([i for i in shuffled if is_held_out[i] == out]) for out in (False, True))
    only = {"classification": "one class", "regression": "one number"}.get(settings.task)
    if only and len(np.unique(validation.labels)) < 2:
        raise UserError(
            f"{key}: {share} of {len(examples)} examples is too small a validation part, as it has {only} only; give "
            "more examples or a larger fraction, or 0 to keep the last epoch"
        )
    return training, validation


def draw_blocks(examples: Examples, share: float, block: int, seed: tuple[int, int], key: str) -> np.ndarray:
    """A mask (N,) that is true for a share of the examples, drawn in blocks of neighbours.

    Raises UserError, which names the key, if the mask would be all true or all false.
    """
    blocks = np.arange(len(examples)) // block
    order = np.random.default_rng(seed).permutation(blocks[-1] + 1)
    count = round(len(order) * share)
    if not 0 < count < len(order):
        in_blocks = f" in blocks of {block} (finetune.validation_block)" if block > 1 else ""
        raise UserError(
            f"{key}: {share} of {len(examples)} examples{in_blocks} leaves nothing to measure on; give more examples "
            "or a larger fraction, or 0 for no such part"
        )
    return np.isin(blocks, order[:count])


def read_further(recipe: Recipe, parts: Parts) -> Examples | None:
    """The recipe's unlabelled texts, without those that are also labelled; None if the recipe names none."""
    if recipe.required_finetune.unlabelled is None:
        return None
    labelled = [parts.training, parts.validation, parts.test]
    return read_unlabelled(recipe.required_finetune, [part for part in labelled if part is not None])


def read_test(recipe: Recipe, parts: Parts) -> Examples:
    """The test examples, with the training split's classes.

    Raises UserError if there are none, or if the classifier is trained on them.
    """
    if parts.test is not None:
        return parts.test
    settings, place = recipe.required_finetune, place_of_test(recipe)
    if same_place(place, (settings.path, settings.split)):
        raise UserError(
            f"evaluate: the classifier is trained on {place[0]} (split {place[1]}); give other texts with "
            "evaluate.path or evaluate.split, or set a part aside with finetune.test_fraction=0.1"
        )
    return read_examples(settings, place[1], recipe.evaluate.limit, path=place[0], encoder=parts.training.encoder)


def place_of_test(recipe: Recipe) -> tuple[str, str]:
    """Path and split of test texts from outside the training split."""
    path = recipe.evaluate.path or recipe.required_finetune.path
    return path, recipe.evaluate.split or ("train" if Path(path).is_file() else "test")


def same_place(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two pairs of path and split are the same; a path may be written in several ways."""
    return Path(one[0]).resolve() == Path(other[0]).resolve() and one[1] == other[1]


def chosen_on_test(recipe: Recipe) -> bool:
    """Whether the best epoch is chosen on the test texts."""
    settings = recipe.required_finetune
    is_elsewhere = is_validation_elsewhere(settings) and not settings.test_fraction
    return is_elsewhere and same_place(place_of_test(recipe), validation_place(settings))
