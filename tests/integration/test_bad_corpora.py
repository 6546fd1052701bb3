"""Imperfect corpora: readable texts are prepared or counted as dropped, unreadable ones give one message."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bertpre.data import sample
from bertpre.data.store import open_shards
from bertpre.data.tokenizer import learn_tokenizer
from bertpre.run_directory import read_results
from tests.helpers import run_here, tree_hash
from tests.integration.write_faults import at_write

Prepare = Callable[..., int]
REVIEWS = [document.text for document in sample.generate("train", 80)]


@pytest.fixture
def prepare(tiny_recipe: Path, tmp_path: Path) -> Prepare:
    """Prepare a file of texts with the command line; returns the exit status."""

    def prepare(texts: list[str] | bytes, *overrides: str) -> int:
        file = tmp_path / "texts.jsonl"
        lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts if isinstance(text, str))
        file.write_bytes(texts if isinstance(texts, bytes) else lines)
        where = f"corpus.path={file}", "corpus.split=train", "prepare.workers=1"
        return run_here("prepare", tiny_recipe, *where, *overrides)

    return prepare


def prepared(tmp_path: Path) -> dict[str, object]:
    return read_results(tmp_path / "run")["prepare"]


ODD = (
    "a\0b\0 nul bytes",
    "word",
    "no sentence end anywhere " * 400,
    "x" * 50_000,
    "...!!!???",
    "🎬" * 50,
    "one\u2028line\u2029apart",
)


def test_odd_texts_among_others_are_prepared(prepare: Prepare, tmp_path: Path) -> None:
    assert prepare([*REVIEWS[:40], *ODD, *REVIEWS[40:]]) == 0
    figures = prepared(tmp_path)
    assert figures["documents"] + sum(figures["dropped"].values()) == 80 + len(ODD)
    assert run_here("pretrain", tmp_path / "run" / "recipe.yaml", "training.max_steps=2", "training.budget=null") == 0


def test_a_tokenizer_of_another_script_is_refused(
    prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn_tokenizer(["plain latin words of a text with letters"] * 50, vocab_size=128).save_pretrained(tmp_path / "own")
    texts = [f"{first}{second} текст без латинских букв" for first in "абвгдежзик" for second in "лмнопрстуф"]
    assert prepare(texts, f"tokenizer.path={tmp_path / 'own'}", "pairs.kind=none") == 2
    assert "every token of the train part of the corpus is unknown" in capsys.readouterr().err


def test_identical_texts_are_one_document_and_too_few(
    prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(REVIEWS[:1] * 100) == 2
    error = capsys.readouterr().err
    assert "leaves fewer than two documents to train on, of 100 read, 99 of them dropped as duplicate;" in error
    assert "corpus.text_unit says where one ends: line, paragraph or document" in error
    assert not (tmp_path / "run" / "data").exists()


def test_documents_of_one_sentence_give_a_warning_and_no_accuracy_of_pairs(
    prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare([f"{number} is a number" for number in range(300)]) == 0
    printed = capsys.readouterr().out
    assert "pairs: 100.0% without a label" in printed
    assert "warning: most pairs have no label, because most documents are a single sentence" in printed
    assert "set corpus.text_unit if" in printed and "set pairs.kind=none" in printed
    run = tmp_path / "run"
    assert run_here("pretrain", run, "training.max_steps=1", "training.budget=null", "training.compile=false") == 0
    printed = capsys.readouterr().out
    assert "NSP accuracy not measured: no validation pair has a label" in printed
    assert "NSP accuracy 0" not in printed.partition("validation at step 1 ")[2]
    assert run_here("report", run) == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": "\xff\xfe broken"}\n' * 50, "cannot be read"),
        (b'{"text": "whole"}\n{"text": "cut he', "cannot be read"),
        (b'{"text": "\\ud800"}\n', "has half of a surrogate pair"),
        (b'{"text": 7}\n', "holds int, not text"),
    ],
    ids=["not utf-8", "cut off", "half a surrogate pair", "numbers"],
)
def test_a_file_that_cannot_be_read_leaves_no_store(
    content: bytes, words: str, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(content) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: corpus")
    assert words in error
    assert not (tmp_path / "run" / "data").exists()


def test_a_truncated_parquet_file_is_one_message(
    tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pandas as pd

    file = tmp_path / "texts.parquet"
    pd.DataFrame({"text": REVIEWS}).to_parquet(file)
    file.write_bytes(file.read_bytes()[:-100])
    assert run_here("prepare", tiny_recipe, f"corpus.path={file}", "corpus.split=train") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: corpus: {file}")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("write", [1, 3, 7, 12])
def test_a_full_disk_is_one_message_and_the_same_command_resumes(
    write: int, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with at_write(write, fail, tmp_path / "run" / "data.partial"):
        assert prepare(REVIEWS) == 2
    assert "error: the disk is full; make room" in capsys.readouterr().err
    assert not (tmp_path / "run" / "data").exists()
    assert prepare(REVIEWS) == 0
    interrupted = tree_hash(tmp_path / "run" / "data")
    assert prepare(REVIEWS, f"output_dir={tmp_path / 'other'}") == 0
    assert tree_hash(tmp_path / "other" / "data") == interrupted


@pytest.mark.slow
def test_a_line_of_50_mb_is_one_document(prepare: Prepare, tmp_path: Path) -> None:
    long = " ".join(REVIEWS) * (50_000_000 // len(" ".join(REVIEWS)))
    assert prepare([*REVIEWS, long]) == 0
    shards = open_shards(tmp_path / "run" / "data", "train")
    assert max(int(np.diff(shard.sentences[shard.documents]).max()) for shard in shards) > 5_000_000
