"""Labelled examples of every task: read, and checked before any training."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import open_table
from bertpre.errors import UserError
from bertpre.finetuning.glue import open_glue

if TYPE_CHECKING:
    from bertpre.recipe import Finetune

NO_VALUE = {"na", "n/a", "#n/a", "<na>", "null", "none"}  # written, in lower case, where a number is missing
BINARY = {0: 0.0, 1: 1.0}  # True and False are equal to these


@dataclass(frozen=True)
class Examples:
    """Texts (lists of words, where words are labelled), second texts if there are, and their labels.

    `labels` are class numbers (N,), or where a teacher gave them probabilities of the classes (N, C); numbers (N,); 0
    or 1 for each of several classes (N, C); or a list of class numbers for each list of words. `classes` names the
    classes, or the column where the labels are numbers; `places` are as `places_of` gives them, and `are_bits` says
    that several labels are written as 0 or 1 for each class.
    """

    ids: list[str]
    texts: list[Any]
    pairs: list[str] | None
    labels: Any
    classes: tuple[str, ...]
    places: list[str] | None = None
    are_bits: bool = False

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, indices: Sequence[int]) -> "Examples":
        """Some of them, in the order of `indices`."""
        labels = self.labels[indices] if isinstance(self.labels, np.ndarray) else [self.labels[i] for i in indices]
        return replace(
            self,
            ids=[self.ids[index] for index in indices],
            texts=[self.texts[index] for index in indices],
            pairs=None if self.pairs is None else [self.pairs[index] for index in indices],
            labels=labels,
        )


def read_examples(
    settings: "Finetune",
    split: str,
    limit: int | None = None,
    path: str | None = None,
    like: Examples | None = None,
) -> Examples:
    """Read a labelled split into memory; a limited one is drawn evenly from the whole, which may be sorted by label.

    `path` stands in for the recipe's; `like` are examples of the training split, which say what the classes are.
    Raises UserError, which names the first example, where there is none, a text is empty, a label is missing, no
    number, of another task's kind or outside the classes; and where the recipe's names of classes do not fit the
    dataset's.
    """
    source = path or settings.path
    where = f"finetune: {source} (split {split})"
    several = isinstance(settings.label_column, list)
    label_columns = settings.label_column if several else [settings.label_column]
    ids, texts, pairs, values, names = read_texts(settings, source, split, limit, label_columns)
    values = values if several else [value for (value,) in values]
    refuse_other_kind(settings.task, values, where)
    missing = [is_missing(value) or any(map(is_missing, single(settings.task, [value]))) for value in values]
    complain(missing, ids, f"{where}: %s no label; leave such examples out")
    if like is None:
        classes, places, are_bits = meaning_of(settings, values, names, where)
    else:
        classes, are_bits = like.classes, like.are_bits
        places = like.places if settings.label_names and not names else places_of(settings, values, names)
    if are_bits:
        values = [tuple(words_of(value)) for value in values]
    labels = read_labels(settings.task, values, classes, places, ids, texts, where)
    return Examples(ids, texts, pairs, labels, classes, places, are_bits)


def read_texts(
    settings: "Finetune", path: str, split: str, limit: int | None, label_columns: list[str]
) -> tuple[list[str], list[Any], list[str] | None, list[tuple[Any, ...]], list[str] | None]:
    """Names, texts, second texts, labels as they are written, and the dataset's own class names."""
    where = f"finetune: {path} (split {split})"
    ids, rows, names = read_rows(settings, path, split, label_columns)
    if limit is not None and limit < len(rows):
        kept = np.linspace(0, len(rows) - 1, limit).astype(int)
        ids, rows = [ids[index] for index in kept], [rows[index] for index in kept]
    if not rows:
        raise UserError(f"{where} holds no text")
    has_pairs, is_words = settings.text_pair_column is not None, settings.task == "tokens"
    read = words_in if is_words else text_in
    texts = [read(row[0], where, "text_column") for row in rows]
    texts = texts if is_words else list(map(clean_text, texts))
    pairs = [clean_text(text_in(row[1], where, "text_pair_column")) for row in rows] if has_pairs else None
    empty = [not text and not (pairs and pairs[index]) for index, text in enumerate(texts)]
    complain(empty, ids, f"{where}: %s no text in it; leave such examples out")
    return ids, texts, pairs, [row[1 + has_pairs :] for row in rows], names


def read_rows(
    settings: "Finetune", path: str, split: str, label_columns: list[str]
) -> tuple[list[str], list[tuple[Any, ...]], list[str] | None]:
    """Names and values (text, perhaps a second one, label or labels) of all rows, and the dataset's own class names."""
    columns = [("text_column", settings.text_column), ("text_pair_column", settings.text_pair_column)]
    columns = [(of, column) for of, column in columns if column is not None]
    columns += [("label_column", column) for column in label_columns]
    ids, rows, names = [], [], None
    for part in split.split("+"):
        place = path, settings.name, part, "finetune"
        table = open_glue(*place) or open_table(*place)
        part_rows = list(table.rows(columns))
        ids += [f"{part}/{number}" for number in range(len(part_rows))]
        rows += part_rows
        if label_columns:
            names = label_columns if len(label_columns) > 1 else table.class_names(label_columns[0])
    return ids, rows, names


def text_in(value: Any, where: str, of: str) -> str:
    """The text of one example as it is written; raises UserError where it is none."""
    if not isinstance(value, str | None):
        raise UserError(f"{where}: {of} holds {type(value).__name__}, not text")
    return value or ""


def words_in(value: Any, where: str, of: str) -> list[str]:
    """The words of one example; raises UserError where there are none in it, but a number."""
    if not isinstance(value, str | list | None):
        raise UserError(f"{where}: {of} holds {type(value).__name__}, not words")
    return list(map(str, words_of(value)))


def words_of(value: Any) -> list[Any]:
    """The words, or the labels, of one example: a list as it is, a string cut at its spaces, a number by itself."""
    if isinstance(value, int | float):
        return [value]
    return value.split() if isinstance(value, str) else list(value or [])


def refuse_other_kind(task: str, values: list[Any], where: str) -> None:
    """Raise UserError where labels are lists and the task has one for each text, or the other way round."""
    for value in values:
        if task == "tokens" and not isinstance(value, list | str) and not is_missing(value):
            raise UserError(f"{where}: label_column holds {type(value).__name__}, not a tag for each word")
        if task in ("classification", "regression") and isinstance(value, list):
            raise UserError(
                f"{where}: label_column holds lists, which are for finetune.task=multi_label, or tokens where they are "
                "the tags of words"
            )


def refuse_other_names(settings: "Finetune", names: list[str] | None, where: str) -> None:
    """Raise UserError where the recipe keeps some of the dataset's own class names, in other places, and adds others.

    Its own ones may be put in another order; new ones, in the dataset's order, are other names for the same numbers.
    """
    wanted = settings.label_names
    if not names or not wanted or not set(wanted) & set(names) or not set(wanted) - set(names):
        return
    stay = len(wanted) == len(names) and all(
        new == old or new not in names for new, old in zip(wanted, names, strict=True)
    )
    if not stay:
        raise UserError(
            f"{where}: finetune.label_names ({', '.join(wanted[:20])}) are partly the dataset's own "
            f"({', '.join(names[:20])}): give these alone, in any order, or as many names in this order"
        )


def is_each_a_row_of_bits(values: list[Any], names: list[str] | None, where: str) -> bool:
    """Whether labels are lists of 0 and 1, one for each class, and not lists of classes.

    Raises UserError where they can be nothing else, as a number stands twice in a list, but `names` are not as many.
    """
    if not all(isinstance(value, list) and set(value) <= BINARY.keys() for value in values):
        return False
    length, *others = {len(value) for value in values}
    if others or length < 2:
        return False
    fits = names is None or len(names) == length
    if not fits and any(len(set(value)) < length for value in values):
        raise UserError(f"{where}: labels are {length} numbers of 0 and 1, and there are {len(names)} classes")
    return fits


def complain(is_bad: list[bool], ids: list[str], message: str) -> None:
    """Raise UserError where an example is bad; `%s` in the message becomes which it is, and how many."""
    if count := sum(is_bad):
        first = ids[is_bad.index(True)]
        who = f"example {first} has" if count == 1 else f"{count} examples (the first is {first}) have"
        raise UserError(message.replace("%s", who))


def is_missing(value: Any) -> bool:
    """Whether there is no label: None, an empty text or NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def single(task: str, values: list[Any]) -> list[Any]:
    """The labels one by one, where an example has several."""
    return (
        values if task in ("classification", "regression") else [each for value in values for each in words_of(value)]
    )


def meaning_of(
    settings: "Finetune", values: list[Any], names: list[str] | None, where: str
) -> tuple[tuple[str, ...], list[str] | None, bool]:
    """What the labels of a training split say: `classes`, `places` and `are_bits` of `Examples`."""
    refuse_other_names(settings, names, where)
    known = settings.label_names or names
    if settings.task == "multi_label" and is_each_a_row_of_bits(values, known, where):
        return tuple(known or map(str, range(len(values[0])))), None, True
    return find_classes(settings, values, names, where), places_of(settings, values, names), False


def find_classes(settings: "Finetune", values: list[Any], names: list[str] | None, where: str) -> tuple[str, ...]:
    """The names of the classes: the recipe's, the dataset's own, or the values found, sorted.

    Unless the recipe names them, raises UserError for no label at all, for fractions, for -1, which marks a hidden
    label on the Hub, and for what marks one beside numbers in tables, such as NA.
    """
    if settings.task == "regression":
        return (settings.label_column,)
    if settings.label_names or names:
        return tuple(settings.label_names or names)
    found = set(map(plain, single(settings.task, values)))
    if not found:
        raise UserError(f"{where}: no example has a label; there is nothing to learn")
    if any(isinstance(value, int) and value < 0 for value in found):
        raise UserError(
            f"{where}: there is a label {min(found, key=repr)}; on the Hub it marks a hidden label; if it is a class, "
            "name all classes: finetune.label_names=[...]"
        )
    if fractions := [value for value in found if isinstance(value, float)]:
        raise UserError(
            f"{where}: there is a label {fractions[0]}; numbers with fractions are for finetune.task=regression"
        )
    numbers = list(map(str, sorted(value for value in found if isinstance(value, int))))
    others = sorted({str(value) for value in found} - set(numbers))
    words = [each for each in others if to_number(each) is None]
    if words and len(words) < len(numbers + others) and all(word.lower() in NO_VALUE for word in words):
        raise UserError(
            f"{where}: besides numbers there is {words[0]!r}, which mostly means no label; leave such examples out, or "
            "if it is a class, name all classes: finetune.label_names=[...]"
        )
    return (*numbers, *others)


def places_of(settings: "Finetune", values: list[Any], names: list[str] | None) -> list[str] | None:
    """What whole numbers are places in: the dataset's own class names; or the recipe's, where not all labels are names.

    None where labels are names, or were themselves made the classes: 0 is none of the classes 1 and 2.
    """
    known = settings.label_names or names
    if names and set(known) <= set(names):
        return names  # the recipe's order may be another one
    if names or (known and not {str(plain(value)) for value in single(settings.task, values)} <= set(known)):
        return known
    return None


def plain(value: Any) -> Any:
    """A label as it is written: whole numbers without a point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_labels(
    task: str,
    values: list[Any],
    classes: tuple[str, ...],
    places: list[str] | None,
    ids: list[str],
    texts: list[Any],
    where: str,
) -> Any:
    """The labels as numbers, of a shape that `Examples` says; `places` as `places_of` gives them."""
    if task == "regression":
        numbers = [to_number(value) for value in values]
        complain([number is None for number in numbers], ids, f"{where}: %s a label that is not a finite number")
        return np.array(numbers, dtype=np.float32)
    known = {name: number for number, name in enumerate(classes)}

    def number_of(value: Any) -> int:
        value = plain(value)
        if places is not None and isinstance(value, int) and not isinstance(value, bool):
            return known.get(places[value], -1) if 0 <= value < len(places) else -1
        return known.get(str(value), -1)

    outside = f"{where}: %s a label outside the classes ({', '.join(classes[:20])})"
    if task == "classification":
        return numbered(values, number_of, ids, outside)
    if task == "multi_label":
        rows = [several_hot(value, number_of, len(classes)) for value in values]
        complain([row is None for row in rows], ids, outside)
        return np.array(rows, dtype=np.float32)
    words = [words_of(value) for value in values]
    uneven = [len(tags) != len(text) for tags, text in zip(words, texts, strict=True)]
    complain(uneven, ids, f"{where}: %s not as many labels as words")
    return [numbered(tags, number_of, [name] * len(tags), outside) for tags, name in zip(words, ids, strict=True)]


def to_number(value: Any) -> float | None:
    """A finite number, written or as it is; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def numbered(values: list[Any], number_of: Callable[[Any], int], ids: list[str], message: str) -> np.ndarray:
    """Class numbers; raises UserError with `message` where there is none."""
    numbers = [number_of(value) for value in values]
    complain(
        [number < 0 for number in numbers], ids, f"{message}: {values[numbers.index(-1)]!r}" if -1 in numbers else ""
    )
    return np.array(numbers, dtype=np.int64)


def several_hot(value: Any, number_of: Callable[[Any], int], count: int) -> list[float] | None:
    """0 or 1 for each class, from a row of such numbers or a list of classes; None where one is unknown."""
    if isinstance(value, tuple):
        fits = len(value) == count and all(each in BINARY for each in value)
        return [BINARY[each] for each in value] if fits else None
    numbers = [number_of(each) for each in words_of(value)]
    return None if -1 in numbers else [float(number in numbers) for number in range(count)]


def check_variety(task: str, examples: Examples, where: str) -> None:
    """Raise UserError where examples have nothing to tell apart."""
    if task == "multi_label":
        return
    values = np.unique(np.concatenate(examples.labels) if task == "tokens" else examples.labels)
    if len(values) < 2:
        one = f"label only ({values[0]:g})" if task == "regression" else f"class only ({examples.classes[values[0]]})"
        raise UserError(f"{where} has one {one}; there is nothing to learn")
