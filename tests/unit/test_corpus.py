"""The corpus: every kind of file gives the same documents, and messages name what is missing."""

import bz2
import gzip
import itertools
import json
import lzma
import os
import random
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from bertpre.data import sample
from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import TextSource, mention_unread_splits, open_table, read_documents
from bertpre.data.csv_files import CsvFiles, delimiter_in
from bertpre.data.failures import remedy
from bertpre.data.formats import advised_unit
from bertpre.data.local_files import KNOWN_ENDINGS, files_by_split, files_of_no_split
from bertpre.data.sentences import split_sentences
from bertpre.data.tables import JsonFiles, ParquetFiles, TextFiles, read_document
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


@pytest.mark.parametrize("suffix", KNOWN_ENDINGS)
def test_a_file_of_any_kind_gives_the_same_documents(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"corpus{suffix}")
    assert list(read_documents(path)) == TABLE["text"].tolist()


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".txt"])
def test_a_compressed_file_is_read(suffix: str, tmp_path: Path) -> None:
    plain = Path(write(tmp_path / f"corpus{suffix}"))
    for ending, compress in {".gz": gzip.compress, ".xz": lzma.compress}.items():
        (tmp_path / ending / f"train{suffix}{ending}").parent.mkdir()
        (tmp_path / ending / f"train{suffix}{ending}").write_bytes(compress(plain.read_bytes()))
        for path in (tmp_path / ending / f"train{suffix}{ending}", tmp_path / ending):
            assert list(read_documents(str(path))) == TABLE["text"].tolist()


def test_zstandard_is_read_if_its_library_is_installed(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    file = tmp_path / "corpus.jsonl.zst"
    file.write_bytes(zstandard.compress(Path(write(tmp_path / "corpus.jsonl")).read_bytes()))
    assert list(read_documents(str(file))) == TABLE["text"].tolist()
    wide = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=28)).compressobj()
    file.write_bytes(wide.compress((tmp_path / "corpus.jsonl").read_bytes()) + wide.flush())  # as `zstd --long=28` does
    assert list(read_documents(str(file))) == TABLE["text"].tolist()


@pytest.mark.parametrize("ending", ["txt", "csv", "jsonl"])
def test_of_many_files_the_damaged_one_is_named(ending: str, tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.{ending}")
    bad = tmp_path / f"b.{ending}"
    whole = gzip.compress(bad.read_bytes())
    bad.write_bytes(bad.read_bytes() + b'{"text": "caf\xe9"}\n')
    said = "1 of the 2 files" if ending == "txt" else f"{bad}: 'utf-8' codec can't decode byte 0xe9"
    assert said in mistake(tmp_path / f"*.{ending}")
    for name in "ab":
        (tmp_path / f"{name}.{ending}.gz").write_bytes(whole if name == "a" else whole[:-12])
    cut = mistake(tmp_path / f"*.{ending}.gz")
    assert f"{tmp_path}/b.{ending}.gz: " in cut and cut.endswith("; it is cut off: copy it again")
    for name in "ab":
        (tmp_path / f"{name}.{ending}.bz2").write_bytes(bz2.compress(gzip.decompress(whole)) if name == "a" else b"no")
    assert f"{tmp_path}/b.{ending}.bz2: Invalid data stream" in mistake(tmp_path / f"*.{ending}.bz2")


def test_text_files_in_another_encoding_are_counted_before_any_is_read(tmp_path: Path) -> None:
    for name, content in {"a": "café", "b": "d" * 50 + "\0", "c": "naïve", "d": "über"}.items():
        encoding = "utf-8" if name in "ab" else "latin-1"
        (tmp_path / f"{name}.txt").write_bytes(f"{content}\n".encode(encoding))
    said = mistake(tmp_path / "*.txt")
    assert (
        f"2 of the 4 files of {tmp_path}/*.txt are not text in UTF-8 (e.g. {tmp_path}/c.txt, {tmp_path}/d.txt)" in said
    )
    assert f"{tmp_path}/c.txt is not text in UTF-8; save as UTF-8" in mistake(tmp_path / "c.txt")
    for name in "cd":
        (tmp_path / f"{name}.txt").unlink()
    assert list(read_documents(str(tmp_path / "*.txt"))) == ["café", "d" * 50 + "\0"]


def test_few_books_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertpre.data.tables.BATCH_CHARACTERS", 100)
    rows = [{"text": "word " * 15, "number": number} for number in range(9)]
    for row in rows:
        (tmp_path / f"{row['number']}.txt").write_text(row["text"])
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.table({"text": [f"{number}" * 75 for number in range(9)]}), tmp_path / "rows.parquet")
    texts = TextFiles(sorted(map(str, tmp_path.glob("*.txt"))), read_document)
    lines = JsonFiles([str(tmp_path / "lines.jsonl")], ["text"])
    for table in (texts, lines):
        assert [len(batch["text"]) for batch in table.iter(1000)] == [2, 2, 2, 2, 1]
    assert lines.column_names == ["text"] and JsonFiles(lines.files).column_names == ["text", "number"]
    of_parquet = [len(batch["text"]) for batch in ParquetFiles([str(tmp_path / "rows.parquet")]).iter(1000)]
    assert sum(of_parquet) == 9 and max(of_parquet) <= 2


@pytest.mark.parametrize(("ending", "compress"), [(".xz", lzma.compress), (".bz2", bz2.compress)])
def test_all_streams_of_a_compressed_file_are_read(
    ending: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """Python's own readers end silently at a second stream that is damaged."""
    texts = [f"Document {number}." for number in range(20_000)]
    one, two = (compress("".join(f"{text}\n" for text in part).encode()) for part in (texts[:9999], texts[9999:]))
    file = tmp_path / f"corpus.txt{ending.upper()}"
    file.write_bytes(one + two)
    assert list(read_documents(str(file))) == texts
    file.write_bytes(one + b"\0" * 4 + two)  # as .xz allows
    assert list(read_documents(str(file))) == texts
    for damaged in (one + two[:-9], one + b"no" + two, one + bytes([255 - two[0]]) + two[1:]):
        file.write_bytes(damaged)
        assert f"cannot be read: {file}: " in mistake(tmp_path / f"*{ending.upper()}")


def test_of_many_parquet_files_the_damaged_one_is_named(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.parquet")
    whole = (tmp_path / "b.parquet").read_bytes()
    flipped = whole[:4] + bytes(255 - byte for byte in whole[4:200]) + whole[200:]
    for name, content in (("b", whole[: len(whole) // 2]), ("b", flipped), ("a", b"no")):
        (tmp_path / f"{name}.parquet").write_bytes(content)
        assert f"cannot be read: {tmp_path}/{name}.parquet: " in mistake(tmp_path / "*.parquet")


def test_lines_of_json_that_are_named_text_are_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text('{"text": "one"}\n{"text": "two"}\n')
    assert len(list(read_documents(str(tmp_path / "a.txt")))) == 2
    assert "a.txt holds JSON lines and is read as plain text: rename it to .jsonl" in caplog.text


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("source", "; set text_unit=paragraph"),
        ("corpus", "; set corpus.text_unit=paragraph"),
        ("corpus.held_out", "; set corpus.text_unit=paragraph"),
        ("corpus.validation", "; set corpus.text_unit=paragraph"),
        ("finetune.unlabelled", "; give one text a line, or a CSV or JSON file"),
    ],
)
def test_advice_names_keys_that_there_are(
    key: str, advice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paragraph = textwrap.fill("The lines of this paragraph are wrapped, as in mail and in many books. " * 9, 72)
    (tmp_path / "a.txt").write_text("\n\n".join([paragraph] * 9))
    list(read_documents(str(tmp_path / "a.txt"), key=key))
    assert advice in caplog.text


def test_short_paragraphs_of_a_wrapped_book_are_joined_by_the_width_of_the_book(tmp_path: Path) -> None:
    said = [
        "“Depend upon it, my dear, that when there are twenty, I will visit them\nall.”",
        "“My dear Mr. Bennet,” said his lady to him one day, “have you heard that\nNetherfield Park is let at last?”",
        "the introduction was followed on his side by a happy readiness\nof conversation.",  # a line that ends early
    ]
    kept = [
        "He was offered the Bowl, but he left it and smiled,\nCrying, “Keep it till called for!”",
        "- flour\n- milk",
        "CHAPTER I\nThe Idle Apprentice",
        "Mr. Wood,\n12 Wych Street,\nLondon",
    ]
    prose = textwrap.fill("The lines of this paragraph are wrapped, as in mail and in many of the old books. " * 9, 72)
    file = tmp_path / "book.txt"
    file.write_text("\n\n".join([prose] * 3 + said + kept), encoding="utf-8")
    read = [clean_text(text) for text in read_documents(str(file), text_unit="paragraph")]
    assert read[3:] == [text.replace("\n", " ") for text in said] + kept
    file.write_text("\n\n".join(kept * 9), encoding="utf-8")  # nothing is wrapped
    assert [*read_documents(str(file), text_unit="paragraph")] == kept * 9


@pytest.mark.parametrize(("ending", "unit"), [("txt", "line"), ("txt", "paragraph"), ("md", "line"), ("csv", "line")])
def test_a_zstandard_file_that_is_cut_off_or_damaged_is_refused(ending: str, unit: str, tmp_path: Path) -> None:
    """Its readers take the end of such a file for the end of the corpus, or raise an error of their own."""
    zstandard = pytest.importorskip("zstandard")
    lines = ["text"] + [f"Document {number} of {number * 7919 % 1000} others." for number in range(20_000)]
    compress = zstandard.ZstdCompressor(write_checksum=True).compress  # as the program zstd does
    frames = [compress("".join(f"{line}\n" for line in part).encode()) for part in (lines[:99], lines[99:])]
    whole, file = b"".join(frames), tmp_path / f"corpus.{ending}.zst"
    file.write_bytes(whole)
    assert len(list(read_documents(str(file), text_unit=unit))) == (
        1 if unit == "paragraph" else len(lines) - (ending == "csv")
    )
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    for damaged in (whole[:middle], flipped, b"no frame" + whole):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match="it is (damaged|cut off): copy it again"):
            list(read_documents(str(file), text_unit=unit))


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
    read = list(read_documents(str(tmp_path / "a.txt"), text_unit=unit))
    assert [text.strip() for text in read if text.strip()] == [text.strip() for text in texts if text.strip()]
    in_folder = read_documents(str(tmp_path), text_unit=unit)
    assert list(in_folder) == read


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".tsv"])
def test_the_unit_of_text_files_does_not_concern_others(suffix: str, tmp_path: Path) -> None:
    write(tmp_path / f"train{suffix}")
    read = read_documents(str(tmp_path), text_unit="document")
    assert list(read) == TABLE["text"].tolist()


def test_one_json_array_is_read_as_json_lines_are(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(
        json.dumps([{"text": "one", "id": 1}, {"text": "two"}, {"other": 3}], indent=1)
    )
    for place in (tmp_path, tmp_path / "train.json"):
        assert list(read_documents(str(place))) == ["one", "two", ""]


def test_a_folder_of_json_lines_keeps_the_classes_of_its_readme(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a", "label": 1}\n')
    feature = "{name: label, dtype: {class_label: {names: {'0': bad, '1': good}}}}"
    assert open_table(str(tmp_path), None, "train", "finetune").class_names("label") is None
    head = f"dataset_info:\n  features: [{{name: text, dtype: string}}, {feature}]"
    (tmp_path / "README.md").write_text(f"---\n{head}\n---\n")
    assert open_table(str(tmp_path), None, "train", "finetune").class_names("label") == ["bad", "good"]
    (tmp_path / "train.jsonl").write_text('{"text": "2020-01-01", "label": 1}\n')
    assert list(read_documents(str(tmp_path))) == ["2020-01-01"]


def test_a_json_file_without_the_column_is_refused(tmp_path: Path) -> None:
    for name, column in (("a", "text"), ("b", "body")):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"{column}": "words"}}\n' * 3)
    assert "b.jsonl has no column text" in mistake(tmp_path)


def test_a_pattern_gives_its_files_in_order(tmp_path: Path) -> None:
    for number in (2, 10, 1):
        (tmp_path / f"{number:02d}").mkdir()
        write(tmp_path / f"{number:02d}" / "part.jsonl", pd.DataFrame({"text": [f"text {number}"]}))
    read = read_documents(str(tmp_path / "**" / "*.jsonl"))
    assert list(read) == ["text 1", "text 2", "text 10"]


def test_files_of_run_directories_are_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs/x/tokenizer").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("a text")
    for name in ("tokenizer/vocab.txt", "recipe.yaml", "notes.txt"):
        (tmp_path / "runs/x" / name).write_text("[PAD]")
    monkeypatch.chdir(tmp_path)
    for path in ("**/*.txt", str(tmp_path / "**/*.txt"), "./**/*.txt"):
        assert list(read_documents(path)) == ["a text"]
    assert list(read_documents("runs/x/*.txt")) == ["[PAD]"]  # asked for
    (tmp_path / "runs/x/recipe.yaml").unlink()
    assert list(read_documents("**/*.txt")) == ["a text", "[PAD]", "[PAD]"]


def test_a_folder_with_a_run_directory_is_read_without_it(tmp_path: Path) -> None:
    (tmp_path / "run/tokenizer").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "run/tokenizer/vocab.txt").write_text("[PAD]")
    (tmp_path / "run/recipe.yaml").write_text("")
    assert list(read_documents(str(tmp_path))) == ["a text"]


def test_a_readme_with_metadata_that_are_not_yaml_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "README.md").write_text("---\ntitle: Notes: part 1\n---\n")
    assert "README.md" in mistake(tmp_path) and "not valid YAML" in mistake(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_a_pattern_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "a.txt").chmod(0)
    assert "a.txt" in mistake(tmp_path / "*.txt")


def test_a_pattern_must_match_files_of_one_kind(tmp_path: Path) -> None:
    write(tmp_path / "a.csv"), write(tmp_path / "b.jsonl")
    assert "matches no file" in mistake(tmp_path / "*.txt")
    assert "files of several kinds (.csv, .jsonl)" in mistake(tmp_path / "*")
    assert "is a pattern of files, which has only the split 'train'" in mistake(tmp_path / "*.csv", split="test")


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("Fl\u00e5klypa".encode("latin-1"))
    assert "latin.txt is not text in UTF-8; save as UTF-8" in mistake(tmp_path / "latin.txt")


def test_a_very_long_line_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 5_000_000 + "\nshort")
    assert [len(text) for text in read_documents(str(tmp_path / "long.txt"))] == [25_000_000, 5]


def test_columns_may_have_other_names_and_order(tmp_path: Path) -> None:
    table = pd.DataFrame({"stars": [3], "body": ["a text"], "title": ["x"]})
    path = write(tmp_path / "corpus.parquet", table)
    assert list(read_documents(path, text_column="body")) == ["a text"]


def test_a_missing_text_is_an_empty_document(tmp_path: Path) -> None:
    path = write(tmp_path / "corpus.jsonl", pd.DataFrame({"text": ["one", None]}))
    assert list(read_documents(path)) == ["one", ""]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder laid out as a Hub dataset."""
    write(tmp_path / "hub" / "train-00000-of-00001.parquet")
    write(tmp_path / "hub" / "test-00000-of-00001.parquet", TABLE.iloc[:1])
    return tmp_path / "hub"


def test_splits_of_a_folder_are_joined_by_plus(folder: Path) -> None:
    texts = TABLE["text"].tolist()
    assert list(read_documents(str(folder), split="test+train")) == texts[:1] + texts


def test_splits_of_a_folder_that_no_source_reads_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = TextSource(str(folder)), TextSource(str(folder), split="test", key="corpus.more.0")
    mention_unread_splits([one, other])
    mention_unread_splits([TextSource("sample"), TextSource(str(folder), split="train+test")])
    assert not caplog.messages
    mention_unread_splits([one])
    assert caplog.messages == [
        f"corpus.split: the names of files or folders in {folder} make the splits train, test; not read: test. To read "
        "all: corpus.split=train+test"
    ]


def test_rows_of_json_that_lack_a_key_of_others_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one"}\n{"Text": "two"}\n{"text": null}\n')
    assert list(read_documents(str(file))) == ["one", "", ""]
    assert caplog.messages == [f"{file}: 1 of 3 rows have no key 'text', as if it were empty"]


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ";"), ("a.csv.gz", "\t"), ("a.tsv", "|"), ("a.tsv", ",")])
def test_another_delimiter_is_found_in_the_first_rows(
    name: str, delimiter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pd.DataFrame({"text": ["Good, really", 'so "so"; or\tnot | at all'], "label": [1, 0]})
    rows = pd.concat([rows] * 150)
    rows.to_csv(tmp_path / name, index=False, sep=delimiter)
    table = open_table(str(tmp_path / name), None, "train", "corpus")
    assert list(table.rows([("text_column", "text"), ("label", "label")])) == list(
        zip(rows["text"], "10" * 150, strict=True)
    )
    assert f"{name}: its columns are separated by {delimiter!r}, as its first rows show" in caplog.text


@pytest.mark.parametrize("text", ["comment; free\nI like it; really\nno\n", '"a|b"\nx|y\n', "a\nb;c\n", ""])
def test_a_text_with_a_semicolon_is_not_cut(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert delimiter_in(str(tmp_path / "a.csv"), ",") == ","


def test_the_limit_keeps_the_first_of_each_split(folder: Path) -> None:
    texts = TABLE["text"].tolist()
    assert list(read_documents(str(folder), split="train+test", limit=2)) == texts[:2] + texts[:1]
    assert mistake(folder, split="train[:50%]").endswith("; files have no slices: set corpus.limit")


def test_messages_name_only_keys_that_there_are(folder: Path) -> None:
    for key, end in {"evaluate": "no slices: set evaluate.limit", "corpus.held_out": "with these rows alone"}.items():
        assert mistake(folder, split="train[:50%]", key=key).endswith(end)
    several = "it has several configurations (['a', 'b'])"
    assert remedy(several, "owner/texts", "train", "corpus.more.0") == "; set corpus.more.0.name to one of them"
    assert remedy(several, "owner/texts", "train", "evaluate") == "; give a dataset with one configuration"
    file = folder / "train-00000-of-00001.parquet"
    for key in ("finetune.validation_path", "finetune.validation_split"):
        assert mistake(file, split="test", key=key).startswith("finetune.validation_split: ")
    for key in ("corpus.held_out", "corpus.validation"):
        assert mistake(file, split="test", key=key).startswith(f"{key}: ")


@pytest.mark.parametrize("split", sample.SPLITS)
def test_the_sample_is_a_corpus(split: str) -> None:
    read = list(itertools.islice(read_documents("sample", split=split), 3))
    made = list(sample.generate(split, 3))
    assert list(read) == [item.text for item in made]


def test_a_folder_with_files_of_no_split_is_refused(tmp_path: Path) -> None:
    # By its name, train-ride.txt is the split train and its only file.
    for name in ("monday", "tuesday", "train-ride"):
        (tmp_path / f"{name}.txt").write_text("Some words.\n")
    said = mistake(tmp_path)
    assert "2 of the 3 files in" in said and "belong to no split (e.g. monday.txt)" in said
    assert len(list(read_documents(f"{tmp_path}/**/*.txt"))) == 3
    (tmp_path / "train.jsonl").write_text('{"text": "Words."}\n')
    assert "to read those of one ending give a pattern" in (said := mistake(tmp_path))
    assert said.endswith(", and name the others in corpus.more")


@pytest.mark.parametrize("readme", ["# My notes\n", "---\nlicense: mit\n---\n"])
def test_a_readme_that_lists_no_files_does_not_hide_those_of_no_split(readme: str, tmp_path: Path) -> None:
    write(tmp_path / "training plan.txt"), write(tmp_path / "note.txt")
    (tmp_path / "README.md").write_text(readme)
    assert "1 of the 2 files" in mistake(tmp_path)


def test_a_readme_below_the_top_is_a_file_like_others(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("README.md", "a/README.md", "a/notes.md"):
        (tmp_path / name).write_text(name)
    assert "1 of the 2 files in" in mistake(tmp_path)
    assert list(read_documents(f"{tmp_path}/**/*.md")) == ["README.md", "a/README.md", "a/notes.md"]


@pytest.mark.parametrize(
    ("names", "finds_alone"),
    [
        (["b.txt", "Z.txt", "a b/1.txt", "a-b.txt", "é.txt", ".hidden.txt", "contest.txt"], True),
        (["a.txt", "b/valid 1/c.txt"], False),
        (["a.txt", "my_eval.txt"], False),
        (["a.txt", "b/config.json"], False),
        (["a.txt", "b.csv"], False),
        (["a.txt", "link/b.txt"], False),
        (["a", "b"], False),
    ],
)
def test_files_of_a_folder_without_splits_are_those_that_datasets_finds(
    names: list[str], finds_alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        file = tmp_path / "folder" / name.replace("link/", "../elsewhere/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("Some words.")
    if "link/b.txt" in names:
        (tmp_path / "folder" / "link").symlink_to(tmp_path / "elsewhere")
    assert bool(files_of_no_split(tmp_path / "folder")) == finds_alone
    found = files_by_split(tmp_path / "folder", None)
    monkeypatch.setattr("bertpre.data.local_files.files_of_no_split", lambda folder: [])
    assert files_by_split(tmp_path / "folder", None) == found


def test_what_datasets_saved_to_disk_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    rows = Dataset.from_dict({"text": [f"Text {number}." for number in range(9)], "label": [0, 1, 0] * 3}, features)
    rows.with_format("numpy", columns=["label"]).save_to_disk(tmp_path / "one")  # a format that hides the texts
    DatasetDict({"train": rows, "test": rows.select([2, 0])}).save_to_disk(tmp_path / "two")
    assert list(read_documents(str(tmp_path / "one"))) == rows["text"][:]
    assert list(read_documents(str(tmp_path / "two"), split="test+train")) == ["Text 2.", "Text 0.", *rows["text"]]
    assert open_table(str(tmp_path / "two"), None, "test", "finetune").class_names("label") == ["bad", "good"]
    mention_unread_splits([TextSource(str(tmp_path / "two"))])
    assert "not read: test." in caplog.text
    with pytest.raises(UserError, match=r"two has no split 'dev'; it has train, test"):
        list(read_documents(str(tmp_path / "two"), split="dev"))
    (file,) = (tmp_path / "one").glob("*.arrow")
    with pytest.raises(UserError, match="is an Arrow file; give the folder that it is in"):
        list(read_documents(str(file)))


def test_a_link_to_a_folder_is_followed_by_patterns_only(tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
    (tmp_path / "own" / ".hidden").symlink_to(tmp_path / "other")
    assert list(read_documents(f"{tmp_path}/own")) == ["own"]
    (tmp_path / "own" / "link").symlink_to(tmp_path / "other")
    assert f"{tmp_path}/own/link is a link to a folder, which is not followed; give a pattern" in mistake(
        tmp_path / "own"
    )
    assert list(read_documents(f"{tmp_path}/own/**/*.txt")) == ["other", "own"]


@pytest.mark.parametrize("unit", ["line", "paragraph", "document"])
def test_names_with_the_signs_of_patterns_and_chains_are_read(unit: str, tmp_path: Path) -> None:
    file = tmp_path / "[draft] a::b*.txt"
    file.write_text("a b\nc\n\nd\n")
    expected = {"line": ["a b", "c", "", "d"], "paragraph": ["a b\nc", "d"], "document": ["a b\nc\n\nd\n"]}
    assert list(read_documents(f"{tmp_path}/*.txt", text_unit=unit)) == expected[unit]


def test_files_of_other_kinds_in_a_folder_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.txt"), write(tmp_path / "b.txt")
    (tmp_path / "c.md").write_text("# A note\n")
    assert len(list(read_documents(str(tmp_path)))) == 6
    assert f"corpus.path: 1 files of other kinds in {tmp_path} are not read (e.g. c.md)" in caplog.text


def test_an_ending_in_capitals_is_known(tmp_path: Path) -> None:
    (tmp_path / "A.CSV").write_bytes(Path(write(tmp_path / "other" / "a.csv")).read_bytes())
    assert list(read_documents(str(tmp_path / "A.CSV"))) == TABLE["text"].tolist()
    write(tmp_path / "notes" / "a.txt")
    (tmp_path / "notes" / "b.TXT").write_text("A text.")
    assert list(read_documents(str(tmp_path / "notes"))) == [*TABLE["text"], "A text."]
    (tmp_path / "notes" / "c.md").write_text("# A note\n")  # `datasets` searches here, and ignores b.TXT
    assert "1 of the 2 files" in mistake(tmp_path / "notes")


def test_csv_values_are_text_as_written_and_files_may_order_columns(tmp_path: Path) -> None:
    rows = [f"{number % 2 + 1:02},2020" for number in range(12_000)] + ["1A,true"]
    (tmp_path / "a.csv").write_text("label,text\n" + "\n".join(rows) + "\n")
    (tmp_path / "b.csv").write_text("text,label\nNone,NA\n")
    table = open_table(str(tmp_path / "*.csv"), None, "train", "finetune")
    values = list(table.rows([("text_column", "text"), ("label_column", "label")]))
    assert set(values) == {("2020", "01"), ("2020", "02"), ("true", "1A"), ("None", "NA")}
    assert len(values) == 12_002


def test_a_csv_file_without_the_column_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.csv"), write(tmp_path / "b.csv", TABLE.rename(columns={"text": "content"}))
    assert "b.csv has no column text" in mistake(tmp_path)
    assert "b.csv has no column text" in mistake(tmp_path / "*.csv")


def test_lines_of_white_space_separate_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\ufeffa one\na two\n \nb one\n\t\nc\n\n\nd", encoding="utf-8")
    texts = list(read_documents(str(tmp_path / "a.txt"), text_unit="paragraph"))
    assert texts == ["a one\na two", "b one", "c", "d"]


def test_documents_stream(tmp_path: Path) -> None:
    line = json.dumps({"text": "word " * 200})
    (tmp_path / "a.jsonl").write_text(f"{line}\n" * 30_000 + "{broken")  # 30 MB
    documents = read_documents(str(tmp_path / "a.jsonl"))
    assert next(documents) == "word " * 200
    with pytest.raises(UserError, match="cannot be read"):
        list(documents)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text_column": "body"}, "corpus.text_column: {path} has no column 'body'; its columns are text, label"),
        ({"text_column": "label"}, "corpus.text_column: 'label' of {path} holds int, not text (row 1 of train)"),
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
        ("zero.csv", b"", "is empty"),
        (
            "fields.csv",
            b"id,text\n1,Hello, world\n",
            "has rows with more fields than its header: put texts that contain",
        ),
        ("semicolons.csv", b"Good, really;1\nBad, not, good;0\n", "separated by ';', which its first line has, write"),
        (
            "quotes.tsv",
            b'text\tlabel\ngood\t1\n"two" or\t3\tmore\n',
            "put values that contain the separator in quotes, and double each quote inside them",
        ),
        ("sixteen.txt", "some words\nand more\n".encode("utf-16-le"), "is in UTF-16 or UTF-32; save it as UTF-8"),
        ("zero.jsonl", b"", "is empty"),
        ("header.csv", b"text,label\n", "is empty: it holds no row of text"),
        (
            "broken.jsonl",
            b"{not json\n",
            "broken.jsonl is not JSON (Expecting property name enclosed in double quotes, column 2)",
        ),
        ("half.jsonl", b'{"text": "good"}\n{"text": \n', "cannot be read: line 2 of"),
        ("lists.jsonl", b"[1]\n[2]\n", "lists.jsonl is not JSON (Extra data, line 2); write one object per line"),
        ("half.json", b'["\\ud800"]', "half.json has half of a surrogate pair"),
        ("values.json", b"[1, 2]", "values.json is int, not an object with columns"),
        ("broken.parquet", b"PAR1 is how it begins", "cannot be read: Parquet magic bytes not found"),
        ("ragged.csv", b'text,label\n"a,1\n', "cannot be read"),
        ("empty", b"", "is empty"),
        ("latin", "Fl\u00e5klypa".encode("latin-1"), "is neither text in UTF-8 nor"),
        ("windows", "some words".encode("utf-16"), "is neither text in UTF-8 nor"),
        ("wiki.xml", b'<mediawiki xmlns="x">\n<page>', "is a wiki's XML dump; run WikiExtractor on it"),
        ("wiki_00", b'<doc id="1" url="u" title="A">\nA\n\nIts text', "ends inside the article 'A'"),
        ("wiki_01", b'<doc id="1" url="u" title="A">\n</doc>\nmore', "has text outside of its <doc> blocks: 'more'"),
        ("wiki_02.bz2", bz2.compress(b"text " * 999)[:30], "cannot be read: Compressed file ended before"),
        ("wiki_03.gz", b"not compressed", "cannot be read: Not a gzipped file"),
        ("two.zip", b"PK\3\4", "two.zip is an archive; unpack it, and give a folder or pattern of its files"),
        (
            "corpus.docx",
            b"PK\3\4\0\0 a zip archive",
            "is neither text in UTF-8 nor a kind of file that is known by its ending: .parquet, .jsonl, .json, .csv, ",
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


@pytest.mark.parametrize("pattern", ["", "*.txt"])
def test_links_that_lead_nowhere_are_no_files_less(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One text. It goes on.")
    (tmp_path / "notes").symlink_to("nowhere")  # not a file of data
    for folder in (".cache", "run/tokenizer"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "words.txt").symlink_to("nowhere")
    (tmp_path / "run" / "recipe.yaml").touch()
    place = tmp_path / pattern
    assert len(list(read_documents(str(place)))) == 1
    for name in ("b.txt", "c.txt"):
        (tmp_path / name).symlink_to("nowhere")
    assert f"{tmp_path}/b.txt is a link to a file that is not there (and 1 more); fetch" in mistake(place)


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
    for text in read_documents(str(tmp_path)):
        seen.append(text)
        held = max(held, pa.total_allocated_bytes() - before)
    assert seen == texts
    assert 0 < held < 4_000_000


def test_a_parquet_file_with_other_columns_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-00000-of-00002.parquet", ["one"])
    write_parquet(tmp_path / "train-00001-of-00002.parquet", ["two"], column="body")
    with pytest.raises(UserError, match=r"train-00001-of-00002.parquet has no column text"):
        list(read_documents(str(tmp_path)))


ARTICLES = {  # as WikiExtractor writes them: its titles may contain quotes, its texts contain no markup
    "Anarchism": "Anarchism is a philosophy.\nIt has a history.",
    'The "Hot" Five': "A band.\n\nIt played &lt;doc id=1&gt; jazz.",
    "A redirect": "",
    "Last": 'Last\nword <doc id="7" url="u" title="Nested"> in a line.',
}


def wiki_blocks(articles: dict[str, str]) -> bytes:
    """Articles as WikiExtractor writes them to a file."""
    url = "https://en.wikipedia.org/wiki?curid=12"
    blocks = (
        f'<doc id="12" url="{url}" title="{title}">\n{title}\n\n{text}\n\n</doc>\n' for title, text in articles.items()
    )
    return "".join(blocks).encode()


def wiki_json(articles: dict[str, str]) -> bytes:
    """The same with its option --json."""
    rows = ({"id": "12", "revid": "1", "url": "u", "title": title, "text": text} for title, text in articles.items())
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("write_articles", [wiki_blocks, wiki_json])
@pytest.mark.parametrize("compression", ["", ".bz2"])
def test_wikiextractor_output_is_read_by_content(
    write_articles: Callable[[dict[str, str]], bytes],
    compression: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compress = bz2.compress if compression else bytes
    items = list(ARTICLES.items())
    for name, some in (("AA/wiki_00", items[:2]), ("AA/wiki_01", items[2:3]), ("AB/wiki_00", items[3:])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / (name + compression)).write_bytes(compress(write_articles(dict(some))))
    read = [[text.strip() for text in rows_of(path)] for path in (tmp_path, f"{tmp_path}/**/wiki_*")]
    assert read == [list(ARTICLES.values())] * 2
    kind = "articles of WikiExtractor" if write_articles is wiki_blocks else "JSON lines"
    assert caplog.messages == [
        f"corpus: {path} is read as {kind}, which its content shows" for path in (tmp_path, f"{tmp_path}/**/wiki_*")
    ]


def rows_of(path: Path | str, **options: str) -> list[str]:
    return list(read_documents(str(path), **options))


def test_articles_in_a_text_file_are_recognized_too(tmp_path: Path) -> None:
    (tmp_path / "wiki.txt").write_bytes(b"\xef\xbb\xbf" + wiki_blocks(ARTICLES).replace(b"\n", b"\r\n"))
    for path in (tmp_path, tmp_path / "wiki.txt"):
        assert [text.strip() for text in rows_of(path, text_unit="paragraph")] == list(ARTICLES.values())


def test_files_without_a_known_ending_are_read_by_content(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "notes.md").write_text("One.\nTwo.\n")
    (tmp_path / "Film [1999]").write_text("Three.\n")
    (tmp_path / "_EMPTY").write_text("")
    (tmp_path / "README.md").write_text("no data")
    assert sorted(rows_of(tmp_path)) == ["One.", "Three.", "Two."]
    assert rows_of(tmp_path / "notes.md", text_unit="document") == ["One.\nTwo.\n"]
    assert f"corpus: {tmp_path} is read as text, which its content shows" in caplog.messages
    (tmp_path / "rows").write_text('{"text": "Four."}\n')
    assert "files of several kinds (.jsonl, .txt)" in mistake(tmp_path)
    (tmp_path / "rows").write_bytes(b"\0\1\2")
    assert f"{tmp_path}/rows is neither text in UTF-8 nor" in mistake(tmp_path)


def test_splits_are_read_in_names_without_an_ending_too(tmp_path: Path) -> None:
    for name in ("train/a", "test/b"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(f"{name}\n")
    assert rows_of(tmp_path, split="test+train") == ["test/b", "train/a"]
    assert "corpus.split: " in mistake(tmp_path, split="dev") and "it has train, test" in mistake(tmp_path, split="dev")
    (tmp_path / "other").write_text("text")
    assert "1 of the 3 files" in mistake(tmp_path)


def test_articles_beside_other_files_are_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("INFO: Preprocessing\n")
    (tmp_path / "AA").mkdir()
    (tmp_path / "AA" / "wiki_00").write_bytes(wiki_blocks(ARTICLES))
    assert "holds articles of WikiExtractor (e.g. AA/wiki_00) beside 1 files of another kind" in mistake(tmp_path)


REVIEWS = [item.text for item in sample.generate("train", 200)]
ESSAYS = [item.text.split("\n") for item in sample.generate("articles", 40)]
WRAPPED = ["\n\n".join(textwrap.fill(paragraph, 72) for paragraph in essay) for essay in ESSAYS]
LATEX = [textwrap.fill(review.replace("\n", " "), 72) + "\n\\item\n% A comment" * 3 for review in REVIEWS]
BY_SENTENCE = ["\n".join(split_sentences(review)) for review in REVIEWS]
NOTES = [f"# Note {number}\n\n{text}\n\n- one point\n- another\n" for number, text in enumerate(REVIEWS[:5])]


@pytest.mark.parametrize(
    ("texts", "unit"),
    [
        (["\n\n".join(WRAPPED)], "paragraph"),
        (WRAPPED, "document"),
        (["\n\n".join(LATEX)], "paragraph"),
        (NOTES, "paragraph"),
        (NOTES * 4, "document"),
        (["\n\n".join(BY_SENTENCE)], "paragraph"),  # what google's create_pretraining_data reads
        (["\n\n".join(BY_SENTENCE[start::25]) for start in range(25)], "paragraph"),
        (["\n\n".join(f"{review}\n{review}" for review in REVIEWS)], "paragraph"),
        (["\n\n".join(essay) + "\n\nThe end.\n\nSources." for essay in ESSAYS], "document"),
        (["\n".join(REVIEWS)], None),
        (["\n".join("" if number % 25 == 7 else review for number, review in enumerate(REVIEWS))], None),
        (["\n\n".join(REVIEWS)], None),  # paragraphs and lines are the same
        (["\n".join(BY_SENTENCE).replace("\n\n", "\n")], None),
        (["\n".join(review[:72] for review in REVIEWS)], None),
        (["\n".join(review[: 20 + 7 * number % 50].lower() for number, review in enumerate(REVIEWS))], None),
        (["\n".join("日本語" * (5 + 7 * number % 30) + "。" for number in range(200))], None),
        (["\n".join(f"#film {review[:90]}" for review in REVIEWS)], None),
        (["one line"], None),
        (["\n\n".join(f"## {number}\n\n{review}" for number, review in enumerate(REVIEWS))], None),  # a line each
    ],
    ids=[
        "wrapped", "wrapped files", "LaTeX", "notes", "many notes", "google's format", "shards", "groups of lines",
        "essays", "reviews", "missing reviews", "blank lines", "sentences", "truncated", "short", "Japanese",
        "hashtags", "one", "chapters",
    ],
)  # fmt: skip
def test_another_text_unit_is_advised_where_it_is_plainly_meant(
    texts: list[str], unit: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    found = advised_unit([str(file) for file in tmp_path.iterdir()])
    assert (found and found[0]) == unit
    next(iter(read_documents(str(tmp_path))), None)
    advice = [message for message in caplog.messages if f"set corpus.text_unit={unit} (" in message]
    assert len(advice) == len(caplog.messages) == (unit is not None)
    assert next(iter(read_documents(str(tmp_path), text_unit="document"))) and len(caplog.messages) == len(advice)


def test_words_with_tags_are_not_taken_for_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tagged = "Mira B-PER\nsaw O\nOslo B-LOC\nand O\nleft O\n. O\n\n"
    (tmp_path / "tagged.txt").write_text(2 * tagged)
    (tmp_path / "plain.txt").write_text(20 * "There are groups A, B and O\n" + 20 * "There are some more\n")
    for name, advice in (("tagged.txt", "write one sentence a line"), ("plain.txt", None)):
        caplog.clear()
        next(iter(read_documents(str(tmp_path / name))))
        assert [message.rpartition("; ")[2] for message in caplog.messages] == ([advice] if advice else [])


def test_a_table_that_is_read_in_parts_leaves_the_callers_warnings_alone(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("text\nfirst\nsecond\n")
    filters = list(warnings.filters)
    batches = CsvFiles([str(tmp_path / "two.csv")]).iter(batch_size=1)
    assert next(batches) == {"text": ["first"]}
    assert list(warnings.filters) == filters
    assert list(batches) == [{"text": ["second"]}]
