"""The worst mistakes: texts on which the model was confident and wrong."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bertpre.finetuning.examples import Examples

WORST, EXCERPT = 10, 400  # mistakes; characters of each text
Mistakes = Iterator[tuple[float, dict[str, Any]]]  # for each text: the size of the mistake, 0 if right; its description
Finder = Callable[[Examples, Any, Any], Mistakes]


def worst_mistakes(kind: str, test: Examples, labels: Any, outputs: Any) -> list[dict[str, Any]]:
    """The texts with the most confident wrong predictions, or in a regression the largest errors, worst first.

    In the tasks `multi_label` and `tokens` a text is ranked by its worst decision.
    """
    finders: dict[str, Finder] = {"regression": of_numbers, "multi_label": of_label_sets, "tokens": of_words}
    found = list(finders.get(kind, of_classes)(test, labels, outputs))
    sizes = np.array([size for size, _ in found])
    order = [index for index in np.argsort(-sizes, kind="stable")[:WORST] if sizes[index] > 0]
    return [{"id": test.ids[index], "text": excerpt(test, index)} | found[index][1] for index in order]


def excerpt(test: Examples, index: int) -> str:
    """The beginning of a text, or of the two texts of a pair."""
    text = test.texts[index] if isinstance(test.texts[index], str) else " ".join(map(str, test.texts[index]))
    text = text if test.pairs is None else f"{text} | {test.pairs[index]}"
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]} ..."


def of_numbers(test: Examples, labels: np.ndarray, outputs: np.ndarray) -> Mistakes:
    """Ranked by the distance from the label."""
    for label, output in zip(labels.tolist(), outputs.tolist(), strict=True):
        yield abs(label - output), {"label": label, "prediction": output}


def of_classes(test: Examples, labels: np.ndarray, outputs: np.ndarray) -> Mistakes:
    """Ranked by the probability of the wrong class."""
    for label, probabilities in zip(labels, outputs, strict=True):
        yield decision(test.classes, label, probabilities)


def of_label_sets(test: Examples, labels: np.ndarray, outputs: np.ndarray) -> Mistakes:
    """Ranked by the probability of the wrong decision on one label."""
    for truth, probabilities in zip(labels, outputs, strict=True):
        worst = int(np.abs(truth - probabilities).argmax())
        name, probability = test.classes[worst], probabilities[worst]
        yield decision((f"not {name}", name), int(truth[worst]), np.array([1 - probability, probability]))


def of_words(test: Examples, labels: list[np.ndarray], outputs: list[np.ndarray]) -> Mistakes:
    """Ranked by the probability of the wrong tag of one word."""
    for words, tags, rows in zip(test.texts, labels, outputs, strict=True):
        each = [decision(test.classes, tag, row) for tag, row in zip(tags, rows, strict=True)]
        worst = int(np.argmax([size for size, _ in each])) if each else 0
        yield (each[worst][0], each[worst][1] | {"word": str(words[worst])}) if each else (0.0, {})


def decision(classes: tuple[str, ...], label: int, probabilities: np.ndarray) -> tuple[float, dict[str, Any]]:
    """The probability of the predicted class if it is wrong, else 0; and label and prediction by name."""
    chosen = int(probabilities.argmax())
    probability = float(probabilities[chosen])
    named = {"label": classes[label], "prediction": classes[chosen], "probability": probability}
    return (probability if chosen != label else 0.0), named
