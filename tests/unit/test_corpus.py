"""The corpus: every kind of file gives the same documents, and messages name what is missing."""

import gzip
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertpre.data import sample
from bertpre.data.corpus import READERS, Document, read_documents
from bertpre.errors import UserError

TABLE = pd.DataFrame({"text": ["A first text.", 'Second, "quoted"', "日本語\tand a tab"], "label": [1, 0, 1]})
WRITERS: dict[str, Callable[[pd.DataFrame, Path], object]] = {
    ".parquet": lambda table, file: table.to_parquet(file),
    ".jsonl": lambda table, file: table.to_json(file, orient="records", lines=True),
    ".json": lambda table, file: table.to_json(file, orient="records", lines=True),
    ".csv": lambda table, file: table.to_csv(file, index=False),
    ".tsv": lambda table, file: table.to_csv(file, index=False, sep="\t"),
    ".txt": lambda table, file: file.write_text("\n".join(table["text"]), encoding="utf-8"),
}


def write(file: Path, table: pd.DataFrame = TABLE) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[file.suffix](table, file)
    return str(file)


def mistake(path: Path | str, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        list(read_documents(str(path), **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", READERS)
def test_a_file_of_any_kind_gives_the_same_documents(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"corpus{suffix}")
    expected = [Document(f"train/{number}", text) for number, text in enumerate(TABLE["text"])]
    assert list(read_documents(path)) == expected


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".txt"])
def test_a_compressed_file_is_read(suffix: str, tmp_path: Path) -> None:
    plain = Path(write(tmp_path / f"corpus{suffix}"))
    (tmp_path / f"other{suffix}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    texts = [document.text for document in read_documents(str(tmp_path / f"other{suffix}.gz"))]
    assert texts == TABLE["text"].tolist()


def test_zstandard_is_read_if_its_library_is_installed(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    file = tmp_path / "corpus.jsonl.zst"
    file.write_bytes(zstandard.compress(Path(write(tmp_path / "corpus.jsonl")).read_bytes()))
    assert [document.text for document in read_documents(str(file))] == TABLE["text"].tolist()


@pytest.mark.parametrize(
    ("unit", "texts"),
    [
        ("line", ["One.", "Two.", "", "Three.", "", "", "Four."]),
        ("paragraph", ["One.\nTwo.", "Three.", "Four."]),
        ("document", ["One.\nTwo.\n\nThree.\n\n\nFour.\n"]),
    ],
)
def test_a_text_file_is_split_into_lines_paragraphs_or_not_at_all(unit: str, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\nTwo.\n\nThree.\n\n\nFour.\n")
    read = [document.text for document in read_documents(str(tmp_path / "a.txt"), text_unit=unit)]
    assert [text.strip() for text in read if text.strip()] == [text.strip() for text in texts if text.strip()]
    in_folder = read_documents(str(tmp_path), text_unit=unit)
    assert [document.text for document in in_folder] == read


def test_a_pattern_gives_its_files_in_order(tmp_path: Path) -> None:
    for number in (2, 10, 1):
        (tmp_path / f"{number:02d}").mkdir()
        write(tmp_path / f"{number:02d}" / "part.jsonl", pd.DataFrame({"text": [f"text {number}"]}))
    read = read_documents(str(tmp_path / "**" / "*.jsonl"))
    assert [document.text for document in read] == ["text 1", "text 2", "text 10"]


def test_a_pattern_must_match_files_of_one_kind(tmp_path: Path) -> None:
    write(tmp_path / "a.csv"), write(tmp_path / "b.jsonl")
    assert "matches no file" in mistake(tmp_path / "*.txt")
    assert "files of several kinds (.csv, .jsonl)" in mistake(tmp_path / "*")
    assert "is a pattern of files, which has only the split 'train'" in mistake(tmp_path / "*.csv", split="test")


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("Fl\u00e5klypa".encode("latin-1"))
    assert "can't decode byte 0xe5" in mistake(tmp_path / "latin.txt")


def test_a_very_long_line_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 5_000_000 + "\nshort")
    assert [len(document.text) for document in read_documents(str(tmp_path / "long.txt"))] == [25_000_000, 5]


def test_columns_may_have_other_names_and_order(tmp_path: Path) -> None:
    table = pd.DataFrame({"stars": [3], "body": ["a text"], "title": ["x"]})
    path = write(tmp_path / "corpus.parquet", table)
    documents = list(read_documents(path, text_column="body"))
    assert documents == [Document("train/0", "a text")]


def test_a_missing_text_is_an_empty_document(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", pd.DataFrame({"text": ["one", None]}))
    assert [document.text for document in read_documents(path)] == ["one", ""]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder laid out as a Hub dataset."""
    write(tmp_path / "hub" / "train-00000-of-00001.parquet")
    write(tmp_path / "hub" / "test-00000-of-00001.parquet", TABLE.iloc[:1])
    return tmp_path / "hub"


def test_splits_of_a_folder_are_joined_by_plus(folder: Path) -> None:
    ids = [document.id for document in read_documents(str(folder), split="test+train")]
    assert ids == ["test/0", "train/0", "train/1", "train/2"]


def test_the_limit_keeps_the_first_of_each_split(folder: Path) -> None:
    ids = [document.id for document in read_documents(str(folder), split="train+test", limit=2)]
    assert ids == ["train/0", "train/1", "test/0"]


@pytest.mark.parametrize("split", sample.SPLITS)
def test_the_sample_is_a_corpus(split: str) -> None:
    read = list(itertools.islice(read_documents("sample", split=split), 3))
    made = list(sample.generate(split, 3))
    assert [document.text for document in read] == [item.text for item in made]


def test_a_folder_with_files_of_no_split_is_refused(tmp_path: Path) -> None:
    # By its name, train-ride.txt is the split train and its only file.
    for name in ("monday", "tuesday", "train-ride"):
        (tmp_path / f"{name}.txt").write_text("Some words.\n")
    said = mistake(tmp_path)
    assert "2 of the 3 files in" in said and "belong to no split (e.g. monday.txt)" in said
    assert len(list(read_documents(f"{tmp_path}/**/*.txt"))) == 3


def test_documents_stream(tmp_path: Path) -> None:
    line = json.dumps({"text": "word " * 200})
    (tmp_path / "a.jsonl").write_text(f"{line}\n" * 30_000 + "{broken")  # 30 MB
    documents = read_documents(str(tmp_path / "a.jsonl"))
    assert next(documents).text == "word " * 200
    with pytest.raises(UserError, match="cannot be read"):
        list(documents)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text_column": "body"}, "corpus.text_column: {path} has no column 'body'; its columns are text, label"),
        ({"text_column": "label"}, "corpus.text_column: 'label' of {path} holds int, not text"),
        ({"split": "validation"}, "Bad split: validation. Available splits: ['train', 'test']"),
        ({"name": "german"}, "'german' not found"),
        ({"text_column": "body", "key": "finetune"}, "finetune.text_column: "),
    ],
)
def test_a_missing_column_split_or_configuration_is_named(options: dict[str, str], words: str, folder: Path) -> None:
    assert words.format(path=folder) in mistake(folder, **options)


def test_a_single_file_has_only_the_split_train(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.csv")
    assert "is a single file, which has only the split 'train', not 'test'" in mistake(path, split="test")
    assert "not 'unsupervised'" in mistake(path, split="train+unsupervised")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("zero.csv", b"", "No columns to parse"),
        ("zero.jsonl", b"", "it is empty"),
        ("header.csv", b"text,label\n", "is empty: it holds no row of text"),
        ("broken.jsonl", b"{not json\n", "cannot be read: JSON parse error"),
        ("half.jsonl", b'{"text": "good"}\n{"text": \n', "cannot be read"),
        ("broken.parquet", b"PAR1 is how it begins", "cannot be read: Parquet magic bytes not found"),
        ("ragged.csv", b'text,label\n"a,1\n', "cannot be read"),
        (
            "corpus.docx",
            b"x",
            "ends in '.docx'; known endings: .parquet, .jsonl, .json, .csv, .tsv, .txt, optionally",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    message = mistake(tmp_path / name)
    assert words in message
    assert str(tmp_path / name) in message
    assert message.startswith("corpus")


def test_a_folder_without_data_is_not_taken_for_a_hub_id(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    assert "contains no data file; known endings" in mistake(tmp_path / "notes")
    (tmp_path / "notes" / "README.md").write_text("nothing here")
    assert "contains no data file; known endings" in mistake(tmp_path / "notes")


@pytest.mark.parametrize("path", ["imdb", "no/such/file", "reviews/train.csv", "/nowhere/at/all", ""])
def test_a_path_that_is_neither_local_nor_a_hub_id_is_refused(path: str) -> None:
    assert f"corpus.path: {path!r} is neither a file or folder nor a Hub id (owner/name)" in mistake(path)


def test_the_message_for_an_unreachable_hub_suggests_a_local_copy() -> None:
    message = mistake("somebody/reviews", key="finetune")  # tests run offline
    assert message.startswith("finetune.path: ")
    assert "give a local copy with the same layout: finetune.path=FOLDER" in message


def test_the_sample_has_only_four_splits() -> None:
    message = mistake("sample", split="train+validation")
    assert "has no split 'validation'; it has train, test, unsupervised, articles" in message


def write_parquet(file: Path, texts: list[str], column: str = "text") -> None:
    """A Parquet file with a row group for each ten texts."""
    pq.write_table(pa.table({column: texts, "url": texts}), file, row_group_size=10)


def test_parquet_is_read_one_row_group_at_a_time(tmp_path: Path) -> None:
    texts = [random.Random(number).randbytes(10_000).hex() for number in range(2000)]  # 40 MB in groups of 200 kB
    write_parquet(tmp_path / "train.parquet", texts)
    before, held, seen = pa.total_allocated_bytes(), 0, []
    for document in read_documents(str(tmp_path)):
        seen.append(document.text)
        held = max(held, pa.total_allocated_bytes() - before)
    assert seen == texts
    assert 0 < held < 4_000_000


def test_a_parquet_file_with_other_columns_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-00000-of-00002.parquet", ["one"])
    write_parquet(tmp_path / "train-00001-of-00002.parquet", ["two"], column="body")
    with pytest.raises(UserError, match=r"train-00001-of-00002.parquet has no column text"):
        list(read_documents(str(tmp_path)))
