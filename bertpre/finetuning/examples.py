"""Labelled examples of every task: read, and checked before any training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bertpre.data.duplicates import comparable
from bertpre.errors import UserError
from bertpre.finetuning.labels import LabelEncoder
from bertpre.finetuning.rows import NUMBER, Rows, read_rows

if TYPE_CHECKING:
    from bertpre.recipe import Finetune

FEW = 20  # examples, among which numbers may be chance


@dataclass(frozen=True)
class Examples:
    """Texts (lists of words in the task `tokens`), second texts if the task has pairs, and labels.

    `labels` are class numbers (N,), or probabilities (N, C) if they are pseudo-labels; in a regression, numbers (N,);
    in multi-label classification, 0 or 1 for each class (N, C); for tokens, an array of class numbers for each text.
    `classes` names the classes, or the label column of a regression. `encoder` made the labels.
    """

    ids: list[str]
    texts: list[Any]
    pairs: list[str] | None
    labels: Any
    classes: tuple[str, ...]
    encoder: LabelEncoder | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Examples":
        """The examples at `indices`, in that order."""
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
    encoder: LabelEncoder | None = None,
    key: str = "finetune",
) -> Examples:
    """Read a labelled split into memory, from `path` if it is given, else from the recipe's.

    `encoder` is the training split's; without it one is fitted. Raises UserError, which begins with `key`, as
    `read_rows` and `LabelEncoder` do.
    """
    as_text = encoder is not None and encoder.has_names_as_text
    rows = read_rows(settings, path or settings.path, split, limit, key=key, as_text=as_text)
    encoder = encoder or LabelEncoder.fit(settings, rows)
    return Examples(rows.ids, rows.texts, rows.pairs, encoder.encode(rows), encoder.classes, encoder)


def whole_texts(examples: Examples | Rows) -> list[Any]:
    """What makes two examples equal: the text, both texts of a pair, or the words; hashable."""
    if examples.pairs is not None:
        return list(zip(examples.texts, examples.pairs, strict=True))
    return [tuple(text) if isinstance(text, list) else text for text in examples.texts]


def comparable_texts(examples: Examples | Rows) -> list[tuple[bytes, ...]]:
    """What two examples share that differ by white space and capitals alone, as in a corpus; hashable."""
    return [tuple(map(comparable, [text] if isinstance(text, str) else text)) for text in whole_texts(examples)]


def overlap(examples: Examples | Rows, others: Iterable[Examples | Rows]) -> np.ndarray:
    """Which examples have a text, a pair or words that also stand in one of the others; (N,), bool."""
    known = {text for other in others for text in comparable_texts(other)}
    return np.array([text in known for text in comparable_texts(examples)])


def refuse_single_class(task: str, examples: Examples, place: str) -> None:
    """Raise UserError if all labels are the same, so that there is nothing to learn."""
    if task == "multi_label":
        return
    values = np.unique(np.concatenate(examples.labels) if task == "tokens" else examples.labels)
    if len(values) < 2:
        only = f"label only ({values[0]:g})" if task == "regression" else f"class only ({examples.classes[values[0]]})"
        raise UserError(f"{place} has one {only}; there is nothing to learn")


def refuse_ids(settings: "Finetune", examples: Examples) -> None:
    """Raise UserError if nearly every example has a class of its own, and nobody named the classes: they are ids."""
    is_named = bool(settings.label_names or (examples.encoder and examples.encoder.indexed_names))
    count = len(examples.classes)
    if settings.task == "classification" and not is_named and count > max(20, 0.9 * len(examples)):
        raise UserError(
            f"finetune.label_column: {settings.label_column!r} of {settings.path} has {count} different values in "
            f"{len(examples)} examples, so it holds ids or texts rather than classes; name another column (a "
            "regression needs finetune.task=regression)"
        )


def refuse_numbers(settings: "Finetune", examples: Examples) -> None:
    """Raise UserError if every text of many is a number: the column holds ids or measurements."""
    if len(examples) >= FEW and all(isinstance(text, str) and NUMBER.fullmatch(text) for text in examples.texts):
        raise UserError(
            f"finetune.text_column: every value of {settings.text_column!r} of {settings.path} is a number (the first: "
            f"{examples.texts[0]}), so it holds no texts; name another column"
        )
