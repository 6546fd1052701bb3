"""Where a classifier errs: the texts that it was surest of and wrong about."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bertpre.finetuning.examples import Examples

WORST, EXCERPT = 10, 400  # mistakes; characters of each text
Wrong = Iterator[tuple[float, dict[str, Any]]]  # for each text: how wrong the model was, 0 where right; and in what


def worst_mistakes(kind: str, test: Examples, labels: Any, outputs: Any) -> list[dict[str, Any]]:
    """The texts that the model was surest of and wrong about; of numbers, furthest from.

    Of several labels, and of words, each text counts with the one decision that was worst.
    """
    worst = {"regression": wrong_numbers, "multi_label": wrong_sets, "tokens": wrong_words}.get(kind, wrong_classes)
    found = list(worst(test, labels, outputs))
    wrong_by = np.array([by for by, _ in found])
    order = [index for index in np.argsort(-wrong_by, kind="stable")[:WORST] if wrong_by[index] > 0]
    return [{"id": test.ids[index], "text": excerpt(test, index)} | found[index][1] for index in order]


def excerpt(test: Examples, index: int) -> str:
    """The beginning of a text, or of both of a pair."""
    text = test.texts[index] if isinstance(test.texts[index], str) else " ".join(map(str, test.texts[index]))
    text = text if test.pairs is None else f"{text} | {test.pairs[index]}"
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]} ..."


def wrong_numbers(test: Examples, labels: np.ndarray, outputs: np.ndarray) -> Wrong:
    """By distance."""
    for label, output in zip(labels.tolist(), outputs.tolist(), strict=True):
        yield abs(label - output), {"label": label, "prediction": output}


def wrong_classes(test: Examples, labels: np.ndarray, outputs: np.ndarray) -> Wrong:
    """By the probability of the wrong class."""
    for label, chances in zip(labels, outputs, strict=True):
        yield wrong_choice(test.classes, label, chances)


def wrong_sets(test: Examples, labels: np.ndarray, outputs: np.ndarray) -> Wrong:
    """By the probability of the wrong answer to the question for one label."""
    for truth, chances in zip(labels, outputs, strict=True):
        place = int(np.abs(truth - chances).argmax())
        name, answers = test.classes[place], np.array([1 - chances[place], chances[place]])
        yield wrong_choice((f"not {name}", name), int(truth[place]), answers)


def wrong_words(test: Examples, labels: list[np.ndarray], outputs: list[np.ndarray]) -> Wrong:
    """By the probability of the wrong tag of one word."""
    for words, tags, rows in zip(test.texts, labels, outputs, strict=True):
        each = [wrong_choice(test.classes, tag, row) for tag, row in zip(tags, rows, strict=True)]
        place = int(np.argmax([by for by, _ in each])) if each else 0
        yield (each[place][0], each[place][1] | {"word": str(words[place])}) if each else (0.0, {})


def wrong_choice(classes: tuple[str, ...], label: int, chances: np.ndarray) -> tuple[float, dict[str, Any]]:
    """How sure the model was of a class that is not the label's, and the two by name."""
    chosen = int(chances.argmax())
    told = {"label": classes[label], "prediction": classes[chosen], "probability": float(chances[chosen])}
    return (float(chances[chosen]) if chosen != label else 0.0), told
