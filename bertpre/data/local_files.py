"""Local files and folders: which of them are read, and as what."""

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertpre.console import log_once
from bertpre.data.csv_files import CsvFiles
from bertpre.data.formats import (
    BINARY,
    EMPTY,
    JSON_LINES,
    TEXT,
    WIKI,
    WIKI_DUMP,
    advised_unit,
    are_tagged,
    is_utf8,
    is_utf16,
    read_articles,
    read_head,
    read_paragraphs,
    recognize,
)
from bertpre.data.tables import (
    Columns,
    JsonFiles,
    ParquetFiles,
    TaggedFiles,
    TextFiles,
    named,
    path_key,
    read_document,
    read_lines,
)
from bertpre.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset, Features, IterableDataset


KNOWN_ENDINGS = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".txt")
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
CONTENTS = {WIKI: "articles of WikiExtractor", JSON_LINES: "JSON lines", TEXT: "text"}
METADATA = {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}


def with_split(path: str, split: str) -> str:
    """How messages name a split of a folder or dataset; files have no splits."""
    return path if Path(path).is_file() or glob.has_magic(path) else f"{path} (split {split})"


def load_files(files: list[str], path: str, text_unit: str, key: str) -> Columns:
    """The rows of files of one kind; `path` is how messages name them together.

    `text_unit` is what a row is in a text file: a line, a paragraph, a document, or `tagged`, a sentence with its tags.
    """
    files, kind = files_of_one_kind(files, path, key)
    if kind == WIKI:
        return TextFiles(files, read_articles)
    if kind == ".parquet":
        return ParquetFiles(files)
    if kind == ".txt" and text_unit == "tagged":
        return TaggedFiles(files)
    if kind == ".txt":
        advise_unit(files, path, text_unit, key)
    if kind in (".csv", ".tsv"):
        return CsvFiles(files, "," if kind == ".csv" else "\t")
    if kind in (".json", ".jsonl"):
        return JsonFiles(files)
    return TextFiles(files, {"line": read_lines, "paragraph": read_paragraphs, "document": read_document}[text_unit])


def load_folder(
    folder: Path, name: str | None, split: str, text_unit: str, key: str
) -> "Dataset | IterableDataset | Columns":
    """One split of a folder: as `datasets` reads it or saved it, or by content where it knows no file's ending."""
    from datasets import load_dataset, load_from_disk

    places = data_in(folder)
    refuse_dangling(places, key)
    found, declared, by_content = files_by_split(folder, name)
    saved = saved_splits(folder)
    if (by_content or saved) and split not in found:
        raise UserError(f"{named(key, 'split')}: {folder} has no split {split!r}; it has {', '.join(found)}")
    if saved:
        return load_from_disk(str(saved[split])).with_format(None)
    refuse_unread(folder, places, found, key, by_content)
    refuse_files_elsewhere(folder, found, key)
    endings = {ending(Path(file)) for file in found.get(split, ())}
    if declared and endings and endings <= {".json", ".jsonl"}:  # by the README.md: the names of classes, for example
        return JsonFiles(files_of_one_kind(list(found[split]), str(folder), key)[0], features=declared)
    if by_content or (endings and endings <= set(KNOWN_ENDINGS)):
        return load_files(list(found[split]), str(folder), text_unit, key)
    return load_dataset(str(folder.resolve()), name, split=split, streaming=True)


def files_by_split(folder: Path, name: str | None) -> "tuple[dict[str, list[str]], Features | None, bool]":
    """A folder's files by the split that `datasets` reads in their names, and the columns that its README.md declares.

    The last value is True where `datasets` knows no file's ending, so that their content counts.
    """
    from datasets import load_dataset_builder
    from datasets.data_files import DataFilesDict, get_data_patterns

    if saved := saved_splits(folder):
        return {each: sorted(map(str, place.glob("*.arrow"))) for each, place in saved.items()}, None, False
    if name is None and (files := files_of_no_split(folder.resolve())):
        return {"train": files}, None, False
    place = str(folder.resolve())  # `datasets` takes a name from the end of the path, which . has not
    found: Mapping[Any, Any] = {}
    declared = None
    with suppress(FileNotFoundError):
        builder = load_dataset_builder(place, name)
        found, declared = builder.config.data_files or {}, builder.info.features
    files = [file for files in found.values() for file in files]
    is_known = any(ending(Path(file)) in KNOWN_ENDINGS for file in files)
    by_content = not is_known and not (files and recognize(files[0]) == BINARY)  # `datasets` knows .arrow and others
    if by_content:
        found = DataFilesDict.from_patterns(get_data_patterns(place), place)
    return {str(split): list(files) for split, files in found.items()}, declared, by_content


def files_of_no_split(folder: Path) -> list[str]:
    """All files of a folder, where they have one known ending and no name makes a split; otherwise none.

    `datasets` finds the same, but searches the folder for one pattern after the other: half a minute for 20,000 files.
    """
    from datasets.data_files import NON_WORDS_CHARS, SPLIT_KEYWORDS

    words = "|".join(word for words in SPLIT_KEYWORDS.values() for word in words)
    makes_split = re.compile(rf"(?:^|[{NON_WORDS_CHARS}/])(?:{words})(?:[{NON_WORDS_CHARS}/]|$)").search
    files: list[Path] = []
    for place, folders, names in os.walk(folder):
        if any(os.path.islink(os.path.join(place, each)) for each in folders) or METADATA.intersection(names):
            return []
        files += map(Path(place).relative_to(folder).joinpath, names)
    files = list(filter(is_data, files))
    files = [file.relative_to(folder) for file in outside_runs([folder / file for file in files], folder)]
    endings = set(map(ending, files))
    if len(endings) != 1 or not endings <= set(KNOWN_ENDINGS) or any(makes_split(file.as_posix()) for file in files):
        return []
    return sorted(str(folder / file) for file in files)


def saved_splits(folder: Path) -> dict[str, Path]:
    """The folder of each split, where `save_to_disk` of `datasets` wrote this one; otherwise none."""
    splits, state = folder / "dataset_dict.json", folder / "state.json"
    if splits.is_file():
        return {split: folder / split for split in json.loads(splits.read_text(encoding="utf-8"))["splits"]}
    if state.is_file() and (folder / "dataset_info.json").is_file():
        return {json.loads(state.read_text(encoding="utf-8")).get("_split") or "train": folder}
    return {}


def refuse_unread(folder: Path, places: list[Path], found: dict[str, list[str]], key: str, by_content: bool) -> None:
    """Raise UserError where files of the folder, which holds `places`, would silently be ignored.

    `datasets` assigns splits by file name: if there is a train.txt, files without a split's name are ignored. The
    metadata of a README.md may list the files instead. Files without a known ending are read only where all are so
    (`by_content`); beside others a line says that they are not read.
    """
    if lists_files(folder / "README.md"):
        return
    read = {Path(file).resolve() for files in found.values() for file in files}
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
        usual = Counter(file.suffix for file in files).most_common(1)[0][0]
        pattern = f"{folder}/**/*{usual}{others_in(key, kinds)}"
        raise UserError(
            f"{path_key(key)}: {len(unread)} of the {len(files)} files in {folder} belong to no split (e.g. "
            f"{unread[0].name}). In a folder, names such as train and test assign files to splits, and all files have "
            f"the same ending; to read {which} give a pattern, e.g. {pattern}"
        )


def data_in(folder: Path) -> list[Path]:
    """What lies in a folder and may be data, sorted: neither hidden nor in a run directory."""
    visible = [place for place in sorted(folder.rglob("*")) if is_data(place.relative_to(folder))]
    return outside_runs(visible, folder)


def refuse_dangling(files: Iterable[Path], key: str) -> None:
    """Raise UserError for links of data files that lead nowhere, as git-annex and DVC leave until files are fetched."""
    if lost := [each for each in files if each.is_symlink() and not each.exists() and ending(each) in KNOWN_ENDINGS]:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise UserError(
            f"{path_key(key)}: {min(lost)} is a link to a file that is not there{more}; fetch what it leads to, or "
            "remove it"
        )


def others_in(key: str, kinds: Sequence[str]) -> str:
    """Where files of further kinds go: a corpus has a key for them."""
    return ", and name the others in corpus.more" if path_key(key) == "corpus.path" and len(kinds) > 1 else ""


def local_files(path: str) -> list[Path]:
    """The files that a source may read, if it is local: a file, those of a pattern, or the visible ones of a folder."""
    found = [Path(name) for name in [path, *glob.glob(path, recursive=True)]]
    folders = [place for place in found if place.is_dir()]
    inside = [file for place in folders for file in place.rglob("*") if is_data(file.relative_to(place))]
    return sorted({file for file in found + inside if file.is_file()})


def outside_runs(files: Iterable[Path], root: Path) -> list[Path]:
    """The files that lie in no run directory below `root`: a vocabulary and logs are no corpus."""

    @cache
    def is_in_run(place: Path) -> bool:
        if place in (root, place.parent):
            return False
        return ((place / "recipe.yaml").is_file() and (place / "tokenizer").is_dir()) or is_in_run(place.parent)

    return [file for file in files if not is_in_run(file.parent)]


def refuse_files_elsewhere(folder: Path, found: Mapping[str, Sequence[str]], key: str) -> None:
    """Raise UserError where a README.md names files outside its folder: whoever wrote it would choose what is read."""
    inside = os.path.abspath(folder.resolve()) + os.sep
    for file in chain.from_iterable(found.values()):
        if not os.path.abspath(file).startswith(inside):
            raise UserError(
                f"{path_key(key)}: {folder}/README.md names {file}, which is not in that folder; copy it there, "
                f"or give the files themselves in {path_key(key)}"
            )


def lists_files(readme: Path) -> bool:
    """Whether the metadata at the head of a README.md say which files belong to which split."""
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    metadata = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    return metadata is not None and re.search(r"\b(data_files|data_dir)\s*:", metadata[1]) is not None


def is_data(file: Path) -> bool:
    """Whether a file, by its path in a folder, may hold data: it is not hidden and does not describe the folder."""
    is_metadata = file.name in METADATA and (len(file.parts) == 1 or file.name != "README.md")
    return not any(part.startswith((".", "__")) for part in file.parts) and not is_metadata


def files_of_pattern(path: str, key: str) -> list[str]:
    """The files that match a pattern with `*`, `?`, `[]` or `**`, sorted; none if the path is not a pattern."""
    if not glob.has_magic(path) or Path(path).exists():
        return []
    found = list(map(Path, sorted(glob.glob(path, recursive=True))))
    before_pattern = takewhile(lambda part: not glob.has_magic(part), Path(path).parts)
    outside = outside_runs(found, Path(*before_pattern))
    refuse_dangling(outside, key)
    files = [str(file) for file in outside if file.is_file()]
    if left_out := sum(file.is_file() for file in found) - len(files):
        log_once(f"{key}: {left_out:,} files of run directories match {path!r} and are not read")
    if not files:
        raise UserError(f"{path_key(key)}: the pattern {path!r} matches no file")
    return files


def files_of_one_kind(files: list[str], path: str, key: str) -> tuple[list[str], str]:
    """The files that are not empty, and what they are: an ending of KNOWN_ENDINGS, or WIKI.

    Raises UserError for files of several kinds, and for those that cannot be read.
    """
    kinds = {file: kind_of(file, key) for file in files}
    refuse_other_encodings([file for file in files if kinds[file] == BINARY], len(files), path, key)
    full = [file for file in files if kinds[file] != EMPTY]
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
    """What a file is: an ending of KNOWN_ENDINGS, WIKI, EMPTY, or BINARY where a .txt is not UTF-8.

    By its content if its ending is .txt or unknown.
    """
    known = ending(Path(file))
    if known in KNOWN_ENDINGS and known != ".txt":
        if known != ".parquet" and is_utf16(file):
            raise UserError(f"{path_key(key)}: {file} is in UTF-16 or UTF-32; save it as UTF-8")
        return known if Path(file).stat().st_size else EMPTY
    if known == ".zip":
        raise UserError(f"{path_key(key)}: {file} is an archive; unpack it, and give a folder or pattern of its files")
    content = recognize(file)
    if known == ".txt":
        if content == BINARY and is_utf16(file):
            raise UserError(f"{path_key(key)}: {file} is in UTF-16 or UTF-32; save it as UTF-8")
        if content == JSON_LINES:
            log_once(f"{path_key(key)}: {file} holds JSON lines and is read as plain text: rename it to .jsonl")
        if content == BINARY and not is_utf8(read_head(file)):
            return BINARY
        return content if content in (WIKI, EMPTY) else ".txt"  # with a zero byte here and there, too
    if known == ".arrow":
        raise UserError(f"{path_key(key)}: {file} is an Arrow file; give the folder that it is in")
    if known in (".xlsx", ".xls", ".ods"):
        raise UserError(f"{path_key(key)}: {file} is a spreadsheet; save it as CSV")
    if content == BINARY:
        raise UserError(
            f"{path_key(key)}: {file} is neither text in UTF-8 nor a kind of file that is known by its ending: "
            f"{', '.join(KNOWN_ENDINGS)}, all but .parquet optionally followed by {', '.join(COMPRESSIONS)}"
        )
    if content == WIKI_DUMP:
        raise UserError(
            f"{path_key(key)}: {file} is a wiki's XML dump; run WikiExtractor on it and give the folder that it writes"
        )
    return content


def refuse_other_encodings(files: list[str], count: int, path: str, key: str) -> None:
    """Raise UserError if there are text files, of `count`, whose beginning is not UTF-8; all are counted at once."""
    if not files:
        return
    named = ", ".join(files[:3])
    which = f"{named} is" if count == 1 else f"{len(files):,} of the {count:,} files of {path} are"
    examples = "" if count == 1 else f" (e.g. {named})"
    raise UserError(
        f"{path_key(key)}: {which} not text in UTF-8{examples}; save as UTF-8, e.g. with: "
        "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW_FILE"
    )


def advise_unit(files: list[str], path: str, text_unit: str, key: str) -> None:
    """Log one line where text files are read line by line and something else is plainly meant."""
    if text_unit != "line":
        return
    if are_tagged(files[0]):
        remedy = "set finetune.task=tokens" if key.startswith("finetune") else "write one sentence a line"
        log_once(f"{path_key(key)}: the lines of {path} are words with tags, and each is read as a text; {remedy}")
        return
    if not (advice := advised_unit(files)):
        return
    unit, sign = advice
    if key.startswith("finetune"):  # its sections have no such key
        log_once(
            f"{path_key(key)}: each line is read as a text, but in {path} {sign}; give one text a line, or a CSV or "
            "JSON file"
        )
        return
    unit_key, separated = named(key, "text_unit"), "one a file" if unit == "document" else "separated by blank lines"
    log_once(f"{unit_key}=line makes each line a document, but in {path} {sign}; set {unit_key}={unit} ({separated})")


def holds_tsv(path: str) -> bool:
    """Whether a path, a file in it, or a file that matches it is a TSV file."""
    local = Path(path)
    files = local.rglob("*.tsv*") if local.is_dir() else map(Path, glob.glob(path, recursive=True))
    return any(ending(file) == ".tsv" for file in files)


def is_table(file: str) -> bool:
    """Whether a file has rows and columns, by its ending."""
    return ending(Path(file)) in KNOWN_ENDINGS and ending(Path(file)) != ".txt"


def ending(file: Path) -> str:
    """A file's ending in small letters, without that of a compression."""
    return (Path(file.stem).suffix if file.suffix.lower() in COMPRESSIONS else file.suffix).lower()
