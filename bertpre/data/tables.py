"""Local files as tables whose rows stream: Parquet, CSV and TSV, JSON, paragraphs of text."""

import csv
import json
import re
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any, Protocol

from bertpre.console import log_once
from bertpre.data.compressed import file_named, open_file
from bertpre.errors import first_line

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from datasets import Features

READ_BYTES = 1 << 20
DELIMITERS = (",", ";", "\t", "|")
SAMPLED_LINES = 200  # in which another delimiter is looked for
# A comment before a sentence, as in CoNLL-U and MultiCoNER; # alone and #id may be words.
COMMENT = re.compile(r"#[ \t]+(?:[\w.]+[ \t]*=|(?:id|newdoc|newpar)\b)|#[\w.]+[ \t]+=[ \t]")
TOKEN_NUMBER = re.compile(r"\d+([-.]\d+)?")  # 7-8 is of two words written as one
LEAST_NUMBERED = 3  # sentences
MISSING = ["", "nan", "NaN"]  # not "None", "null" or "NA", which may be texts or classes


class Columns(Protocol):
    """The part of a dataset's interface (of the library `datasets`) that a table reads from."""

    @property
    def column_names(self) -> Sequence[str]: ...

    @property
    def features(self) -> Mapping[str, Any] | None: ...

    def select_columns(self, columns: list[str]) -> "Columns": ...

    def iter(self, batch_size: int) -> Iterator[dict[str, list[Any]]]: ...


@dataclass(frozen=True)
class ParquetFiles:
    """Some columns of local Parquet files, read one row group at a time.

    `datasets` keeps everything it has read of a file until its end, and so does pyarrow over several row groups.
    """

    files: list[str]
    columns: list[str] | None = None

    @property
    def column_names(self) -> list[str]:
        """The columns of the first file."""
        return read_schema(self.files[0]).names

    @property
    def features(self) -> "Features | None":
        """The columns' types, where `datasets` wrote the first file."""
        from datasets import Features

        schema = read_schema(self.files[0])
        return Features.from_arrow_schema(schema) if b"huggingface" in (schema.metadata or {}) else None

    def select_columns(self, columns: list[str]) -> "ParquetFiles":
        """The same files with only these columns."""
        return ParquetFiles(self.files, columns)

    def iter(self, batch_size: int) -> Iterator[dict[str, list[Any]]]:
        """Batches of rows, column by column. Raises ValueError, which names the file, where one is damaged."""
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile

        for name in self.files:
            with file_named(name, ArrowInvalid), ParquetFile(name, buffer_size=READ_BYTES) as file:
                if missing := set(self.columns or ()).difference(file.schema_arrow.names):
                    raise ValueError(f"{name} has no column {', '.join(sorted(missing))}")
                for group in range(file.num_row_groups):
                    for batch in file.iter_batches(batch_size, row_groups=[group], columns=self.columns):
                        yield batch.to_pydict()


def read_schema(name: str) -> "pa.Schema":
    """The schema of a Parquet file; raises ValueError, which names it, where it is damaged."""
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import read_schema as read

    with file_named(name, ArrowInvalid):
        return read(name)


@dataclass(frozen=True)
class CsvFiles:
    """Some columns of local CSV or TSV files, every value as the text that it is; nan and NaN are missing values.

    Guessing types, row by row or file by file, would make two classes of "01" and 1, and a number of a text like 2020.
    """

    files: list[str]
    delimiter: str = ","
    columns: list[str] | None = None
    features: None = None

    @property
    def column_names(self) -> list[str]:
        """The columns of the first row; none if there is no row."""
        return list(next(self.iter(batch_size=1), ()))

    def select_columns(self, columns: list[str]) -> "CsvFiles":
        """The same files with only these columns."""
        return CsvFiles(self.files, self.delimiter, columns)

    def iter(self, batch_size: int) -> Iterator[dict[str, list[str | None]]]:
        """Batches of rows, column by column.

        Raises ValueError, which names the file, where a column is missing or a row has more fields than the header.
        """
        for name in self.files:
            with file_named(name):
                delimiter = delimiter_in(name, self.delimiter)
                for frame in read_csv(name, delimiter, batch_size):
                    if missing := set(self.columns or ()).difference(frame.columns):
                        raise ValueError(f"{name} has no column {', '.join(sorted(missing))}")
                    refuse_twice(self.columns or [], frame, name, delimiter)
                    chosen = frame[self.columns or list(frame.columns)].astype(object)
                    if len(chosen):
                        yield chosen.where(chosen.notna(), None).to_dict("list")


def delimiter_in(name: str, usual: str) -> str:
    """What separates a file's columns: another delimiter, where the usual one gives one column and that one several.

    All of the first rows must have as many values as the header, so that a text with a semicolon is not cut.
    """
    if widths_by(usual, name)[:1] != [1]:
        return usual
    for other in DELIMITERS:
        widths = widths_by(other, name)
        if widths and widths[0] > 1 and len(set(widths)) == 1:
            log_once(f"{name}: its columns are separated by {other!r}, as its first rows show")
            return other
    return usual


def widths_by(delimiter: str, name: str) -> list[int]:
    """How many values each of a file's first rows has where this separates them; none for a damaged file."""
    with open_file(name, "rt", encoding="utf-8-sig", errors="replace", newline="") as stream, suppress(csv.Error):
        lines = list(islice(stream, SAMPLED_LINES))
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
        return widths[:-1] if len(lines) == SAMPLED_LINES else widths  # the last row may go on
    return []


def read_csv(name: str, delimiter: str, rows: int) -> "Iterator[pd.DataFrame]":
    """A file's rows, some at a time; raises ValueError where one has more fields than the header or swallows others."""
    import pandas as pd

    is_plain = delimiter == "\t" and has_whole_lines(name)
    options: dict[str, Any] = {
        "dtype": str,
        "keep_default_na": False,
        "na_values": MISSING,
        "index_col": False,
        "skipinitialspace": delimiter != "\t",
        "quoting": csv.QUOTE_NONE if is_plain else csv.QUOTE_MINIMAL,
    }
    with (
        open_file(name, "rb") as stream,
        open_file(name, "rt", encoding="utf-8-sig", newline="") as lines,
        pd.read_csv(stream, sep=delimiter, chunksize=rows, **options) as frames,
    ):
        checked = iter([]) if is_plain else whole_rows(lines, name, delimiter)
        unread: list[int] = []  # the rows with values in columns without a name; the first column may number the rows
        while True:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # fields beyond the header's would be dropped
                try:
                    frame = next(frames, None)
                except pd.errors.ParserError as error:
                    raise ValueError(f"{first_line(error)}{odd_line(name, delimiter)}") from None
                except pd.errors.ParserWarning:
                    raise ValueError(
                        f"{name} has rows with more fields than its header: put texts that contain {delimiter!r} in "
                        f"quotes, and name every column{other_delimiter(name, delimiter)}"
                    ) from None
            deque(islice(checked, None if frame is None else len(frame)), maxlen=0)
            if frame is None:
                mention_unread(name, unread, delimiter)
                return
            nameless = [column for column in frame.columns[1:] if column.startswith("Unnamed: ")]
            unread += frame.index[frame[nameless].notna().any(axis=1)].tolist()
            yield frame.rename(columns=unquoted).map(unquoted, na_action="ignore") if is_plain else frame


def refuse_twice(columns: list[str], frame: "pd.DataFrame", name: str, delimiter: str) -> None:
    """Raise ValueError where a file has two columns of a wanted name, of which pandas renames the second."""
    doubtful = [each for each in columns if f"{each}.1" in frame.columns]
    if not doubtful:
        return
    with open_file(name, "rt", encoding="utf-8-sig", newline="") as lines:
        header = next(csv.reader(lines, delimiter=delimiter), [])
    if twice := [each for each in doubtful if header.count(each) > 1]:
        raise ValueError(f"{name} has two columns of the name {twice[0]}; give each a name of its own")


def mention_unread(name: str, rows: list[int], delimiter: str) -> None:
    """Log how many rows of a file have values in columns without a name."""
    if rows:
        log_once(
            f"{name}: rows with values in columns without a name, which are not read: {len(rows):,} (the first is row "
            f"{rows[0] + 1}); put texts that contain {delimiter!r} in quotes, or name every column"
        )


def other_delimiter(name: str, delimiter: str) -> str:
    """The end of a message: what may separate the columns of a file instead."""
    with open_file(name, "rt", encoding="utf-8-sig") as stream:
        header = stream.readline()
    others = [each for each in DELIMITERS if each != delimiter and each in header]
    return f"; or are its columns separated by {others[0]!r}, which its first line has?" if others else ""


def has_whole_lines(name: str) -> bool:
    """Whether each line of a TSV file is a row with all columns, so that no quote holds a tab or the end of a line.

    In such a file a quote is a part of the text, as in the original files of GLUE, except around a whole value.
    """
    with open_file(name, "rt", encoding="utf-8-sig") as stream:
        tabs = {line.count("\t") for line in stream if line.strip("\n")}
    return len(tabs) == 1 and tabs != {0}


def unquoted(value: str) -> str | None:
    """A value without the quotes around it, if those inside are doubled, as CSV has it; None for a missing value."""
    if len(value) > 1 and value[0] == value[-1] == '"' and '"' not in (inner := value[1:-1]).replace('""', ""):
        value = inner.replace('""', '"')
    return None if value in MISSING else value


def whole_rows(lines: IO[str], name: str, delimiter: str) -> Iterator[list[str]]:
    """The rows of a CSV file, to check them: pandas says nothing where a quote swallows rows or values.

    Raises ValueError where a quote that other text follows ends a value of several lines, since another value begins
    there; where a row of several lines that hold delimiters lacks values; and within one line where a quote joins two
    values, or a backslash stands before it. Files of careless origin are full of such quotes that do neither. A log
    line counts the rows of one line that lack values.
    """
    csv.field_size_limit((1 << 31) - 1)
    options: dict[str, Any] = {"delimiter": delimiter, "skipinitialspace": delimiter != "\t"}
    read: deque[str] = deque(maxlen=1)  # the last line
    rows = csv.reader(remembered(lines, read), strict=True, **options)
    columns, short = 0, list[int]()  # the lines of rows with fewer values than the header
    while True:
        begin = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            if "expected after" not in str(error):
                continue
            if rows.line_num > begin:
                raise swallowed(name, begin, rows.line_num, delimiter) from None
            if '\\"' in read[0]:
                raise ValueError(
                    f"{name} has a backslash before a quote in line {begin}: double the quote instead, as CSV has it"
                ) from None
            if len(next(csv.reader(read, **options))) < columns:
                raise ValueError(
                    f"{name} has a quote in line {begin} that joins two values: put each value that begins with a "
                    "quote in quotes, and double those inside"
                ) from None
            continue
        if row is None:
            if short:
                log_once(
                    f"{name}: rows with fewer values than the header, which are read as if the last were empty: "
                    f"{len(short):,} (the first is in line {short[0]})"
                )
            return
        if row:
            columns = columns or len(row)
            if len(row) < columns and any(delimiter in value and "\n" in value for value in row):
                raise swallowed(name, begin, rows.line_num, delimiter)
            short += [begin] if len(row) < columns else []
            yield row


def swallowed(name: str, first: int, last: int, delimiter: str) -> ValueError:
    """The error of a quote that is not closed, between two lines of a file; it names an odd line of a TSV file."""
    return ValueError(
        f"{name} has an unclosed quote in the row that begins at line {first}: it swallows the rows up to line {last}. "
        f"Close it, or double each quote inside a value{odd_line(name, delimiter)}"
    )


def odd_line(name: str, delimiter: str) -> str:
    """The end of a message: the one line in a hundred of a TSV file that has not the header's number of tabs.

    Without it a quote would be a part of the text, as in GLUE's files.
    """
    if delimiter != "\t":
        return ""
    with open_file(name, "rt", encoding="utf-8-sig") as stream:
        tabs = {number: line.count("\t") for number, line in enumerate(stream, start=1) if line.strip("\n")}
    usual = next(iter(tabs.values()), 0)
    odd = [number for number, count in tabs.items() if count != usual]
    if not odd or len(odd) > 0.01 * len(tabs):
        return ""
    return (
        f"; or mend line {odd[0]}, which has {tabs[odd[0]] + 1} columns and the header {usual + 1}: where all lines "
        "have as many, quotes are read as text"
    )


def remembered(lines: Iterable[str], last: deque[str]) -> Iterator[str]:
    """The same lines, each put into `last` first."""
    for line in lines:
        last.append(line)
        yield line


@dataclass(frozen=True)
class JsonFiles:
    """Some columns of local files of JSON lines, or of one JSON array of objects, every value as it is written.

    `datasets` would make a point in time of a text such as "2020-01-01". A key that a row lacks is None.
    """

    files: list[str]
    columns: list[str] | None = None
    features: Mapping[str, Any] | None = None

    @property
    def column_names(self) -> list[str]:
        """The keys of the first thousand rows; none if there is no row."""
        return list(next(self.iter(batch_size=1000), ()))

    def select_columns(self, columns: list[str]) -> "JsonFiles":
        """The same files with only these columns."""
        return replace(self, columns=columns)

    def iter(self, batch_size: int) -> Iterator[dict[str, list[Any]]]:
        """Batches of rows, column by column.

        Raises ValueError, which names the file, for anything but objects, and where none has one of the columns. A line
        says how many rows lack one that others have.
        """
        for name in self.files:
            rows, count, found = read_json(name), 0, Counter[str]()
            with file_named(name):
                while batch := list(islice(rows, batch_size)):
                    count += len(batch)
                    keys = Counter(key for row in batch for key in row)
                    found += keys
                    yield {key: [row.get(key) for row in batch] for key in self.columns or keys}
            wanted = self.columns or ()
            if found and (missing := set(wanted).difference(found)):
                raise ValueError(f"{name} has no column {', '.join(sorted(missing))}")
            for key in wanted:
                if lacking := count - found[key]:
                    log_once(f"{name}: {lacking:,} of {count:,} rows have no key {key!r}, as if it were empty")


def read_json(name: str) -> Iterator[dict[str, Any]]:
    """The objects in a file, one per line or all in one array."""
    with open_file(name, "rt", encoding="utf-8-sig") as stream:
        is_array = stream.read(1000).lstrip().startswith("[")
    with open_file(name, "rt", encoding="utf-8-sig") as stream:
        if is_array:
            values = ((f"item {number}", value) for number, value in enumerate(json_in(stream.read(), name), start=1))
        else:
            lines = ((f"line {number}", line) for number, line in enumerate(stream, start=1) if line.strip())
            values = ((place, json_in(line, f"{place} of {name}")) for place, line in lines)
        for place, value in values:
            if not isinstance(value, dict):
                raise ValueError(f"{place} of {name} is {type(value).__name__}, not an object with columns")
            yield value


def json_in(text: str, place: str) -> Any:
    """The value that a line or a file of JSON stands for; raises ValueError, which begins with `place`."""
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise ValueError(f"{place} has half of a surrogate pair; write the text again as UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise ValueError(f"{place} is not JSON ({error.msg}, {where}); write one object per line") from None


@dataclass(frozen=True)
class TextFiles:
    """Files as a table with one row per text; `read` gives the texts of a file."""

    files: list[str]
    read: Callable[[str], Iterator[str]]
    column_names: tuple[str, ...] = ("text",)
    features: None = None

    def select_columns(self, columns: list[str]) -> "TextFiles":
        """The same table: it has one column."""
        return self

    def iter(self, batch_size: int) -> Iterator[dict[str, list[str]]]:
        """Batches of texts. Raises ValueError, which names the file, where one is damaged or not UTF-8."""
        texts = self.texts()
        while batch := list(islice(texts, batch_size)):
            yield {"text": batch}

    def texts(self) -> Iterator[str]:
        """The texts of all files, one after the other."""
        for name in self.files:
            with file_named(name):
                yield from self.read(name)


@dataclass(frozen=True)
class TaggedFiles:
    """Files of words and tags (CoNLL) as a table with one row per sentence: its words in `text`, their tags in `label`.

    A line has a word and, last, its tag, with tabs or spaces between; an empty line ends a sentence.
    """

    files: list[str]
    column_names: tuple[str, ...] = ("text", "label")
    features: None = None

    def select_columns(self, columns: list[str]) -> "TaggedFiles":
        """The same table: both columns are read."""
        return self

    def iter(self, batch_size: int) -> Iterator[dict[str, list[list[str]]]]:
        """Batches of sentences. Raises ValueError, which names file and line, where a word has no tag."""
        sentences = chain.from_iterable(map(read_tagged, self.files))
        while batch := list(islice(sentences, batch_size)):
            words, tags = zip(*batch, strict=True)
            yield {"text": list(words), "label": list(tags)}


def read_tagged(file: str, needs_tags: bool = True) -> Iterator[tuple[list[str], list[str]]]:
    """The words and the tags of each sentence of a CoNLL file, without -DOCSTART- and the comments before sentences.

    The tags are the last column; without `needs_tags` it may be the words themselves. Raises ValueError for a file
    whose first column only numbers the words, and for a line with other columns.
    """
    words, tags, width = list[str](), list[str](), 0
    sentences = numbered = 0
    with open_file(file, "rt", encoding="utf-8-sig") as stream, file_named(file):
        for number, line in enumerate(chain(stream, [""]), start=1):
            fields = re.split(r"[ \t]+", line.strip(" \t\r\n"))  # not at other spaces, which may stand in words
            if not words and COMMENT.match(line):
                continue
            if fields != [""] and fields[0] != "-DOCSTART-":
                width = width or len(fields)
                if len(fields) < 1 + needs_tags or len(fields) != width:
                    has = (
                        "no tag"
                        if needs_tags and len(fields) < 2
                        else f"{len(fields)} columns, and those before have {width}"
                    )
                    raise ValueError(
                        f"line {number} of {file} has {has}: {line.strip()[:60]!r}; write a word and, last, its tag, "
                        "with an empty line after each sentence"
                    )
                words.append(fields[0])
                tags.append(fields[-1])
            elif words:
                sentences, numbered = sentences + 1, numbered + are_numbers(words)
                if sentences == numbered == LEAST_NUMBERED:  # the beginning of a file that has words may look so
                    raise ValueError(
                        f"the first column of {file} numbers the words; put the word first and its tag last"
                    )
                yield words, tags
                words, tags = [], []


def are_numbers(words: list[str]) -> bool:
    """Whether a sentence's words count from 1, as the first column of Universal Dependencies and GermEval does."""
    return all(map(TOKEN_NUMBER.fullmatch, words)) and words[0].startswith("1")


def read_lines(file: str) -> Iterator[str]:
    """The lines of a text file, without their ends."""
    with open_file(file, "rt", encoding="utf-8-sig") as stream:
        for line in stream:
            yield line.rstrip("\n")


def read_document(file: str) -> Iterator[str]:
    """All of a text file."""
    with open_file(file, "rt", encoding="utf-8-sig") as stream:
        yield stream.read()


def path_key(key: str) -> str:
    """How messages call a path: `path` in a section of the recipe, or the key, option or argument that is the path."""
    if key.endswith("_split"):  # of the section's own path
        return key.rpartition(".")[0] + ".path"
    is_path = key.startswith("--") or key == "source" or key.endswith((".held_out", "_path"))
    return key if is_path else f"{key}.path"


def named(key: str, argument: str) -> str:
    """How messages call another argument of a source: in a section of the recipe, or in Python by its own name."""
    if key == "source":
        return argument
    if argument == "text_unit" and key.endswith(".held_out"):  # they are read as the texts that they are held out of
        return named(key.removesuffix(".held_out"), argument)
    if key.endswith("_split"):
        return key if argument == "split" else f"{key.rpartition('.')[0]}.{argument}"
    if argument == "split" and path_key(key) == key:  # a key of the recipe that names a path has one for the split
        return key if key.endswith("held_out") else key.replace("_path", "_split")
    return f"{key}.{argument}"
