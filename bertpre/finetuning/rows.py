"""Rows of a labelled split as they are written: texts, second texts, and labels that are not interpreted yet."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import open_table
from bertpre.data.local_files import with_split
from bertpre.errors import UserError
from bertpre.finetuning.glue import open_glue

if TYPE_CHECKING:
    from bertpre.recipe import Finetune

NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,99})(\.[0-9]+)?")  # not 01, which is a name
Row = tuple[Any, ...]  # text, second text where there are pairs, label or labels


@dataclass(frozen=True)
class Rows:
    """Cleaned texts (lists of words in the task `tokens`), second texts, and labels as they are written.

    With several label columns a label is a list, one value for each column. `class_names` are the dataset's own.
    `place` says where the rows come from; messages begin with it.
    """

    place: str
    ids: list[str]
    texts: list[Any]
    pairs: list[str] | None
    labels: list[Any]
    class_names: list[str] | None = None

    def refuse(self, is_bad: Sequence[bool], problem: str) -> None:
        """Raise UserError if a row is bad; the message names the first one and counts them."""
        if count := sum(is_bad):
            first = row_of(self.ids[list(is_bad).index(True)])
            who = f"{first} has" if count == 1 else f"{count} rows (the first is {first}) have"
            raise UserError(f"{self.place}: {who} {problem}")


def row_of(example: str) -> str:
    """The row of an example with this id, counted from 1, as `predict` does."""
    split, number = example.rsplit("/", 1)
    return f"row {int(number) + 1} of {split}"


def spread_evenly(count: int, limit: int) -> np.ndarray:
    """`limit` row numbers below `count`, in order: one from each of `limit` equal stretches, drawn with a fixed seed.

    At even distances they would all be of one class where classes alternate.
    """
    edges = np.linspace(0, count, limit + 1).astype(int)
    return np.random.default_rng(0).integers(edges[:-1], edges[1:])


def read_rows(
    settings: "Finetune",
    path: str,
    split: str,
    limit: int | None = None,
    with_labels: bool = True,
    key: str = "finetune",
    as_text: bool = False,
) -> Rows:
    """Read and clean the rows of a split; `limit` rows are spread over it, as it may be sorted by label.

    `key` is the section of the recipe that names the path and the split; messages begin with it. With `as_text` labels
    that are written as text stay so, also where all of them look like numbers. Raises UserError if a column is missing,
    there are no rows, or a text is empty or not text.
    """
    place = f"{key}: {with_split(path, split)}"
    ids, rows, class_names = read_columns(settings, path, split, settings.label_columns if with_labels else [], key)
    if limit is not None and limit < len(rows):
        kept = spread_evenly(len(rows), limit)
        ids, rows = [ids[index] for index in kept], [rows[index] for index in kept]
    if not rows:
        raise UserError(f"{place} holds no text")
    names, texts = list(map(row_of, ids)), list[Any]()
    if settings.task == "tokens":
        texts = [words_in(row[0], place, "text_column", where) for where, row in zip(names, rows, strict=True)]
    else:
        cells = (text_in(row[0], place, "text_column", where) for where, row in zip(names, rows, strict=True))
        texts = list(map(clean_text, cells))
    has_pairs, pairs = settings.text_pair_column is not None, None
    if has_pairs:
        cells = (text_in(row[1], place, "text_pair_column", where) for where, row in zip(names, rows, strict=True))
        pairs = list(map(clean_text, cells))
    columns = list(zip(*(row[1 + has_pairs :] for row in rows), strict=True))
    if settings.task != "tokens" and not as_text:  # whose labels are tags, separated by spaces
        columns = [as_numbers(column, settings.label_names or ()) for column in columns]
    written = [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in rows]
    labels = written if len(settings.label_columns) > 1 or not with_labels else [label for (label,) in written]
    found = Rows(place, ids, texts, pairs, labels, class_names)
    empty = [not text and not (pairs and pairs[index]) for index, text in enumerate(texts)]
    columns_read = " and ".join(repr(each) for each in (settings.text_column, settings.text_pair_column) if each)
    found.refuse(empty, f"no text in {columns_read}; leave such rows out")
    return found


def read_columns(
    settings: "Finetune", path: str, split: str, label_columns: list[str], key: str
) -> tuple[list[str], list[Row], list[str] | None]:
    """Ids and values of all rows, and the dataset's own class names; `split` may join several splits with a +."""
    named = [("text_column", settings.text_column), ("text_pair_column", settings.text_pair_column)]
    columns = [(f"finetune.{argument}", column) for argument, column in named if column is not None]
    columns += [("finetune.label_column", column) for column in label_columns]
    ids, rows, class_names = [], [], None
    name = settings.name if path == settings.path else None  # of that dataset alone
    text_unit = "tagged" if settings.task == "tokens" else "line"
    for part in split.split("+"):
        source = path, name, part, key
        table = open_glue(*source) or open_table(*source, text_unit)
        part_rows = list(table.rows(columns))
        ids += [f"{part}/{number}" for number in range(len(part_rows))]
        rows += part_rows
        if label_columns:
            class_names = label_columns if len(label_columns) > 1 else table.class_names(label_columns[0])
    return ids, rows, class_names


def as_numbers(column: tuple[Any, ...], label_names: Sequence[str]) -> tuple[Any, ...]:
    """A column of labels; as numbers, if all of them are texts that are written like numbers, as in CSV files.

    Class names that a number cannot hold stay texts: 1.10 is another name than 1.1.
    """
    given = [value for value in column if value is not None]
    if not given or not all(isinstance(value, str) and NUMBER.fullmatch(value) for value in given):
        return column
    is_exact = all(map(is_written_exactly, given))
    if not is_exact and set(given) <= set(label_names):
        return column
    return tuple(value if value is None else number_in(value) for value in column)


def number_in(text: str) -> int | float:
    """The number that a text which matches NUMBER stands for."""
    return float(text) if "." in text else int(text)


def is_written_exactly(text: str) -> bool:
    """Whether a text is a number as Python writes it: 1.1 and 20, but not 1.10."""
    return NUMBER.fullmatch(text) is not None and str(number_in(text)) == text


def text_in(value: Any, place: str, key: str, row: str) -> str:
    """The text in a column of a row; raises UserError for anything else."""
    if not isinstance(value, str | None):
        remedy = "; write one JSON object a line, as pandas does with orient='records', lines=True"
        raise UserError(
            f"{place}: {key} holds {type(value).__name__}, not text ({row}){remedy if isinstance(value, dict) else ''}"
        )
    return value or ""


def words_in(value: Any, place: str, key: str, row: str) -> list[str]:
    """The words in a column of a row, a list or with spaces; raises UserError for anything else."""
    if not isinstance(value, str | list | None):
        raise UserError(f"{place}: {key} holds {type(value).__name__}, not words ({row})")
    words = items_of(value)
    if others := [word for word in words if word is None or isinstance(word, bytes | list | dict)]:
        raise UserError(
            f"{place}: {key} has {type(others[0]).__name__} among its words ({row}); leave such examples out"
        )
    return list(map(str, words))


def items_of(value: Any) -> list[Any]:
    """Words or labels as a list: a list as it is, text split at its spaces, a number alone, none for None."""
    if isinstance(value, int | float):
        return [value]
    return value.split() if isinstance(value, str) else list(value or [])
