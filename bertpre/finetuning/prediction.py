"""Texts from outside the labelled data, and what a classifier says of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bertpre.data.cleaning import clean_text
from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.rows import items_of
from bertpre.finetuning.task import Task

Text = str | tuple[str, ...] | list[str]  # a text, the two texts of a pair, or words


def is_pair(text: Text) -> bool:
    """Whether a text is given as a pair: as two texts, or with a tab."""
    return not isinstance(text, str) or "\t" in text


def content_of(task: Task) -> Callable[[Text], object]:
    """What tells whether a text holds anything for the task; words are read as they are, not cleaned."""
    return items_of if task.kind == "tokens" else has_text


def has_text(text: Text) -> bool:
    """Whether a text, or one of the two texts of a pair, is more than markup and white space."""
    return any(map(clean_text, [text] if isinstance(text, str) else text))


def as_examples(texts: list[Text], task: Task, has_pairs: bool) -> Examples:
    """Texts as examples, with placeholders as labels."""
    ids = list(map(str, range(len(texts))))
    if task.kind == "tokens":
        words = list(map(items_of, texts))
        return Examples(ids, words, None, [np.zeros(len(row), dtype=np.int64) for row in words], task.classes)
    parts = [(text.split("\t") if has_pairs else [text]) if isinstance(text, str) else text for text in texts]
    if has_pairs and (missing := [part for part in parts if len(part) < 2]):
        raise UserError(
            f"this classifier reads pairs; give the two texts of {missing[0][0]!r} as a tuple in a list, "
            "[(first, second)], in Python, with a tab between them in a shell, $'first text\\tsecond text'"
        )
    if has_pairs and (longer := [part for part in parts if len(part) > 2]):
        raise UserError(
            f"this classifier reads pairs, not {len(longer[0])} texts such as {longer[0]!r:.80}; the name of a table "
            "ends in .tsv or .csv"
        )
    if not has_pairs and (pairs := [part for part in parts if len(part) > 1]):
        raise UserError(f"this classifier reads single texts, not pairs such as {pairs[0]!r}")
    sides = [list(map(clean_text, side)) for side in zip(*parts, strict=True)]
    labels = np.zeros(len(texts), dtype=np.int64)
    return Examples(ids, sides[0], sides[1] if has_pairs else None, labels, task.classes)


def named_prediction(task: Task, text: Text, output: np.ndarray) -> dict[str, Any]:
    """The prediction for one text, with the names of the classes."""
    if task.kind == "regression":
        return {"value": float(f"{output:.7g}")}  # as many digits as fp32 has
    if task.kind == "tokens":  # a word beyond the maximum length has no tag
        words = items_of(text)
        unread = [None] * (len(words) - len(output))
        tags = [task.classes[row.argmax()] for row in output]
        probabilities = [round(float(row.max()), 6) for row in output]
        return {"words": words, "tags": tags + unread, "probabilities": probabilities + unread}
    named = {name: round(float(value), 6) for name, value in zip(task.classes, output, strict=True)}
    if task.kind == "multi_label":
        chosen = [name for name, value in zip(task.classes, output, strict=True) if value > 0.5]
        return {"labels": chosen, "probabilities": named}
    return {
        "label": task.classes[output.argmax()],
        "probability": round(float(output.max()), 6),
        "probabilities": named,
    }
