"""`bertpre predict`: label texts with a run's classifier, or any other."""

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertpre.console import figure_text
from bertpre.data.compressed import DAMAGED, open_file
from bertpre.data.corpus import open_table
from bertpre.data.failures import failures_explained
from bertpre.data.formats import advised_unit, are_words, is_utf16, read_head
from bertpre.data.local_files import is_table
from bertpre.data.tables import read_tagged
from bertpre.errors import UserError, unreadable
from bertpre.finetuning.inference import Classifier
from bertpre.finetuning.loading import load_any_classifier
from bertpre.finetuning.prediction import Text, as_examples, content_of, is_pair, named_prediction
from bertpre.finetuning.rows import text_in, words_in
from bertpre.recipe import Finetune
from bertpre.runtime import own_device, start_accelerator

SLICE = 256  # texts of a file that are read before the first is printed


def predict(
    model: str,
    texts: list[str],
    file: str | None = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    as_json: bool = False,
) -> None:
    """Print label, probability and text for each of `texts`, or else for each row or line of `file` or standard input.

    CSV, TSV, JSON lines and Parquet files have the text in `text_column`, and the second text of a pair in
    `text_pair_column`, by default the recipe's; for the task `tokens` a CoNLL file has a word a line; any other file
    has one text a line, like standard input.

    `model` is a run directory, whose recipe decides how long texts are cut, or the folder or Hub id of any text
    classifier. Separate the texts of a pair by a tab. A model from elsewhere does not say whether it reads pairs: it
    does if the first text has a tab, or the file a column `text_pair` or the one that is named. A regression prints
    the number instead of label and probability; several labels are joined by commas; words are followed by / and their
    tag, or a question mark beyond the longest text that the model reads. Rows without text are left out; they and the
    texts that are cut are counted in warnings; `as_json` gives each row's number. Raises UserError if
    there is no such model, or no text.
    """
    given_columns = {"text_column": text_column, "text_pair_column": text_pair_column}
    columns = {key: name for key, name in given_columns.items() if name}
    refuse_arguments(texts, file, columns)
    is_typed = not texts and file is None and sys.stdin is not None and sys.stdin.isatty()
    if is_typed:
        print("Type a text and press Enter; Ctrl-D ends.", file=sys.stderr)
    start_accelerator()  # the process's settings for torch; hides the libraries' progress bars too
    classifier, settings = load_any_classifier(model)
    if text_pair_column and settings.text_pair_column is None and classifier.knows_pairs:
        raise UserError("--text-pair-column: this classifier reads single texts; leave it out")
    settings = settings.model_copy(update=columns)
    classifier.model.to(own_device())
    classifier = classifier.with_working_model()
    task = classifier.task
    empty_rows: list[int] = []
    is_full = content_of(task)
    if empty := [text for text in texts or () if not is_full(text)]:
        raise UserError(f"TEXT {empty[0]!r} has no text in it")
    tags = task.classes if task.kind == "tokens" else ()
    rows = texts or read_texts(file, settings, classifier.knows_pairs, tags)
    given = without_empty(rows, empty_rows, is_full)
    first = next(given, None)
    if first is None:
        if file is not None:
            raise UserError(f"--file: {file} holds no text")
        raise UserError("no text to predict: give texts as arguments, --file FILE, or lines on standard input")
    has_pairs = settings.text_pair_column is not None or (not classifier.knows_pairs and is_pair(first[1]))
    print_predictions(classifier, chain([first], given), has_pairs, as_json, 1 if is_typed else SLICE)
    if empty_rows:
        mention_empty(empty_rows, file)


def print_predictions(
    classifier: Classifier, texts: Iterator[tuple[int, Text]], has_pairs: bool, as_json: bool, at_once: int
) -> None:
    """Print a line for each numbered text, `at_once` of them after each other; warns of those that are cut."""
    task, num_read, num_cut = classifier.task, 0, 0
    while part := list(islice(texts, at_once)):
        encoded = classifier.encode(as_examples([text for _, text in part], task, has_pairs))
        num_read, num_cut = num_read + len(part), num_cut + encoded.num_cut
        for (number, text), output in zip(part, classifier.outputs(encoded), strict=True):
            prediction = named_prediction(task, text, output)
            row = {"row": number, "text": in_one_line(text)} | prediction
            line = json.dumps(row, ensure_ascii=False) if as_json else as_line(in_one_line(text, "\t"), prediction)
            print(line, flush=True)
    if num_cut:
        truncation = "head" if task.kind == "tokens" else classifier.truncation  # as many words as fit
        read = f"{classifier.max_length} tokens of each (truncation: {truncation})"
        print(f"warning: {num_cut:,} of {num_read:,} texts are longer; the classifier reads {read}", file=sys.stderr)


def refuse_arguments(texts: list[str], file: str | None, columns: dict[str, str]) -> None:
    """Raise UserError for texts and a file together, for columns without a table, and for a file given as a text."""
    if texts and file is not None:
        raise UserError(f"--file {file}: give texts as arguments or a file, not both")
    if columns and (file is None or not is_table(file)):
        option = "--" + next(iter(columns)).replace("_", "-")
        raise UserError(f"{option}: give it with --file FILE, where FILE is CSV, TSV, JSON lines or Parquet")
    if files := [text for text in texts or () if os.path.isfile(text)]:
        raise UserError(f"TEXT {files[0]!r} is a file; give its texts with --file {shlex.quote(files[0])}")


def mention_empty(rows: list[int], file: str | None) -> None:
    """Warn of rows without text, by their numbers from 1."""
    place, what = ("standard input", "line") if file is None else (f"--file {file}", "row")
    print(
        f"warning: {place}: {what}s without text were left out: {len(rows)} (the first is {what} {rows[0]})",
        file=sys.stderr,
    )


def without_empty(
    texts: Iterable[Text], empty_rows: list[int], is_full: Callable[[Text], object]
) -> Iterator[tuple[int, Text]]:
    """The texts that are not empty, with their numbers from 1; those of the others are added to `empty_rows`."""
    for number, text in enumerate(texts, start=1):
        if is_full(text):
            yield number, text
        else:
            empty_rows.append(number)


def read_texts(
    file: str | None,
    settings: Finetune,
    knows_pairs: bool = True,
    tags: Collection[str] = (),
) -> Iterator[Text]:
    """The texts in the rows of a table, or in lines; a column `text_pair` too where the model may read pairs.

    For the task `tokens`, whose `tags` are given, a file with a word a line is read as CoNLL's, with any last column.
    """
    if tags and file is not None and not is_table(file) and Path(file).is_file() and are_words(file, tags):
        print(f"--file {file}: each line is read as a word, as in CoNLL files", file=sys.stderr)
        with failures_explained(file, None, "train", "--file"):
            yield from (words for words, _ in read_tagged(file, needs_tags=False))
        return
    if file is None or not is_table(file):
        yield from read_lines(file)
        return
    if not Path(file).exists():
        raise UserError(f"--file: there is no file {file!r}")
    table = open_table(file, None, "train", "--file")
    pair_column = settings.text_pair_column
    if not knows_pairs and pair_column is None and "text_pair" in table.column_names():
        pair_column = "text_pair"
    named = [("text_column", settings.text_column), ("text_pair_column", pair_column)]
    columns = [(key, name) for key, name in named if name is not None]
    place, keys = f"--file {file}", [key for key, _ in columns]
    for number, row in enumerate(table.rows(columns), start=1):
        if settings.task == "tokens":
            yield words_in(row[0], place, "text_column", f"row {number}")
            continue
        texts = tuple(text_in(value, place, key, f"row {number}") for value, key in zip(row, keys, strict=True))
        yield texts if len(texts) > 1 else texts[0]


def in_one_line(text: Text, also: str = "") -> str:
    """A text as it is printed, without line breaks and what is `also` left out; a tab separates the texts of a pair."""
    parts = [text] if isinstance(text, str) else text
    return ("\t" if isinstance(text, tuple) else " ").join(re.sub(rf"[\r\n{also}]+", " ", part) for part in parts)


def read_lines(file: str | None) -> Iterator[str]:
    """The lines of a file, or of standard input."""
    place = "standard input" if file is None else f"--file: {file}"
    try:
        if file is not None and Path(file).is_file():
            if read_head(file).startswith(b"PK\x03\x04"):  # one .zip is read as what is in it
                raise UserError(f"{place} is an archive or an Excel file; save it as CSV or text")
            if is_utf16(file):
                raise UserError(f"{place} is in UTF-16 or UTF-32; save it as UTF-8")
            if advice := advised_unit([file]):
                remedy = "give one text a line, or a CSV or JSON file"
                print(f"{place}: each line is read as a text, but {advice[1]}; {remedy}", file=sys.stderr)
        if file is None and isinstance(sys.stdin, io.TextIOWrapper):
            # Text that a program writes is UTF-8 whatever the locale; in C.UTF-8 Python lets other bytes pass.
            sys.stdin.reconfigure(encoding=None if sys.stdin.isatty() else "utf-8", errors="strict")
        with nullcontext(sys.stdin or ()) if file is None else open_file(file, "rt", encoding="utf-8-sig") as stream:
            yield from (line.removeprefix("\ufeff").rstrip("\n") for line in stream)
    except (OSError, ValueError, *DAMAGED) as error:
        reason = unreadable(error).removeprefix(f"{file}: ")
        raise UserError(f"{place} cannot be read as text: {reason}") from None


def as_line(text: str, prediction: dict[str, Any]) -> str:
    """A prediction as a line of plain text."""
    if "tags" in prediction:
        tagged = zip(prediction["words"], prediction["tags"], strict=True)
        return " ".join(f"{word}/{tag or '?'}" for word, tag in tagged)
    if "labels" in prediction:
        return f"{','.join(prediction['labels']) or '-'}\t{text}"
    if "value" in prediction:
        return f"{figure_text(prediction['value'])}\t{text}"
    return f"{prediction['label']}\t{prediction['probability']:.4f}\t{text}"
