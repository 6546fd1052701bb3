"""Splits the labelled examples: for training, for choosing the best epoch, and for the test."""

import glob
import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from bertpre.console import log_once
from bertpre.data.corpus import place_beside
from bertpre.data.local_files import files_by_split, local_files, with_split
from bertpre.errors import UserError
from bertpre.finetuning.examples import (
    Examples,
    comparable_texts,
    overlap,
    read_examples,
    refuse_ids,
    refuse_numbers,
    refuse_single_class,
    whole_texts,
)
from bertpre.finetuning.glue import is_glue
from bertpre.finetuning.pseudo_labels import read_unlabelled
from bertpre.finetuning.rows import spread_evenly
from bertpre.recipe import Finetune, Recipe

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class Parts:
    """The training split of a recipe, split up; `test` is the part that `finetune.test_fraction` sets aside."""

    training: Examples
    validation: Examples | None
    test: Examples | None


@dataclass(frozen=True)
class Labelled:
    """A recipe's texts for fine-tuning and for the test; each is read when it is first asked for, and only then.

    Raises UserError as `read_parts`, `read_unlabelled` and `read_test` do.
    """

    recipe: Recipe

    @cached_property
    def parts(self) -> Parts:
        """The parts of the training split."""
        return read_parts(self.recipe)

    @cached_property
    def unlabelled(self) -> Examples | None:
        """The recipe's unlabelled texts, without those that are also labelled; None if the recipe names none."""
        if self.recipe.required_finetune.unlabelled is None:
            return None
        parts = (self.parts.training, self.parts.validation, self.parts.test)
        return read_unlabelled(self.recipe.required_finetune, [part for part in parts if part is not None])

    @cached_property
    def test(self) -> Examples:
        """The test examples."""
        return read_test(self.recipe, self.parts)


def read_parts(recipe: Recipe) -> Parts:
    """The parts of the training split, checked; None for a part that the recipe does not ask for."""
    settings = recipe.required_finetune
    if settings.name is None and is_glue(settings.path):
        raise UserError(f"finetune.path: {settings.path} is GLUE: run `bertpre suite`, or name a task in finetune.name")
    training, validation, test = read_examples(settings, settings.split, settings.limit), None, None
    mention_unused_splits(settings)
    refuse_single_class(settings.task, training, f"finetune: {with_split(settings.path, settings.split)}")
    refuse_ids(settings, training)
    if settings.text_pair_column is None:
        refuse_numbers(settings, training)
    if settings.test_fraction:
        training, test = set_aside(recipe, training)
    if is_validation_elsewhere(settings):
        validation = read_validation(settings, training)
    elif settings.validation_fraction:
        training, validation = split_off_validation(recipe, training)
    return Parts(training, validation, test)


def state_of_label_files(recipe: Recipe) -> str | None:
    """A hash of the sizes and dates of the local files with labelled texts; None where some are gone.

    So a change shows without reading them. The files are those of patterns and whole folders, too.
    """
    settings = recipe.required_finetune
    places = [settings.path, settings.validation_path, recipe.evaluate.path]
    if further := settings.unlabelled:
        places += [further.path, further.held_out and place_beside(further.held_out, settings.path)[0]]
    found = {place: local_files(place) for place in dict.fromkeys(filter(None, places))}
    if any(Path(place).is_absolute() and not files for place, files in found.items()):
        return None
    state = [(each.st_size, each.st_mtime_ns) for files in found.values() for each in (file.stat() for file in files)]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def mention_unused_splits(settings: Finetune) -> None:
    """Log a line for each split of a local folder in whose place a part of the training split is measured on."""
    folder = Path(settings.path)
    splits = files_by_split(folder, settings.name)[0] if folder.is_dir() and not is_glue(settings.path) else {}
    if settings.test_fraction and "test" in splits:
        log_once(
            f"finetune.test_fraction={settings.test_fraction:g} sets texts of the split {settings.split} aside, though "
            f"{folder} has a split test; finetune.test_fraction=0 uses that"
        )
    if settings.validation_fraction and not is_validation_elsewhere(settings) and "validation" in splits:
        log_once(
            f"finetune.validation_fraction={settings.validation_fraction:g} sets texts of the split {settings.split} "
            f"aside, though {folder} has a split validation; finetune.validation_split=validation uses that"
        )


def read_validation(settings: Finetune, training: Examples) -> Examples:
    """The validation examples from outside the training split, with its classes.

    Raises UserError if the classifier is trained on them, or if they are too few to measure on. Says so where it is
    trained on some of them.
    """
    path, split = validation_place(settings)
    key = "finetune.validation_path" if settings.validation_path else "finetune.validation_split"
    if same_place((path, split), (settings.path, settings.split)):
        raise UserError(
            f"{key}: the classifier is trained on {with_split(path, settings.split)}; give other texts, or leave it "
            "out and set a part aside with finetune.validation_fraction"
        )
    validation = read_examples(settings, split, path=path, encoder=training.encoder, key=key)
    refuse_single_answer(settings.task, validation, f"{key}: {with_split(path, split)}", "give another file or split")
    known = int(overlap(validation, [training]).sum())
    if known == len(validation):
        raise UserError(
            f"{key}: all {known:,} texts of {with_split(path, split)} equal a training text, so they cannot choose the "
            "best epoch; give other texts, or leave it out and set a part aside with finetune.validation_fraction"
        )
    if known:
        log_once(f"{key}: {known:,} of {len(validation):,} validation texts equal a training text")
    return validation


def is_validation_elsewhere(settings: Finetune) -> bool:
    """Whether the validation texts come from outside the training split."""
    return bool(settings.validation_path or settings.validation_split)


def validation_place(settings: Finetune) -> tuple[str, str]:
    """Path and split of validation texts from outside the training split."""
    return settings.validation_path or settings.path, settings.validation_split or "train"


def set_aside(recipe: Recipe, examples: Examples) -> tuple[Examples, Examples]:
    """The examples without and with the part `finetune.test_fraction`, which is only tested on, in their order."""
    settings = recipe.required_finetune
    is_test = draw_blocks(settings, examples, settings.test_fraction, (recipe.seed, 4), "finetune.test_fraction")
    training, test = (examples.subset(np.flatnonzero(is_test == out)) for out in (False, True))
    return training, test


def split_off_validation(recipe: Recipe, examples: Examples) -> tuple[Examples, Examples]:
    """The training and the validation part, drawn by the recipe's seed as `draw_blocks` does.

    Raises UserError if the validation part would be empty or too small to measure on.
    """
    settings = recipe.required_finetune
    share, key = settings.validation_fraction, "finetune.validation_fraction"
    is_held_out = draw_blocks(settings, examples, share, (recipe.seed, 1), key)
    shuffled = np.random.default_rng([recipe.seed, 2]).permutation(len(examples))
    training, validation = (examples.subset([i for i in shuffled if is_held_out[i] == out]) for out in (False, True))
    remedy = "give more examples or a larger fraction, or 0 to keep the last epoch"
    if settings.limit is not None:
        remedy += "; finetune.limit takes few: another number may take other classes"
    refuse_single_answer(settings.task, validation, f"{key}: {share} of {len(examples)} examples", remedy)
    return training, validation


def refuse_single_answer(task: str, validation: Examples, place: str, remedy: str) -> None:
    """Raise UserError if all labels of a validation part are the same, so that its accuracy says nothing."""
    only = {"classification": "one class", "regression": "one number"}.get(task)
    if only and len(np.unique(validation.labels)) < 2:
        raise UserError(f"{place} is too small a validation part, as it has {only} only; {remedy}")


def draw_blocks(settings: Finetune, examples: Examples, share: float, seed: tuple[int, int], key: str) -> np.ndarray:
    """A mask (N,) that is true for a share of the examples, drawn in blocks of neighbours and stratified by label.

    The blocks are sorted by their mean labels, the rarest class first and equal ones in random order. Every n-th block
    is drawn, from a random one on: systematic sampling (Cochran 1977, chapter 8) of a sorted list. A block with all
    examples of a class is never drawn, and where all blocks with a class were drawn, one is put back. Raises UserError,
    which names the key, if nothing is drawn.
    """
    generator = np.random.default_rng(seed)
    blocks, sizes = blocks_of(examples, settings.validation_block)
    sums = labels_of_blocks(settings.task, examples, blocks)
    order = by_mean_labels(sums, sizes, generator)
    by_class = (sums > 0).tocsc()
    holders = np.split(by_class.indices, by_class.indptr[1:-1])  # for each class the blocks with examples of it
    order = order[~np.isin(order, [each[0] for each in holders if len(each) == 1])]
    count = round(len(order) * share)
    places = (np.arange(count) + generator.random()) * len(order) / max(1, count)
    drawn = order[places.astype(int)]
    is_chosen = np.zeros(len(sizes), dtype=bool)
    is_chosen[drawn] = True
    for each in holders:
        if len(each) and is_chosen[each].all():
            is_chosen[next(block for block in drawn if block in each)] = False
    wanted = f"{key}: {share} of {len(examples):,} examples"
    if not is_chosen.any():
        refuse_nothing_drawn(settings, examples, len(sizes), key, wanted)
    is_drawn = is_chosen[blocks]
    asked, got = round(share * len(examples)), int(is_drawn.sum())
    if settings.validation_block == 1 and abs(got - asked) > max(10, asked / 4):
        alone = sum(len(each) == 1 for each in holders)
        why = "equal texts stay together, and some stand here many times"
        if len(sizes) == len(examples):
            why = f"{alone:,} classes have a single text each, and none of these is drawn"
        log_once(f"{wanted} are {asked:,}, but {got:,} were drawn: {why}. The classes may have other shares there, too")
    return is_drawn


def refuse_nothing_drawn(settings: Finetune, examples: Examples, num_blocks: int, key: str, wanted: str) -> NoReturn:
    """Raise UserError, which says why no block could be drawn: all texts are one, or the share is too small."""
    size = settings.validation_block
    if settings.task == "tokens" and len(examples) == 1:
        raise UserError(f"{key}: there is one example; in a file with one word a line, an empty line ends an example")
    if size == 1 and num_blocks == 1:
        raise UserError(f"{key}: all {len(examples)} examples have the same text; is it the right column?")
    of_size = f" in blocks of {size} (finetune.validation_block)" if size > 1 else ""
    raise UserError(
        f"{wanted}{of_size} leaves nothing to measure on; give more examples or a larger fraction, or 0 for no such "
        "part"
    )


def labels_of_blocks(task: str, examples: Examples, blocks: np.ndarray) -> "csr_matrix":
    """How many labels of each class each block has, (B, C), or the sum of its numbers, (B, 1)."""
    from scipy.sparse import csr_matrix

    rows, classes, counts = label_counts(task, examples)
    sums = csr_matrix((counts, (blocks[rows], classes)), shape=(blocks.max() + 1, len(examples.classes)))
    sums.sum_duplicates()
    return sums


def by_mean_labels(sums: "csr_matrix", sizes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The numbers of the blocks, (B,), in the order of their mean labels, the rarest class first."""
    rarity = np.argsort(np.argsort(-np.asarray(sums.sum(0)).ravel(), kind="stable"))
    shares = sums.data / np.repeat(sizes, np.diff(sums.indptr))
    entries = list(zip(rarity[sums.indices].tolist(), shares.tolist(), strict=True))
    ends = pairwise(sums.indptr.tolist())
    means = [sorted(entries[start:end], reverse=True) for start, end in ends]  # none for a class that a block lacks
    at_random = generator.random(len(sizes))
    return np.array(sorted(range(len(sizes)), key=lambda block: (means[block], at_random[block])), dtype=np.int64)


def blocks_of(examples: Examples, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of each example's block of neighbours, (N,), and the number of examples in each block, (B,).

    Duplicates belong to the block of their first copy, so that they stay together.
    """
    first: dict[Any, int] = {}
    copied = [first.setdefault(text, number) for number, text in enumerate(comparable_texts(examples))]
    _, blocks, sizes = np.unique(blocks_in_files(examples, size)[copied], return_inverse=True, return_counts=True)
    return blocks, sizes


def blocks_in_files(examples: Examples, size: int) -> np.ndarray:
    """The number of the block of `size` rows of its split that each example stands in, (N,)."""
    splits, _, rows = zip(*(name.rpartition("/") for name in examples.ids), strict=True)  # ids are split/row
    split_numbers = np.unique(splits, return_inverse=True)[1]
    places = np.stack((split_numbers, np.array(rows, dtype=np.int64) // size), axis=1)
    return np.unique(places, axis=0, return_inverse=True)[1].reshape(-1)


def label_counts(task: str, examples: Examples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of examples, of classes, and how many such labels there are, in no more entries than there are labels.

    In a regression the class is 0, and the number itself stands for the count.
    """
    numbers = np.arange(len(examples))
    if task == "tokens":
        tags = np.concatenate(examples.labels)
        return np.repeat(numbers, list(map(len, examples.labels))), tags, np.ones(len(tags))
    if task == "classification":
        return numbers, examples.labels, np.ones(len(examples))
    if task == "multi_label":
        rows, classes = np.nonzero(examples.labels)
        return rows, classes, np.ones(len(rows))
    return numbers, np.zeros_like(numbers), examples.labels


def groups_of_alike(settings: Finetune, examples: Examples) -> np.ndarray | None:
    """The number of the group of examples that are alike that each is in, (N,); None where all are independent.

    Alike are the rows of a block of `finetune.validation_block`, or, where that is 1, copies of one text.
    """
    if settings.validation_block > 1:
        return blocks_in_files(examples, settings.validation_block)
    first: dict[Any, int] = {}
    numbers = [first.setdefault(text, len(first)) for text in comparable_texts(examples)]
    return None if len(first) == len(numbers) else np.array(numbers)


def own_parts(settings: Finetune, parts: Parts) -> list[Examples]:
    """The parts of the training split that a classifier is trained and selected on."""
    validation = None if is_validation_elsewhere(settings) else parts.validation
    return [parts.training] if validation is None else [parts.training, validation]


def digest_of_test(parts: Parts) -> str | None:
    """A digest of the texts that `finetune.test_fraction` sets aside; None without such a part."""
    if parts.test is None:
        return None
    return hashlib.sha256(repr(whole_texts(parts.test)).encode()).hexdigest()[:16]


def read_test(recipe: Recipe, parts: Parts) -> Examples:
    """The test examples, with the training split's classes.

    Raises UserError if there are none, or if the classifier is trained on them.
    """
    limit = recipe.evaluate.limit
    if parts.test is not None:
        count = len(parts.test)
        return parts.test if limit is None or limit >= count else parts.test.subset(spread_evenly(count, limit))
    settings, place = recipe.required_finetune, place_of_test(recipe)
    if same_place(place, (settings.path, settings.split)):
        raise UserError(
            f"evaluate: the classifier is trained on {with_split(*place)}; give other texts with "
            "evaluate.path or evaluate.split, or set a part aside with finetune.test_fraction=0.1"
        )
    encoder = parts.training.encoder
    return read_examples(settings, place[1], limit, path=place[0], encoder=encoder, key="evaluate")


def place_of_test(recipe: Recipe) -> tuple[str, str]:
    """Path and split of test texts from outside the training split."""
    path = recipe.evaluate.path or recipe.required_finetune.path
    has_splits = Path(path).is_dir() or not (Path(path).is_file() or glob.has_magic(path))
    return path, recipe.evaluate.split or ("test" if has_splits else "train")


def same_place(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two pairs of path and split share texts; a path may be written in several ways, splits joined by +."""
    shared = set(one[1].split("+")) & set(other[1].split("+"))
    return Path(one[0]).resolve() == Path(other[0]).resolve() and bool(shared)


def known_from_validation(settings: Finetune, parts: Parts, test: Examples) -> int:
    """How many test texts equal a validation text from outside the training split; such texts choose the epoch."""
    if parts.validation is None or not is_validation_elsewhere(settings):
        return 0
    return int(overlap(test, [parts.validation]).sum())


def chosen_on_test(recipe: Recipe) -> bool:
    """Whether the best epoch is chosen on the test texts."""
    settings = recipe.required_finetune
    is_elsewhere = is_validation_elsewhere(settings) and not settings.test_fraction
    return is_elsewhere and same_place(place_of_test(recipe), validation_place(settings))
