"""`bertpre predict`: what a run's classifier, or any other, says of texts."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import READERS, ending, open_table
from bertpre.errors import UserError
from bertpre.finetuning.encoding import encode_examples
from bertpre.finetuning.examples import Examples, text_in, words_in, words_of
from bertpre.finetuning.inference import infer
from bertpre.finetuning.loading import load
from bertpre.finetuning.task import Task
from bertpre.recipe import Finetune
from bertpre.runtime import choose_dtype, start_accelerator

if TYPE_CHECKING:
    pass

Text = str | tuple[str, str] | list[str]  # or the two texts of a pair, or words
AT_ONCE = 256  # texts


def predict(model: str, texts: list[str], file: str | None = None, as_json: bool = False) -> None:
    """Print label, probability and text of each text given, of each row of a table, or of each line of a text.

    `file` is read by its ending: CSV, TSV, JSON lines and Parquet have the text in the recipe's `text_column`; any
    other has one a line, as standard input has.

    `model` is a run directory, whose `finetuned` is taken with its recipe's way of cutting long texts, or the folder or
    Hub id of any text classifier. Of a run whose task has pairs a text is both, with a tab between them. Instead of
    label and probability a regression prints its number, several labels are joined by commas, and words are each
    followed by / and their tag.
    Raises UserError where there is no such model, or no text.
    """
    accelerator = start_accelerator()
    classifier, tokenizer, task, (settings, precision) = load(model)
    given: Iterator[Text] = iter(texts) if texts else read_texts(file, settings)
    first = next(given, None)
    if first is None:
        raise UserError("no text to predict: give texts as arguments, --file FILE, or lines on standard input")
    classifier.to(accelerator.device)
    dtype = choose_dtype(precision, accelerator.device)
    waiting = (text for part in ([first], given) for text in part)
    while part := list(islice(waiting, AT_ONCE)):
        examples = unlabelled(part, task, settings.text_pair_column is not None)
        encoded = encode_examples(tokenizer, examples, settings.max_length, settings.truncation)
        outputs = infer(classifier, task, encoded, tokenizer.pad_token_id, dtype, accelerator, 32)
        for text, output in zip(part, outputs, strict=True):
            said, told = answer(task, text, output), in_a_line(text)
            print(json.dumps({"text": told} | said, ensure_ascii=False) if as_json else line(told, said), flush=True)


def read_texts(file: str | None, settings: Finetune) -> Iterator[Text]:
    """The texts of a table's rows, of both columns where the task has pairs; or else lines."""
    if file is None or ending(Path(file)) not in READERS or ending(Path(file)) == ".txt":
        yield from read_lines(file)
        return
    named = [("text_column", settings.text_column), ("text_pair_column", settings.text_pair_column)]
    table, read = open_table(file, None, "train", "--file"), words_in if settings.task == "tokens" else text_in
    for row in table.rows([(key, name) for key, name in named if name is not None]):
        texts = tuple(read(value, f"--file {file}", key) for value, (key, _) in zip(row, named, strict=False))
        yield texts if len(texts) > 1 else texts[0]


def in_a_line(text: Text) -> str:
    """A text as it is printed, with a tab between the two of a pair."""
    parts = [text] if isinstance(text, str) else text
    return ("\t" if isinstance(text, tuple) else " ").join(re.sub(r"[\r\n]+", " ", part) for part in parts)


def read_lines(file: str | None) -> Iterator[str]:
    """The lines of a file, or of standard input, that hold text."""
    try:
        with nullcontext(sys.stdin) if file is None else Path(file).open(encoding="utf-8") as stream:
            yield from (line.rstrip("\n") for line in stream if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--file: {file} cannot be read as text: {error}") from None


def unlabelled(texts: list[Text], task: Task, has_pairs: bool) -> Examples:
    """Texts as examples whose labels mean nothing."""
    ids = list(map(str, range(len(texts))))
    if task.kind == "tokens":
        words = list(map(words_of, texts))
        return Examples(ids, words, None, [np.zeros(len(row), dtype=np.int64) for row in words], task.classes)
    labels, pairs = np.zeros(len(texts), dtype=np.int64), None
    if has_pairs:
        both = [tuple(text.split("\t", 1)) if isinstance(text, str) else text for text in texts]
        if missing := [text for text in both if len(text) < 2]:
            raise UserError(f"this classifier reads pairs: put a tab between the two texts of {missing[0][0]!r}")
        texts, pairs = (list(side) for side in zip(*both, strict=True))
        pairs = [clean_text(text) for text in pairs]
    return Examples(ids, [clean_text(text) for text in texts], pairs, labels, task.classes)


def answer(task: Task, text: Text, output: np.ndarray) -> dict[str, Any]:
    """What the model says of one text, by name."""
    if task.kind == "regression":
        return {"value": round(float(output), 6)}
    if task.kind == "tokens":  # a word beyond the longest length has no tag
        tags = [task.classes[row.argmax()] for row in output]
        words = words_of(text)
        return {"words": words, "tags": [*tags, *[None] * (len(words) - len(tags))]}
    named = {name: round(float(value), 6) for name, value in zip(task.classes, output, strict=True)}
    if task.kind == "multi_label":
        return {"labels": [name for name, value in named.items() if value > 0.5], "probabilities": named}
    return {
        "label": task.classes[output.argmax()],
        "probability": round(float(output.max()), 6),
        "probabilities": named,
    }


def line(text: str, said: dict[str, Any]) -> str:
    """An answer as a line for people."""
    if "tags" in said:
        return " ".join(f"{word}/{tag or '?'}" for word, tag in zip(said["words"], said["tags"], strict=True))
    if "labels" in said:
        return f"{','.join(said['labels']) or '-'}\t{text}"
    return f"{said['value']:.4f}\t{text}" if "value" in said else f"{said['label']}\t{said['probability']:.4f}\t{text}"
