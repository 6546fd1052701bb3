"""The corpus: a Hub dataset, local files or the embedded sample as a stream of documents."""

import glob
import logging
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertpre.data import sample
from bertpre.data.formats import (
    BINARY,
    EMPTY,
    JSON_LINES,
    TEXT,
    WIKI,
    WIKI_DUMP,
    advised_unit,
    is_utf16,
    is_whole,
    read_articles,
    recognize,
)
from bertpre.data.tables import (
    Columns,
    CsvFiles,
    JsonFiles,
    ParquetFiles,
    TextFiles,
    named,
    path_key,
    read_document,
    read_lines,
    read_paragraphs,
    refuse_other_delimiter,
)
from bertpre.errors import UserError, first_line
from bertpre.files import ask_hub

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

logger = logging.getLogger(__name__)

KNOWN_ENDINGS = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".txt")
COMPRESSIONS = (".gz", ".bz2", ".zst")
DAMAGED = (EOFError, zipfile.BadZipFile, zlib.error)
CONTENTS = {WIKI: "articles of WikiExtractor", JSON_LINES: "JSON lines", TEXT: "text"}
ADVICE = {  # by what readers say
    "codec can't decode": "; save it as UTF-8",
    "EOF inside string": "; a quote is not closed",
    "C error: Expected": "; put values that contain the separator in quotes, and double each quote inside them",
    "Couldn't cast": "; its files have different columns or types: give them the same",
    "as a scalar of type": "; a column has values of several types: write all of them as text",
    "zstd not supported": "; install it with pip install 'bertpre[zstd]', or unpack the files",
    "Bad split": "; a folder is named with a slash, as in ./texts",
    "several configurations": "; set {name} to one of them",
    "BuilderConfig": "; set {name} to one of these, or to null for files of your own",
}
LOCAL_COPY = "without a network, give a local copy with the same layout: {place}=FOLDER"
BATCH_ROWS = 1000
METADATA = {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}


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
        for (text,) in islice(rows, limit):
            if not isinstance(text, str | None):
                raise UserError(
                    f"{named(key, 'text_column')}: {text_column!r} of {path} holds {type(text).__name__}, not text"
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
        return f"{self.key}: {self.path} (split {self.split})"

    def documents(self) -> Iterator[str]:
        """Read all documents, whatever the weight."""
        arguments = asdict(self)
        del arguments["weight"]
        return read_documents(**arguments)

    def held_out(self, place: str) -> "TextSource":
        """The source of texts to be held out: all of another split, or of a file or folder of their own."""
        path, split = held_out_place(place, self.path)
        name = self.name if path == self.path else None
        return replace(self, path=path, split=split, name=name, limit=None, weight=1.0, key=f"{self.key}.held_out")


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
        where = f"{section or self.key}.{last}"
        remedy = f"name one with {where}=..."
        if self.key == "source":  # in Python
            where, remedy = last, f"name one with {last}=..."
        elif path_key(self.key) == self.key or section not in ("", self.key):
            kind = {"label_column": "labels", "text_pair_column": "second texts"}.get(last, "texts")
            where, remedy = path_key(self.key), f"rename the one with the {kind} to {name!r}"
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
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path) or local.suffix in KNOWN_ENDINGS:
        raise UserError(f"{path_key(key)}: {path!r} is neither a file or folder nor a Hub id (owner/name)")
    if not is_cached(path):
        try:
            ask_hub(path, path_key(key), "README.md", "dataset")
        except UserError as error:
            raise UserError(f"{error}; {LOCAL_COPY.format(place=path_key(key))}") from None
    return load_dataset(path, name, split=split, streaming=streaming)


def is_cached(dataset: str) -> bool:
    """Whether a dataset of the Hub is in a cache of this machine, so that no network is needed."""
    from datasets import config
    from datasets.naming import camelcase_to_snakecase
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    owner, _, name = dataset.partition("/")
    prepared = Path(config.HF_DATASETS_CACHE, f"{owner}___{camelcase_to_snakecase(name)}")
    return prepared.is_dir() or Path(HF_HUB_CACHE, repo_folder_name(repo_id=dataset, repo_type="dataset")).is_dir()


def load_files(files: list[str], path: str, text_unit: str, key: str) -> Columns:
    """The rows of files of one kind; `path` is how messages name them together."""
    files, kind = files_of_one_kind(files, path, key)
    if kind == WIKI:
        return TextFiles(files, read_articles)
    if kind == ".parquet":
        return ParquetFiles(files)
    if kind == ".txt":
        advise_unit(files, path, text_unit, key)
    if kind in (".csv", ".tsv"):
        refuse_other_delimiter(files, key)
        return CsvFiles(files, "," if kind == ".csv" else "\t")
    if kind in (".json", ".jsonl"):
        return JsonFiles(files)
    return TextFiles(files, {"line": read_lines, "paragraph": read_paragraphs, "document": read_document}[text_unit])


def load_folder(
    folder: Path, name: str | None, split: str, text_unit: str, key: str
) -> "Dataset | IterableDataset | Columns":
    """One split of a folder: as `datasets` reads it, or by content where it knows no file's ending."""
    from datasets import load_dataset, load_dataset_builder

    place = str(folder.resolve())  # `datasets` takes a name from the end of the path, which . has not
    try:
        builder = load_dataset_builder(place, name)
        found, declared = builder.config.data_files or {}, builder.info.features
    except FileNotFoundError:
        found, declared = {}, None
    files = [file for files in found.values() for file in files]
    is_known = any(ending(Path(file)) in KNOWN_ENDINGS for file in files)
    by_content = not is_known and not (files and recognize(files[0]) == BINARY)  # `datasets` knows .arrow and others
    if by_content:
        found = unknown_files_by_split(folder)
        if split not in found:
            raise UserError(f"{named(key, 'split')}: {folder} has no split {split!r}; it has {', '.join(found)}")
    refuse_unread(folder, found, key, by_content)
    refuse_other_delimiter([file for files in found.values() for file in files], key)
    endings = {ending(Path(file)) for file in found.get(split, ())}
    if declared and endings and endings <= {".json", ".jsonl"}:  # by the README.md: the names of classes, for example
        return JsonFiles(files_of_one_kind(list(found[split]), str(folder), key)[0], features=declared)
    if by_content or (endings and endings <= set(KNOWN_ENDINGS)):
        return load_files(list(found[split]), str(folder), text_unit, key)
    return load_dataset(place, name, split=split, streaming=True)


def unknown_files_by_split(folder: Path) -> dict[str, list[str]]:
    """The files of a folder, whatever their endings, by the split that `datasets` reads in their names."""
    from datasets.data_files import DataFilesDict, get_data_patterns

    place = str(folder.resolve())
    return {
        str(split): list(files) for split, files in DataFilesDict.from_patterns(get_data_patterns(place), place).items()
    }


def refuse_unread(folder: Path, found: dict[str, list[str]], key: str, by_content: bool) -> None:
    """Raise UserError where files of the folder would silently be ignored.

    `datasets` assigns splits by file name: if there is a train.txt, files without a split's name are ignored. The
    metadata of a README.md may list the files instead. Files without a known ending are read only where all are so
    (`by_content`); beside others a line says that they are not read.
    """
    if lists_files(folder / "README.md"):
        return
    read = {Path(file).resolve() for files in found.values() for file in files}
    places = sorted(place for place in folder.rglob("*") if is_data(place.relative_to(folder)))
    if links := [place for place in places if place.is_symlink() and place.is_dir()]:
        raise UserError(
            f"{path_key(key)}: {links[0]} is a link to a folder, which is not followed; give a pattern, which follows "
            f"it, e.g. {folder}/**/*{min(map(ending, map(Path, read)), default='')}"
        )
    files = [place for place in places if place.is_file()]
    if not by_content:
        others = [file for file in files if ending(file) not in KNOWN_ENDINGS]
        files = [file for file in files if ending(file) in KNOWN_ENDINGS]
        if others and read and recognize(str(others[0])) == WIKI:
            raise UserError(
                f"{path_key(key)}: {folder} holds articles of WikiExtractor (e.g. {others[0].relative_to(folder)}) "
                f"beside {len(files)} files of another kind; give a pattern for one kind, e.g. {folder}/**/wiki_*"
            )
        if others and files:
            example, count = others[0].relative_to(folder), len(others)
            log_once(f"{path_key(key)}: {count} files of other kinds in {folder} are not read (e.g. {example})")
    unread = [file for file in files if file.resolve() not in read]
    if read and unread:
        kinds = sorted({file.suffix for file in files})
        which = "all files" if len(kinds) == 1 else "those of one ending"
        pattern = f"{folder}/**/*{unread[0].suffix}{others_in(key, kinds)}"
        raise UserError(
            f"{path_key(key)}: {len(unread)} of the {len(files)} files in {folder} belong to no split (e.g. "
            f"{unread[0].name}). In a folder, names such as train and test assign files to splits, and all files have "
            f"the same ending; to read {which} give a pattern, e.g. {pattern}"
        )


def others_in(key: str, kinds: Sequence[str]) -> str:
    """Where files of further kinds go: a corpus has a key for them."""
    return ", and name the others in corpus.more" if path_key(key) == "corpus.path" and len(kinds) > 1 else ""


def lists_files(readme: Path) -> bool:
    """Whether the metadata at the head of a README.md say which files belong to which split."""
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    metadata = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    return metadata is not None and re.search(r"\b(data_files|data_dir)\s*:", metadata[1]) is not None


def is_data(file: Path) -> bool:
    """Whether a file, by its path in a folder, may hold data: it is not hidden and does not describe the folder."""
    is_metadata = file.name in METADATA and (len(file.parts) == 1 or file.name != "README.md")
    return not any(part.startswith((".", "__")) for part in file.parts) and not is_metadata


def held_out_place(held_out: str, path: str) -> tuple[str, str]:
    """Path and split of texts to be held out, which are another file or folder, or a split of `path`."""
    is_place = "/" in held_out or ending(Path(held_out)) in KNOWN_ENDINGS
    return (held_out, "train") if is_place else (path, held_out)


def files_of_pattern(path: str, key: str) -> list[str]:
    """The files that match a pattern with `*`, `?`, `[]` or `**`, sorted; none if the path is not a pattern."""
    if not glob.has_magic(path) or Path(path).exists():
        return []
    files = sorted(file for file in glob.glob(path, recursive=True) if Path(file).is_file())
    if not files:
        raise UserError(f"{path_key(key)}: the pattern {path!r} matches no file")
    return files


@contextmanager
def failures_explained(path: str, name: str | None, split: str, key: str) -> Iterator[None]:
    """Turn errors of `datasets` (unknown name, damaged file, no network) into UserError.

    The embedded corpus is read without that library.
    """
    if path == "sample":
        yield
        return
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    copy = LOCAL_COPY.format(place=path_key(key))
    try:
        yield
    except DatasetNotFoundError:
        raise UserError(f"{path_key(key)}: {path!r} is neither a local folder nor a Hub dataset; {copy}") from None
    except FileNotFoundError as error:
        refuse_hub_answer(error, path, key)
        if Path(path).exists() and (glob.has_magic(path) or "::" in path):
            raise UserError(
                f"{path_key(key)}: {path} has *, ?, [ or :: in its name, which cannot be read: rename it"
            ) from None
        known = ", ".join(KNOWN_ENDINGS)
        raise UserError(f"{path_key(key)}: {path} contains no data file; known endings: {known}") from None
    except (DatasetsError, OSError, RuntimeError, StopIteration, TypeError, ValueError, *DAMAGED) as error:
        refuse_hub_answer(error, path, key)
        if not Path(path).exists() and isinstance(error, OSError):
            kind = type(error).__name__
            raise UserError(f"{path_key(key)}: the Hub dataset {path!r} cannot be reached ({kind}); {copy}") from None
        reason = "it is empty" if isinstance(error, StopIteration) else first_line(error)
        if configurations := re.search(r"available configs: \[(.*?)\]", str(error)):
            reason = f"it has several configurations ({configurations[1]})"
        remedy = next((advice for words, advice in ADVICE.items() if words in reason), "")
        if "[" in split and "Bad split" in reason:
            local, hub = "; files have no slices: set {limit}", "; a slice of a split needs {streaming}=false"
            remedy = local if Path(path).exists() else hub
        part = f"split {split}" if name is None else f"name {name}, split {split}"
        arguments = {argument: named(key, argument) for argument in ("name", "limit", "streaming")}
        raise UserError(f"{key}: {path} ({part}) cannot be read: {reason}{remedy.format(**arguments)}") from None


def refuse_hub_answer(error: BaseException, path: str, key: str) -> None:
    """Raise UserError where an answer of the Hub, which `datasets` reports as a missing file, caused an error."""
    from huggingface_hub.errors import HfHubHTTPError

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, HfHubHTTPError):
        cause = cause.__cause__
    if cause is None or (status := cause.response.status_code) == 404:
        return
    remedy = "accept its terms on its page, and log in with `hf auth login`" if status in (401, 403) else "try later"
    raise UserError(f"{path_key(key)}: the Hub does not give out the dataset {path!r} (status {status}); {remedy}")


def files_of_one_kind(files: list[str], path: str, key: str) -> tuple[list[str], str]:
    """The files that are not empty, and what they are: an ending of KNOWN_ENDINGS, or WIKI.

    Raises UserError for files of several kinds, and for those that cannot be read.
    """
    kinds = {file: kind_of(file, key) for file in files}
    full = [file for file in files if kinds[file] != EMPTY]
    for file in full:
        if not is_whole(file):
            raise UserError(f"{path_key(key)}: {file} is damaged or cut off; unpack it again from its source")
    distinct = sorted({kinds[file] for file in full})
    if not distinct:
        raise UserError(f"{path_key(key)}: {path} is empty")
    if len(distinct) > 1:
        raise UserError(
            f"{path_key(key)}: files of several kinds ({', '.join(distinct)}); give a pattern for one kind"
            f"{others_in(key, distinct)}"
        )
    (kind,) = distinct
    if kind == WIKI or any(ending(Path(file)) not in KNOWN_ENDINGS for file in full):
        log_once(f"{key}: {path} is read as {CONTENTS[kind]}, which its content shows")
    return full, kind


def kind_of(file: str, key: str) -> str:
    """What a file is: an ending of KNOWN_ENDINGS, WIKI or EMPTY; by its content if its ending is .txt or unknown."""
    known = ending(Path(file))
    if known in KNOWN_ENDINGS and known != ".txt":
        return known if Path(file).stat().st_size else EMPTY
    if known == ".zip":
        raise UserError(f"{path_key(key)}: {file} is an archive; unpack it, and give a folder or pattern of its files")
    content = recognize(file)
    if known == ".txt":
        if content == BINARY and is_utf16(file):
            raise UserError(f"{path_key(key)}: {file} is in UTF-16 or UTF-32; save it as UTF-8")
        return content if content in (WIKI, EMPTY) else ".txt"
    if content == BINARY:
        raise UserError(
            f"{path_key(key)}: {file} is neither text in UTF-8 nor a kind of file that is known by its ending: "
            f"{', '.join(KNOWN_ENDINGS)}, optionally followed by {', '.join(COMPRESSIONS)}"
        )
    if content == WIKI_DUMP:
        raise UserError(
            f"{path_key(key)}: {file} is a wiki's XML dump; run WikiExtractor on it and give the folder that it writes"
        )
    return content


def advise_unit(files: list[str], path: str, text_unit: str, key: str) -> None:
    """Log one line where text files are read line by line and something else is plainly meant."""
    if text_unit == "line" and (advice := advised_unit(files)):
        unit, sign = advice
        separated = "one a file" if unit == "document" else "separated by blank lines"
        log_once(
            f"{named(key, 'text_unit')}=line makes each line a document, but in {path} {sign}; "
            f"set {named(key, 'text_unit')}={unit} ({separated})"
        )


@cache
def log_once(message: str) -> None:
    """Log a message the first time that this process has it; a source is read several times."""
    logger.warning(message)


def holds_tsv(path: str) -> bool:
    """Whether a path, a file in it, or a file that matches it is a TSV file."""
    local = Path(path)
    files = local.rglob("*.tsv*") if local.is_dir() else map(Path, glob.glob(path, recursive=True))
    return any(ending(file) == ".tsv" for file in files)


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


def ending(file: Path) -> str:
    """A file's ending in small letters, without that of a compression."""
    return (Path(file.stem).suffix if file.suffix.lower() in COMPRESSIONS else file.suffix).lower()
