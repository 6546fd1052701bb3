"""Local files as tables whose rows stream: Parquet, JSON, texts, words with tags; CSV has a file of its own."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bertpre.console import log_once
from bertpre.data.compressed import file_named, open_file

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Features
    from pyarrow.parquet import RowGroupMetaData

Row = TypeVar("Row", str, dict[str, Any])
READ_BYTES = 1 << 20
BATCH_CHARACTERS = 1 << 20  # of texts, in memory at a time
# A comment before a sentence, as in CoNLL-U and MultiCoNER; # alone and #id may be words.
COMMENT = re.compile(r"#[ \t]+(?:[\w.]+[ \t]*=|(?:id|newdoc|newpar)\b)|#[\w.]+[ \t]+=[ \t]")
TOKEN_NUMBER = re.compile(r"\d+([-.]\d+)?")  # 7-8 is of two words written as one
LEAST_NUMBERED = 3  # sentences
BESIDE = (".held_out", ".validation")  # keys that name a split of their section's source, or a path


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
                    rows = min(batch_size, rows_in_memory(file.metadata.row_group(group), self.columns))
                    for batch in file.iter_batches(rows, row_groups=[group], columns=self.columns):
                        yield batch.to_pydict()


def rows_in_memory(group: "RowGroupMetaData", columns: list[str] | None) -> int:
    """How many rows of a row group to have in memory at a time: of books, a few are much text."""
    parts = [group.column(number) for number in range(group.num_columns)]
    read = [part for part in parts if columns is None or part.path_in_schema.split(".")[0] in columns]
    size = sum(part.total_uncompressed_size for part in read)
    return max(1, BATCH_CHARACTERS * group.num_rows // max(1, size))


def read_schema(name: str) -> "pa.Schema":
    """The schema of a Parquet file; raises ValueError, which names it, where it is damaged."""
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import read_schema as read

    with file_named(name, ArrowInvalid):
        return read(name)


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
        return self.columns or list(dict.fromkeys(key for row in islice(self.rows(), 1000) for key in row))

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of all files, with all columns."""
        for name in self.files:
            with file_named(name):
                yield from read_json(name)

    def select_columns(self, columns: list[str]) -> "JsonFiles":
        """The same files with only these columns."""
        return replace(self, columns=columns)

    def iter(self, batch_size: int) -> Iterator[dict[str, list[Any]]]:
        """Batches of rows, column by column, of few where their texts are books.

        Raises ValueError, which names the file, for anything but objects, and where none has one of the columns. A line
        says how many rows lack one that others have.
        """
        for name in self.files:
            rows, count, found = read_json(name), 0, Counter[str]()
            with file_named(name):
                for batch in batches(rows, batch_size):
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
        """Batches of texts, of few where these are books.

        Raises ValueError, which names the file, where one is damaged or not UTF-8.
        """
        return ({"text": batch} for batch in batches(self.texts(), batch_size))

    def texts(self) -> Iterator[str]:
        """The texts of all files, one after the other."""
        for name in self.files:
            with file_named(name):
                yield from self.read(name)


def batches(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    """Lists of at most `most` texts, or rows with texts, and of few where these are long."""
    batch, characters = list[Row](), 0
    for row in rows:
        batch.append(row)
        texts = row.values() if isinstance(row, dict) else (row,)
        characters += sum(len(text) for text in texts if isinstance(text, str))
        if len(batch) == most or characters > BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


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
    is_path = key.startswith("--") or key == "source" or key.endswith((*BESIDE, "_path"))
    return key if is_path else f"{key}.path"


def named(key: str, argument: str) -> str:
    """How messages call another argument of a source: in a section of the recipe, or in Python by its own name."""
    if key == "source":
        return argument
    if argument == "text_unit" and key.endswith(BESIDE):  # they are read as the texts that they lie beside
        return named(key.rpartition(".")[0], argument)
    if key.endswith("_split"):
        return key if argument == "split" else f"{key.rpartition('.')[0]}.{argument}"
    if argument == "split" and path_key(key) == key:  # a key of the recipe that names a path has one for the split
        return key if key.endswith(BESIDE) else key.replace("_path", "_split")
    return f"{key}.{argument}"
