"""`bertpre prepare`: the same bytes for any number of workers and any number of kills; what is dropped is counted."""

import json
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import bertpre.commands.prepare
from bertpre.data import sample
from bertpre.data.parts import cut_into_parts
from bertpre.data.store import open_shards
from bertpre.errors import UserError
from bertpre.recipe import load_recipe
from bertpre.run_directory import read_results
from tests.helpers import run_cli, tree_hash

SMALL_PARTS = """
from functools import partial
import bertpre.commands.prepare
from bertpre.data.parts import cut_into_parts
bertpre.commands.prepare.cut_into_parts = partial(cut_into_parts, characters=8000)
"""
KILLED_IN_CALL = """
import os, signal
calls = []
for name in ("clean_part", "encode_part"):
    def wrapped(*arguments, original=getattr(bertpre.commands.prepare, name)):
        calls.append(name)
        if len(calls) == {call}:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)
    setattr(bertpre.commands.prepare, name, wrapped)
"""

Prepare = Callable[..., Path]


@pytest.fixture
def prepare(tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Prepare the tiny recipe, cut into parts of some reviews, in a folder of its own; returns the folder."""
    monkeypatch.setattr(bertpre.commands.prepare, "cut_into_parts", partial(cut_into_parts, characters=8000))

    def prepare(name: str, *overrides: str) -> Path:
        bertpre.commands.prepare.prepare(load_recipe(str(tiny_recipe), [f"output_dir={tmp_path / name}", *overrides]))
        return tmp_path / name

    return prepare


def write_documents(file: Path, texts: list[str]) -> Path:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def prepared(run: Path) -> dict[str, Any]:
    return read_results(run)["prepare"]


@pytest.mark.parametrize("workers", [2, 5])
def test_the_bytes_do_not_depend_on_the_number_of_workers(prepare: Prepare, workers: int) -> None:
    one, several = prepare("one", "prepare.workers=1"), prepare("several", f"prepare.workers={workers}")
    assert len(list((one / "data").glob("part-*.train.tokens.npy"))) > 5
    for folder in ("data", "tokenizer"):
        assert tree_hash(one / folder) == tree_hash(several / folder)


def test_array_jobs_make_the_same_bytes(tiny_recipe: Path, prepare: Prepare, tmp_path: Path) -> None:
    whole, target = prepare("whole"), tmp_path / "jobs"
    recipe = load_recipe(str(tiny_recipe), [f"output_dir={target}", "prepare.workers=1"])
    with pytest.raises(UserError, match="nothing to merge"):
        bertpre.commands.prepare.prepare(recipe, merge=True)
    for jobs in (["3/3", "1/3"], ["2/3"]):
        for job in jobs:
            bertpre.commands.prepare.prepare(recipe, shard=job)
        if len(jobs) == 2:
            with pytest.raises(UserError, match=r"parts are not done \(1, 4, "):
                bertpre.commands.prepare.prepare(recipe, merge=True)
    bertpre.commands.prepare.prepare(recipe, merge=True)
    assert not (target / "data").exists()
    other = load_recipe(str(tiny_recipe), [f"output_dir={target}", "tokenizer.vocab_size=256", "corpus.limit=7"])
    with pytest.raises(UserError, match=r"begun with another corpus.limit, tokenizer.vocab_size"):
        bertpre.commands.prepare.prepare(other, merge=True)
    bertpre.commands.prepare.prepare(recipe, shard="1/2")
    with pytest.raises(UserError, match=r"parts are not done \(1, 3, "):
        bertpre.commands.prepare.prepare(recipe, merge=True)
    bertpre.commands.prepare.prepare(recipe, shard="2/2")
    bertpre.commands.prepare.prepare(recipe, merge=True)
    for folder in ("data", "tokenizer"):
        assert tree_hash(whole / folder) == tree_hash(target / folder)


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0"])
def test_a_share_that_makes_no_sense_is_refused(shard: str, tiny_recipe: Path) -> None:
    with pytest.raises(UserError, match="write JOB/JOBS"):
        bertpre.commands.prepare.prepare(load_recipe(str(tiny_recipe)), shard=shard)


def test_killed_and_continued_is_never_killed(prepare: Prepare, tiny_recipe: Path, tmp_path: Path) -> None:
    whole, target = prepare("whole", "prepare.workers=1"), tmp_path / "killed"
    arguments = ("prepare", tiny_recipe, f"output_dir={target}", "prepare.workers=1")
    for call in random.Random(4).sample(range(1, 30), 3):
        done = run_cli(*arguments, code=SMALL_PARTS + KILLED_IN_CALL.format(call=call))
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not (target / "data").exists()
    assert run_cli(*arguments, code=SMALL_PARTS).returncode == 0
    for folder in ("data", "tokenizer"):
        assert tree_hash(whole / folder) == tree_hash(target / folder)
    assert not list(target.rglob("*.partial"))
    # Killed while it tidied up: the store is whole, and what is left over goes with the next attempt.
    (target / "results.json").unlink()
    (target / "data" / "part-00000.texts").write_text("left over")
    assert run_cli(*arguments).returncode == 0
    assert tree_hash(whole / "data") == tree_hash(target / "data")


@given(st.lists(st.integers(1, 3), min_size=2, max_size=7))
def test_no_shard_is_lost_where_small_ones_are_joined(documents: list[int]) -> None:
    shards = [{"name": str(number), "documents": count} for number, count in enumerate(documents)]
    groups = bertpre.commands.prepare.with_two_documents(shards)
    assert [shard for group in groups for shard in group] == shards
    assert all(sum(shard["documents"] for shard in group) >= 2 for group in groups)


def test_a_tokenizer_that_reads_words_in_another_way_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    of_bytes = Tokenizer(models.BPE(unk_token="[UNK]"))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [document.text for document in sample.generate("train", 30)]
    of_bytes.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=of_bytes, **names).save_pretrained(tmp_path / "bytes")
    with pytest.raises(UserError, match="is no WordPiece tokenizer as BERT's: it reads"):
        prepare("refused", f"tokenizer.path={tmp_path / 'bytes'}")


def test_a_tokenizer_that_pads_pads_nothing_here(prepare: Prepare, tmp_path: Path) -> None:
    plain = prepare("plain")
    shutil.copytree(plain / "tokenizer", tmp_path / "padding")
    file = str(tmp_path / "padding" / "tokenizer.json")
    backend = Tokenizer.from_file(file)
    backend.enable_padding(length=8)
    backend.enable_truncation(4)
    backend.save(file)
    padding = prepare("padded", f"tokenizer.path={tmp_path / 'padding'}")
    assert tree_hash(plain / "data") == tree_hash(padding / "data")


def test_a_corpus_that_changed_between_two_attempts_is_read_anew(prepare: Prepare, tmp_path: Path) -> None:
    texts = [document.text for document in sample.generate("train", 60)]
    file = write_documents(tmp_path / "a.jsonl", texts)
    (tmp_path / "again").mkdir()
    with pytest.raises(UserError, match="fewer than two documents"):
        prepare("again", f"corpus.path={file}", "corpus.split=train", "pairs.validation_fraction=0.0001")
    write_documents(file, texts[30:])
    arguments = (f"corpus.path={file}", "corpus.split=train", "corpus.limit=null")
    again, fresh = prepare("again", *arguments), prepare("fresh", *arguments)
    assert tree_hash(again / "data") == tree_hash(fresh / "data")


def test_what_is_dropped_is_counted_by_reason(prepare: Prepare, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [document.text for document in sample.generate("train", 40)]
    write_documents(folder / "train.jsonl", [*texts, "<br/>", texts[0] + " ", texts[1], "short", texts[39]])
    write_documents(folder / "test.jsonl", [texts[2], "elsewhere", f"<i>{texts[3]}</i>"])
    run = prepare(
        "run", f"corpus.path={folder}", "corpus.split=train", "corpus.held_out=test", "corpus.min_characters=10"
    )
    assert prepared(run)["dropped"] == {"empty": 1, "duplicate": 3, "too short": 1, "held out": 2}
    assert prepared(run)["documents"] == 38


def test_the_audit_knows_repeated_lines_and_unknown_tokens(prepare: Prepare, tmp_path: Path) -> None:
    texts = [f"{document.text} This very line is in each of them." for document in sample.generate("train", 60)]
    run = prepare("run", f"corpus.path={write_documents(tmp_path / 'a.jsonl', texts)}", "corpus.split=train")
    assert 0 <= prepared(run)["repeated_line_share"] < 1
    assert prepared(run)["unknown_share"] == 0


def test_sources_are_mixed_by_their_weights(prepare: Prepare, tmp_path: Path) -> None:
    texts = [document.text for document in sample.generate("train", 150)]
    spans = [(0, 50), (40, 100), (100, 150)]
    files = [write_documents(tmp_path / f"{start}.jsonl", texts[start:end]) for start, end in spans]
    more = f"[{{path: {files[1]}, weight: 3}}, {{path: {files[2]}, weight: 0.5}}]"
    first = f"corpus.path={files[0]}", "corpus.split=train"
    run = prepare("mixed", *first, f"corpus.more={more}")
    figures = prepared(run)
    assert figures["dropped"]["duplicate"] == 10
    assert 10 < figures["dropped"]["weight"] < 40
    shards = open_shards(run / "data", "train")
    seen = Counter(shard.tokens.tobytes() for shard in shards)
    assert set(seen.values()) == {1, 3}
    assert sum(len(shard.documents) - 1 for shard in shards) > figures["documents"]
    with pytest.raises(UserError, match=r"corpus.more.0.path: .*nowhere.jsonl"):
        prepare("wrong", *first, "corpus.more=[{path: nowhere.jsonl}]")
    with pytest.raises(UserError, match="a whole number of passes"):
        prepare("wrong", "corpus.weight=2.5")


def test_a_file_can_be_held_out(prepare: Prepare, tmp_path: Path) -> None:
    texts = [document.text for document in sample.generate("train", 60)]
    file, test = (write_documents(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", texts), ("b", texts[:9])))
    arguments = (f"corpus.path={file}", "corpus.split=train", "corpus.limit=null", f"corpus.held_out={test}")
    assert prepared(prepare("run", *arguments))["dropped"]["held out"] == 9


def test_near_duplicates_are_dropped_by_choice(prepare: Prepare, tmp_path: Path) -> None:
    texts = [document.text for document in sample.generate("train", 80)]
    near = [f"{text} The end, said somebody." for text in texts[:30]]
    file = write_documents(tmp_path / "texts.jsonl", texts + near + texts[:5])
    source = f"corpus.path={file}", "corpus.split=train", "prepare.workers=1"
    assert prepared(prepare("all", *source))["dropped"] == {"duplicate": 5}
    run = prepare("fewer", *source, "corpus.near_duplicates=true")
    dropped = prepared(run)["dropped"]
    assert dropped["duplicate"] == 5
    assert 25 <= dropped["near-duplicate"] <= 30
    assert not list(run.glob("data/*bands*"))
