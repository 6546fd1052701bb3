"""From labels as they are written to numbers; the training split decides what they mean."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bertpre.errors import UserError
from bertpre.finetuning.rows import NUMBER, Rows, is_written_exactly, items_of

if TYPE_CHECKING:
    from bertpre.recipe import Finetune

NO_VALUE = {"na", "n/a", "#n/a", "<na>", "null", "none"}  # what files write, in any case, where a number is missing
HIDDEN_REMEDY = (
    "-1 marks a hidden label on the Hub: leave such examples out, or test on others, which evaluate.split or "
    "evaluate.path names or finetune.test_fraction sets aside"
)
BITS = {  # True and 1.0 are equal to 1; spreadsheets write TRUE
    0: 0.0, "False": 0.0, "false": 0.0, "FALSE": 0.0, 1: 1.0, "True": 1.0, "true": 1.0, "TRUE": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class LabelEncoder:
    """Turns written labels into numbers; fitted on the training split and applied to every split.

    `classes` are the class names in order, or the label column for a regression. A whole number is an index into
    `indexed_names`, if there are any; otherwise it is a name like every other value, so 0 is not one of the classes 1
    and 2. `label_names` are the recipe's, `own_names` the training split's. With `is_binary` a label is a list of 0 and
    1, one for each class.
    """

    task: str
    classes: tuple[str, ...]
    label_names: list[str] | None = None
    indexed_names: list[str] | None = None
    own_names: list[str] | None = None
    is_binary: bool = False

    @classmethod
    def fit(cls, settings: "Finetune", rows: Rows) -> "LabelEncoder":
        """Decide what the labels of the training split mean.

        Raises UserError if a label is missing or of another task's kind, if the recipe's class names do not fit the
        dataset's, or, where nobody names the classes, for labels that can hardly be classes.
        """
        refuse_unusable(settings.task, rows)
        if settings.task == "regression":
            return cls(settings.task, tuple(settings.label_columns))
        refuse_mixed_names(settings.label_names, rows)
        names = settings.label_names or rows.class_names
        if isinstance(settings.label_column, list):
            return cls(settings.task, tuple(settings.label_columns), is_binary=True)
        if settings.task == "multi_label" and are_binary(rows, names):
            return cls(settings.task, tuple(names or map(str, range(len(rows.labels[0])))), is_binary=True)
        if not names:
            return cls(settings.task, find_classes(settings.task, rows))
        if not settings.label_names:  # a number may be an index in a split that names no classes, unless it is a name
            return cls(settings.task, tuple(names), indexed_names=None if any(map(NUMBER.fullmatch, names)) else names)
        single = [each for label in rows.labels for each in each_of(settings.task, label)]
        are_names = any(set(map(str, form)) <= set(names) for form in (single, map(as_written, single)))
        encoder = cls(settings.task, tuple(names), names, None if are_names else names, rows.class_names)
        return replace(encoder, indexed_names=encoder.names_by_index(rows))

    @property
    def has_names_as_text(self) -> bool:
        """Whether the classes are names that no numbers stand for: 250.00 and 250.0 beside V58 are three names.

        Then another split's labels are names too, although all that occur in it may look like numbers.
        """
        is_by_name = self.task != "regression" and not self.is_binary and self.indexed_names is None
        return is_by_name and not all(map(is_written_exactly, self.classes))

    def names_by_index(self, rows: Rows) -> list[str] | None:
        """The classes that whole numbers are indices into: the dataset's own, in its order, which splits may differ in.

        A split whose dataset names no classes follows the training split. Raises UserError where the recipe names the
        classes, and the dataset has others.
        """
        if not rows.class_names or set(self.label_names or ()) <= set(rows.class_names):
            return rows.class_names or self.indexed_names
        own, new = self.own_names or [], self.label_names or []
        renamed = {} if set(new) <= set(own) else dict(zip(own, new, strict=bool(own)))
        if not set(rows.class_names) <= renamed.keys():
            found, known = (", ".join(names[:20]) for names in (rows.class_names, own or new))
            raise UserError(f"{rows.place}: its classes are named {found}, but those of the training split {known}")
        return [renamed[name] for name in rows.class_names]

    def encode(self, rows: Rows) -> Any:
        """The labels as numbers, as `Examples.labels` describes them.

        Raises UserError, which names the first example, if a label is missing, not a finite number or outside the
        classes, or if there are not as many tags as words.
        """
        refuse_unusable(self.task, rows)
        if self.task == "regression":
            values = [to_number(label) for label in rows.labels]
            is_bad = [value is None for value in values]
            if any(is_bad):
                bad = rows.labels[is_bad.index(True)]
                remedy = "; write a point, not a comma" if "," in str(bad) else ""
                rows.refuse(is_bad, f"a label that is not a finite number ({bad!r}){remedy}")
            return np.array(values, dtype=np.float64)
        if self.is_binary:
            bits = [[BITS.get(each) for each in items_of(label)] for label in rows.labels]
            is_bad = [None in row or len(row) != len(self.classes) for row in bits]
            if any(is_bad):
                label, names = rows.labels[is_bad.index(True)], ", ".join(self.classes[:20])
                rows.refuse(is_bad, f"the label {label!r}, not a 0 or 1 for each class ({names})")
            return np.array(bits, dtype=np.float32)
        numbers = self.class_numbers(rows)
        if self.task == "classification":
            return np.array(numbers, dtype=np.int64)[:, 0]
        if self.task == "multi_label":
            return multi_hot(numbers, len(self.classes))
        return [np.array(row, dtype=np.int64) for row in numbers]

    def class_numbers(self, rows: Rows) -> list[list[int]]:
        """The class number of each label of each row."""
        labels = [each_of(self.task, label) for label in rows.labels]
        if self.task == "tokens":
            uneven = [len(tags) != len(words) for tags, words in zip(labels, rows.texts, strict=True)]
            rows.refuse(uneven, "not as many labels as words")
        number_of = self.numbering(self.names_by_index(rows))
        numbers = [[number_of(label) for label in row] for row in labels]
        is_bad = [-1 in row for row in numbers]
        if any(is_bad):
            first = is_bad.index(True)
            label = labels[first][numbers[first].index(-1)]
            rows.refuse(is_bad, f"{self.outside}: {label!r}; {self.remedy(label, rows)}")
        return numbers

    def numbering(self, indexed_names: list[str] | None) -> Callable[[Any], int]:
        """A function that gives a label's class number, or -1 if it is outside the classes."""
        numbers = {name: number for number, name in enumerate(self.classes)}

        def number_of(label: Any) -> int:
            if indexed_names is None and str(label) in numbers:
                return numbers[str(label)]
            label = as_written(label)
            if indexed_names is None or not isinstance(label, int) or isinstance(label, bool):
                return numbers.get(str(label), -1)
            return numbers.get(indexed_names[label], -1) if 0 <= label < len(indexed_names) else -1

        return number_of

    def remedy(self, label: Any, rows: Rows) -> str:
        """What to do about a label that is none of the classes."""
        if as_written(label) == -1:
            return HIDDEN_REMEDY
        if rows.class_names and not set(rows.class_names) & set(self.classes):
            names = ", ".join(rows.class_names[:20])
            return f"these rows' classes have names ({names}): give them as finetune.label_names in training"
        if self.label_names is not None and isinstance(as_written(label), int):
            return "whole numbers are places in finetune.label_names, counted from 0"
        return "to train with it as a class, name all classes in finetune.label_names"

    @property
    def outside(self) -> str:
        """What is wrong with a label that is none of the classes."""
        return f"a label outside the classes ({', '.join(self.classes[:20])})"


def each_of(task: str, label: Any) -> list[Any]:
    """The single labels of a row: one in a classification or regression, else those of its list."""
    return [label] if task in ("classification", "regression") else items_of(label)


def listed(label: Any) -> list[Any]:
    """A list as it is, anything else as the only entry of one."""
    return label if isinstance(label, list) else [label]


def as_written(label: Any) -> Any:
    """A label, whole numbers without a decimal point."""
    return int(label) if isinstance(label, float) and label.is_integer() else label


def to_number(value: Any) -> float | None:
    """A number that fp32 can hold, given as one or as text; None for anything else."""
    try:
        number = float(value)
        if isinstance(value, str) and "_" in value:  # Python's own way to group digits: 1_0 is 10
            return None
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= float(np.finfo(np.float32).max) else None


def is_missing(label: Any) -> bool:
    """Whether a label is None, empty text or NaN."""
    return label is None or label == "" or (isinstance(label, float) and math.isnan(label))


def multi_hot(numbers: list[list[int]], count: int) -> np.ndarray:
    """Lists of class numbers as 0 and 1 for each of `count` classes, (N, C)."""
    array = np.zeros((len(numbers), count), dtype=np.float32)
    for row, chosen in zip(array, numbers, strict=True):
        row[chosen] = 1
    return array


def find_classes(task: str, rows: Rows) -> tuple[str, ...]:
    """The values found, sorted: numbers first.

    Raises UserError for no label at all, for fractions, for a negative number, which marks a hidden label on the Hub,
    and for truth values or words such as NA beside numbers.
    """
    written = [as_written(each) for label in rows.labels for each in each_of(task, label)]
    found, kinds = set(written), set(map(type, written))
    if not found:
        raise UserError(f"{rows.place}: no example has a label; there is nothing to learn")
    if bool in kinds and kinds & {int, float}:  # Python takes true and 1 for the same
        raise UserError(f"{rows.place}: some labels are true or false, and others numbers; write all in one form")
    named = json.dumps([str(value) for value in sorted(found, key=lambda value: (isinstance(value, str), value))][:20])
    advice = f"leave such examples out, or, if it is a class, name all classes: 'finetune.label_names={named}'"
    if any(isinstance(value, int) and value < 0 for value in found):
        raise UserError(
            f"{rows.place}: there is a label {min(found, key=repr)}, which marks a hidden label on the Hub; {advice}"
        )
    if fractions := [value for value in found if isinstance(value, float)]:
        raise UserError(
            f"{rows.place}: there is a label {fractions[0]}; numbers with fractions are for finetune.task=regression; "
            "if they are classes, name all as they are written: finetune.label_names=[...]"
        )
    numbers = list(map(str, sorted(value for value in found if isinstance(value, int))))
    others = sorted({str(value) for value in found} - set(numbers))
    words = [each for each in others if to_number(each) is None]
    if words and len(words) < len(numbers + others) and all(word.lower() in NO_VALUE for word in words):
        raise UserError(
            f"{rows.place}: beside numbers there is the label {words[0]!r}, which usually marks a missing value; "
            f"{advice}"
        )
    return (*numbers, *others)


def are_binary(rows: Rows, names: list[str] | None) -> bool:
    """Whether labels are lists of 0 and 1, one number for each class, and not lists of classes.

    Raises UserError if they cannot be lists of classes, as a list repeats a number, but `names` are not as many.
    """
    if not all(isinstance(label, list) and set(label) <= BITS.keys() for label in rows.labels):
        return False
    length, *other_lengths = {len(label) for label in rows.labels}
    if other_lengths or length < 2:
        return False
    if names is None or len(names) == length:
        return True
    if any(len(set(label)) < length for label in rows.labels):
        raise UserError(
            f"{rows.place}: labels are lists of {length} zeros and ones, but there are {len(names)} classes"
        )
    return False


def refuse_unusable(task: str, rows: Rows) -> None:
    """Raise UserError if a label is missing, or is a list in a task with one label for each text, or vice versa."""
    for label in rows.labels:
        if nested := [each for each in listed(label) if isinstance(each, list | dict)]:
            raise UserError(
                f"{rows.place}: label_column holds {str(nested[0])[:60]}, but a label is a text, a number or a list "
                "of these"
            )
        if any(isinstance(each, bytes) for each in listed(label)):
            raise UserError(f"{rows.place}: label_column holds bytes, not text or numbers; decode them first")
        if task == "tokens" and not isinstance(label, list | str) and not is_missing(label):
            raise UserError(f"{rows.place}: label_column holds {type(label).__name__}, not a tag for each word")
        if task == "multi_label" and isinstance(label, str) and label:
            raise UserError(
                f"{rows.place}: label_column holds text ({label[:60]!r}); a text's labels are a list, as in JSON lines "
                "or Parquet, or several columns of 0 and 1: finetune.label_column=[A, B]"
            )
        if task in ("classification", "regression") and isinstance(label, list):
            raise UserError(
                f"{rows.place}: label_column holds lists; set finetune.task to multi_label, or to tokens if they are "
                "the tags of words"
            )
    missing = [is_missing(label) or any(map(is_missing, each_of(task, label))) for label in rows.labels]
    rows.refuse(missing, "no label; leave such examples out")


def refuse_mixed_names(label_names: list[str] | None, rows: Rows) -> None:
    """Raise UserError if the recipe's class names are partly the dataset's own and partly new ones.

    The dataset's own may be given in another order. New ones, in the dataset's order, rename its classes.
    """
    own = rows.class_names
    if not own or not label_names or not set(label_names) - set(own):
        return
    renames = len(label_names) == len(own) and all(
        new == old or new not in own for new, old in zip(label_names, own, strict=True)
    )
    if not renames:
        raise UserError(
            f"{rows.place}: finetune.label_names ({', '.join(label_names[:20])}) does not match the dataset's names "
            f"({', '.join(own[:20])}): give some of these, in any order, or one new name for each, in this order"
        )
