"""What a user should know about the labels of some examples: how many of each, and what is odd about them."""

from collections import Counter
from typing import Any

import numpy as np

from bertpre.finetuning.examples import Examples, whole_texts
from bertpre.finetuning.splits import label_counts

MOST_SHOWN = 10  # classes in a line of the log
SHIFT, SHIFT_TEXTS = 0.2, 50  # a difference of shares that chance hardly makes in that many texts


def balance(task: str, examples: Examples) -> str:
    """The number of examples, and of the labels of each class, or the mean label: "1,250 (no: 625, yes: 625)"."""
    if task == "regression":
        return f"{len(examples):,} (mean {np.mean(examples.labels):.3g})"
    numbers = np.bincount(label_counts(task, examples)[1], minlength=len(examples.classes))
    counts = Counter(dict(zip(examples.classes, numbers.tolist(), strict=True)))
    shown = [f"{name}: {count:,}" for name, count in counts.most_common(MOST_SHOWN)]
    further = [f"{count:,} more classes"] if (count := len(+counts) - MOST_SHOWN) > 0 else []
    return f"{len(examples):,} ({', '.join(shown + further)})"


def lone_labels(task: str, examples: Examples) -> str | None:
    """A warning that names classes with one example: often a misspelt label, which nothing else would show."""
    if task not in ("classification", "multi_label"):
        return None
    counts = np.bincount(label_counts(task, examples)[1], minlength=len(examples.classes))
    alone = [name for name, count in zip(examples.classes, counts, strict=True) if count == 1]
    if not alone:
        return None
    shown = ", ".join(map(repr, alone[:5])) + (", ..." if len(alone) > 5 else "")
    return f"labels with one training example: {shown}; misspelt? A class with so few is hardly learned, and not tested"


def contradictions(task: str, examples: Examples) -> str | None:
    """A warning that counts the texts that occur with different labels; a network learns only one of them."""
    if task not in ("classification", "multi_label"):
        return None
    first: dict[Any, Any] = {}
    texts, labels = whole_texts(examples), [np.asarray(label).tolist() for label in examples.labels]
    differ = {text for text, label in zip(texts, labels, strict=True) if first.setdefault(text, label) != label}
    if not differ:
        return None
    example = next(text for text in texts if text in differ)
    return f"texts that occur with different labels in the training split: {len(differ):,}, e.g. {example!r:.80}"


def shifted_class(task: str, training: Examples, test: Examples) -> str | None:
    """A warning that names the class whose share differs most, where training and test texts differ much in it."""
    if task != "classification" or len(test) < SHIFT_TEXTS:
        return None
    counts = [np.bincount(part.labels, minlength=len(part.classes)) for part in (training, test)]
    learned, tested = (each / each.sum() for each in counts)
    most = int(np.abs(learned - tested).argmax())
    if abs(learned[most] - tested[most]) < SHIFT:
        return None
    return (
        f"{test.classes[most]!r} is the label of {learned[most]:.0%} of the training texts and of {tested[most]:.0%} "
        "of the test texts; a classifier expects the shares that it was trained on"
    )
