"""The corpus: a Hub dataset, local files or the embedded sample as a stream of documents."""

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertpre.console import log_once
from bertpre.data import sample
from bertpre.data.csv_files import CsvFiles
from bertpre.data.failures import LOCAL_COPY, failures_explained
from bertpre.data.formats import are_tagged
from bertpre.data.local_files import (
    KNOWN_ENDINGS,
    ending,
    files_by_split,
    files_of_pattern,
    holds_tsv,
    load_files,
    load_folder,
    with_split,
)
from bertpre.data.tables import Columns, JsonFiles, named, path_key
from bertpre.errors import UserError
from bertpre.files import ask_hub

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

BATCH_ROWS = 1000


def read_documents(
    path: str,
    name: str | None = None,
    split: str = "train",
    text_column: str = "text",
    limit: int | None = None,
    key: str = "corpus",
    text_unit: str = "line",
    streaming: bool = False,
) -> Iterator[str]:
    """Read the documents of one split, or of several joined by `+`, without holding them in memory.

    `path` is `sample` (the embedded corpus), a local file or folder, a pattern such as `texts/**/*.txt`, or a Hub id.
    Files whose ending is not in KNOWN_ENDINGS are read by their content: WikiExtractor's articles, JSON lines or text.
    `limit` keeps the first documents of each split. `text_unit` is a document in a text file: `line`, `paragraph` or
    `document` (the whole file). `streaming` reads a Hub dataset without a local copy. Messages begin with `key`.
    Raises UserError where the file, the configuration, the split or the column does not exist or cannot be read.
    """
    for part in split.split("+"):
        table = open_table(path, name, part, key, text_unit, streaming)
        rows = table.rows([("text_column", text_column)])
        for number, (text,) in enumerate(islice(rows, limit), start=1):
            if not isinstance(text, str | None):
                raise UserError(
                    f"{named(key, 'text_column')}: {text_column!r} of {path} holds {type(text).__name__}, not text "
                    f"(row {number} of {part})"
                )
            yield text or ""


@dataclass(frozen=True)
class TextSource:
    """One source of a corpus: the arguments of `read_documents`, and how much of it is used."""

    path: str
    name: str | None = None
    split: str = "train"
    text_column: str = "text"
    limit: int | None = None
    key: str = "corpus"
    text_unit: str = "line"
    streaming: bool = False
    weight: float = 1.0  # below 1: the share of the documents; above: how many times an epoch reads them

    def __str__(self) -> str:
        """How messages name the source."""
        return f"{self.key}: {with_split(self.path, self.split)}"

    def documents(self) -> Iterator[str]:
        """Read all documents, whatever the weight."""
        arguments = asdict(self)
        del arguments["weight"]
        return read_documents(**arguments)

    def beside(self, place: str | None, key: str) -> "TextSource | None":
        """The source of texts that the corpus must not hold: all of another split, or of a file or folder of their own.

        None stands for no such texts.
        """
        if not place:
            return None
        path, split = place_beside(place, self.path)
        name = self.name if path == self.path else None
        return replace(self, path=path, split=split, name=name, limit=None, weight=1.0, key=f"{self.key}.{key}")


def mention_unread_splits(sources: Sequence[TextSource]) -> None:
    """Log one line for each folder with splits that no source reads, which a name such as `test.txt` makes."""
    for path in dict.fromkeys(source.path for source in sources):
        same = [source for source in sources if source.path == path]
        if path == "sample" or not Path(path).is_dir():
            continue
        first, read = same[0], {part for source in same for part in source.split.split("+")}
        with failures_explained(path, first.name, first.split, first.key):
            found = list(files_by_split(Path(path), first.name)[0])
        if unread := [split for split in found if split not in read]:
            key = named(first.key, "split")
            log_once(
                f"{key}: the names of files or folders in {path} make the splits {', '.join(found)}; not read: "
                f"{', '.join(unread)}. To read all: {key}={'+'.join(found)}"
            )


def place_beside(place: str, path: str) -> tuple[str, str]:
    """Path and split of texts beside a corpus, which are another file or folder, or a split of `path`."""
    is_place = bool({"/", "\\"} & set(place)) or ending(Path(place)) in KNOWN_ENDINGS
    return (place, "train") if is_place else (path, place)


@dataclass(frozen=True)
class Table:
    """One split of a source; error messages begin with `key`.

    Of TSV files all columns are read, since an unclosed quote in any column swallows rows.
    """

    data: "Dataset | IterableDataset | Columns"
    path: str
    name: str | None
    split: str
    key: str
    is_tsv: bool = False

    def rows(self, columns: list[tuple[str, str]]) -> Iterator[tuple[Any, ...]]:
        """The values of some columns, row by row; `columns` are pairs of an argument (for messages) and a name."""
        from pyarrow import default_memory_pool

        names = [name for _, name in columns]
        with failures_explained(self.path, self.name, self.split, self.key):  # rows are parsed while they stream
            found = self.column_names()
            if not found:
                raise UserError(f"{path_key(self.key)}: {self.path} is empty: it holds no row of text")
            for argument, name in columns:
                if name not in found:
                    self.refuse_missing(argument, name, found)
            read = found if self.is_tsv else names
            for batch in self.data.select_columns(read).iter(batch_size=BATCH_ROWS):
                for row in zip(*batch.values(), strict=True) if self.is_tsv else ():
                    refuse_unclosed_quote(row, f"{path_key(self.key)}: {self.path}")
                yield from zip(*(batch[name] for name in names), strict=True)
                # pyarrow keeps freed memory: hundreds of MB where a Parquet file has large row groups.
                default_memory_pool().release_unused()

    def refuse_missing(self, argument: str, name: str, found: list[str]) -> None:
        """Raise UserError with the key that names the column, or, where another file has that key, to rename it."""
        section, _, last = argument.rpartition(".")
        where = named(section or self.key, last)
        remedy = f"name one with {where}=..."
        is_further = path_key(self.key) == self.key or self.key.endswith("_split") or section not in ("", self.key)
        if self.key != "source" and is_further:
            kind = {"label_column": "labels", "text_pair_column": "second texts"}.get(last, "texts")
            where, remedy = path_key(self.key), f"rename the one with the {kind} to {name!r}"
            if last == "label_column" and self.key == "evaluate":
                remedy += ", or, if they are hidden, set a part aside with finetune.test_fraction=0.1"
        if self.key == "--file" and last == "label_column":
            remedy = f"rename the one with the labels to {name!r}"
        elif self.key == "--file":
            texts = {"text_column": "texts", "text_pair_column": "second texts"}[last]
            remedy = f"name the one with the {texts} with --{last.replace('_', '-')}"
        if isinstance(self.data, CsvFiles) and are_tagged(self.data.files[0]):
            remedy = "its lines are words with tags: for finetune.task=tokens rename it to .txt"
        elif isinstance(self.data, CsvFiles):
            remedy += " (the first line of a CSV or TSV file names its columns)"
        elif isinstance(self.data, JsonFiles):
            remedy += " (the first 1,000 rows were read)"
        columns = ", ".join(repr(each) if each != each.strip() else each for each in found)
        raise UserError(f"{where}: {self.path} has no column {name!r}; its columns are {columns}; {remedy}")

    def column_names(self) -> list[str]:
        """The names of the columns; none where there is no row."""
        with failures_explained(self.path, self.name, self.split, self.key):
            return list(self.data.column_names or next(self.data.iter(batch_size=1), ()))

    def class_names(self, column: str) -> list[str] | None:
        """The names of the classes in a column of numbers, where the dataset declares them."""
        if self.path == "sample":
            return list(sample.CLASSES)
        feature = (self.data.features or {}).get(column)
        feature = getattr(feature, "feature", feature)  # a sequence: the feature of its elements
        return getattr(feature, "names", None)


def refuse_unclosed_quote(row: tuple[Any, ...], where: str) -> None:
    """Raise UserError where a value of a TSV file contains further rows because its opening quote is never closed.

    The lines of such a value have the tabs of the rest of its row, of complete rows, and of the start of a row.
    """
    last = len(row) - 1
    for place, value in enumerate(row):
        if last and isinstance(value, str) and "\n" in value:
            first, *middle, end = (line.count("\t") for line in value.split("\n"))
            if first == last - place and end == place and set(middle) <= {last}:
                raise UserError(
                    f"{where} has an unclosed quote: it swallows the following rows; value {value[:60]!r}. Close the "
                    "quote, or put the value in quotes and double each quote inside it, or use JSON lines"
                )


def open_table(
    path: str, name: str | None, split: str, key: str, text_unit: str = "line", streaming: bool = False
) -> Table:
    """Open one split of a source; arguments and errors as in `read_documents`."""
    if path == "sample":
        return Table(open_sample(split, key), path, name, split, key)
    with failures_explained(path, name, split, key):
        data = load(path, name, split, key, text_unit, streaming)
        return Table(data, path, name, split, key, is_tsv=holds_tsv(path))


@dataclass(frozen=True)
class SampleTable:
    """A split of the embedded corpus as a table."""

    split: str
    column_names: tuple[str, ...] = ("text", "label")

    def select_columns(self, columns: list[str]) -> "SampleTable":
        """The same split with only these columns."""
        return SampleTable(self.split, tuple(columns))

    def iter(self, batch_size: int) -> Iterator[dict[str, list[Any]]]:
        """Batches of one row each, generated on demand."""
        for document in sample.generate(self.split):
            yield {name: [getattr(document, name)] for name in self.column_names}


def open_sample(split: str, key: str) -> SampleTable:
    """A split of the embedded corpus; raises UserError for an unknown one."""
    if split not in sample.SPLITS:
        raise UserError(
            f"{named(key, 'split')}: the embedded sample has no split {split!r}; it has {', '.join(sample.SPLITS)}"
        )
    return SampleTable(split)


def load(
    path: str, name: str | None, split: str, key: str, text_unit: str, streaming: bool
) -> "Dataset | IterableDataset | Columns":
    """A dataset: local files are streamed; Hub datasets are downloaded once and cached, or streamed."""
    from datasets import disable_progress_bars, load_dataset
    from datasets.utils.logging import set_verbosity

    disable_progress_bars()
    set_verbosity(logging.CRITICAL)  # a failure is reported once, by the error raised
    local = Path(path)
    if files := [path] if local.is_file() else files_of_pattern(path, key):
        if split != "train":
            kind = "a single file" if local.is_file() else "a pattern of files"
            raise UserError(f"{named(key, 'split')}: {path} is {kind}, which has only the split 'train', not {split!r}")
        return load_files(files, path, text_unit, key)
    if path and local.is_dir():
        return load_folder(local, name, split, text_unit, key)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path) or ending(local) in KNOWN_ENDINGS:
        own = "" if key == "source" else f"; name yours with {path_key(key)}=..."
        own += ", or finetune=null to pretrain only" if path_key(key) == "finetune.path" else ""
        raise UserError(f"{path_key(key)}: {path!r} is neither a file or folder nor a Hub id (owner/name){own}")
    if not is_cached(path):
        try:
            ask_hub(path, path_key(key), "README.md", "dataset")
        except UserError as error:
            raise UserError(f"{error}; {LOCAL_COPY.format(place=path_key(key))}") from None
    return load_dataset(path, name, split=split, streaming=streaming)


@contextmanager
def datasets_settings_kept() -> Iterator[None]:
    """Put back at the end how much the library `datasets` says, which `load` sets for the whole process."""
    given = sys.modules.get("datasets")
    verbosity = given.logging.get_verbosity() if given else logging.WARNING  # as it has after its import
    has_bars = given is None or given.is_progress_bar_enabled()
    try:
        yield
    finally:
        if used := sys.modules.get("datasets"):
            used.logging.set_verbosity(verbosity)
            if has_bars:
                used.enable_progress_bars()


def is_cached(dataset: str) -> bool:
    """Whether a dataset of the Hub is in a cache of this machine, so that no network is needed."""
    from datasets import config
    from datasets.naming import camelcase_to_snakecase
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    owner, _, name = dataset.partition("/")
    prepared = Path(config.HF_DATASETS_CACHE, f"{owner}___{camelcase_to_snakecase(name)}")
    return prepared.is_dir() or Path(HF_HUB_CACHE, repo_folder_name(repo_id=dataset, repo_type="dataset")).is_dir()
