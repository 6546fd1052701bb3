"""The store: complete or absent, and verified when opened."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertpre.data.store import (
    PARTS,
    finish_store,
    join_shards,
    open_shards,
    read_store_manifest,
    read_token_counts,
    tidy_store,
    write_shard,
)
from bertpre.errors import UserError
from tests.helpers import run_process

DOCUMENTS = [[[5, 6, 7], [8]], [[9, 9]], [[5], [6], [5, 5]]]
COUNTS = np.bincount([5, 6, 7, 8, 9, 9, 5, 6, 5, 5])


def add(
    folder: Path, name: str, split: str, documents: list[list[list[int]]], dtype: type = np.uint16
) -> dict[str, Any]:
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.array([token for sentence in sentences for token in sentence], dtype=dtype)
    return write_shard(
        folder, name, split, tokens, np.array(list(map(len, sentences))), np.array(list(map(len, documents)))
    )


def write(folder: Path) -> Path:
    partial = folder / "data.partial"
    partial.mkdir()
    (partial / "part-00000.texts").write_text("left over")
    shards = [add(partial, "a", "train", DOCUMENTS[:1]), add(partial, "b", "train", DOCUMENTS[1:])]
    shards += [add(partial, "c", "validation", [[[7, 7, 7]]])]
    finish_store(partial, folder / "data", shards, COUNTS, {"tokenizer_hash": "abc", "vocab_size": 10})
    tidy_store(folder / "data")
    return folder / "data"


def test_a_shard_has_tokens_and_offsets_of_sentences_and_documents(tmp_path: Path) -> None:
    _, shard = open_shards(write(tmp_path), "train", "abc")
    assert shard.tokens.tolist() == [9, 9, 5, 6, 5, 5]
    assert shard.sentences.tolist() == [0, 2, 3, 4, 6]
    assert shard.documents.tolist() == [0, 1, 4]


def test_shards_are_joined(tmp_path: Path) -> None:
    entries = [add(tmp_path, "a", "train", DOCUMENTS[:1]), add(tmp_path, "b", "train", DOCUMENTS[1:])]
    joined, whole = join_shards(tmp_path, "joined", entries), add(tmp_path, "whole", "train", DOCUMENTS)
    assert joined == {**whole, "name": "joined"}


def test_joining_shards_of_different_weights_repeats_their_documents(tmp_path: Path) -> None:
    entries = [
        add(tmp_path, "a", "train", DOCUMENTS[:1]) | {"repeats": 3},
        add(tmp_path, "b", "train", DOCUMENTS[1:]),
    ]
    joined = join_shards(tmp_path, "joined", entries)
    whole = add(tmp_path, "whole", "train", DOCUMENTS[:1] * 3 + DOCUMENTS[1:])
    assert joined == {**whole, "name": "joined", "copies": [(1, 3), (2, 1)]}
    (tmp_path / "data.partial").mkdir()
    for file in tmp_path.glob("joined.*"):
        file.rename(tmp_path / "data.partial" / file.name)
    finish_store(tmp_path / "data.partial", tmp_path / "data", [joined], COUNTS, {})
    (shard,) = open_shards(tmp_path / "data", "train")
    assert shard.originals.tolist() == [0, 0, 0, 1, 2]


def test_a_shard_is_listed_as_often_as_it_repeats(tmp_path: Path) -> None:
    partial = tmp_path / "data.partial"
    partial.mkdir()
    entries = [add(partial, "a", "train", DOCUMENTS[:1]) | {"repeats": 3}, add(partial, "b", "train", DOCUMENTS[1:])]
    finish_store(partial, tmp_path / "data", entries, COUNTS, {})
    shards = open_shards(tmp_path / "data", "train")
    assert [len(shard.documents) - 1 for shard in shards] == [1, 1, 1, 2]


LIMITED = """
import resource, sys
from bertpre.data.store import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
allow_open_files(1000)
handles = [open("/dev/null") for _ in range(1000)]
"""


def test_the_limit_of_open_files_is_raised_or_reported() -> None:
    pytest.importorskip("resource")
    done = run_process([sys.executable, "-c", LIMITED, "4096"])
    assert done.returncode == 0, done.stderr
    done = run_process([sys.executable, "-c", LIMITED, "200"])
    assert "UserError: the store needs 1000 open files, but this system allows 200" in done.stderr


def test_shards_are_memory_mapped(tmp_path: Path) -> None:
    shard = open_shards(write(tmp_path), "train")[0]
    assert isinstance(shard.tokens, np.memmap)


def test_a_store_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run `bertpre prepare`"):
        open_shards(tmp_path / "data", "train")


def test_files_that_are_not_part_of_the_store_are_removed(tmp_path: Path) -> None:
    store = write(tmp_path)
    assert not store.with_name("data.partial").exists()
    assert len(list(store.iterdir())) == 3 * len(PARTS) + 2


@pytest.mark.parametrize("part", PARTS)
def test_opening_the_store_finds_a_flipped_bit(part: str, tmp_path: Path) -> None:
    store = write(tmp_path)
    file = store / f"a.{part}.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"a.{part}.npy is missing or damaged"):
        open_shards(store, "train")
    assert open_shards(store, "validation")
    with pytest.raises(UserError, match=f"a.{part}.npy is missing or damaged"):
        open_shards(store, "train", share=(0, 2))
    assert open_shards(store, "train", share=(1, 2))  # the other process has it


def test_opening_the_store_finds_a_missing_file(tmp_path: Path) -> None:
    store = write(tmp_path)
    (store / "a.tokens.npy").unlink()
    with pytest.raises(UserError, match="a.tokens.npy is missing or damaged"):
        open_shards(store, "train")


def test_a_store_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="another tokenizer"):
        open_shards(write(tmp_path), "train", tokenizer_hash="xyz")


@pytest.mark.parametrize("content", ["{", "{}", "7"])
def test_a_damaged_manifest_is_reported(tmp_path: Path, content: str) -> None:
    store = write(tmp_path)
    (store / "manifest.json").write_text(content)
    with pytest.raises(UserError, match="manifest.json is damaged"):
        read_store_manifest(store)


def test_the_manifest_counts_every_shard(tmp_path: Path) -> None:
    manifest = read_store_manifest(write(tmp_path))
    assert [shard["name"] for shard in manifest["shards"]] == ["a", "b", "c"]
    assert (manifest["documents"], manifest["sentences"], manifest["tokens"]) == (4, 7, 13)
    assert manifest["tokenizer_hash"] == "abc"
    assert json.loads(json.dumps(manifest)) == manifest


def test_token_counts_are_stored_and_counted_again_where_an_old_store_lacks_them(tmp_path: Path) -> None:
    store = write(tmp_path)
    assert read_token_counts(store).tolist() == COUNTS.tolist()
    file = store / "token_counts.npy"
    for content in (file.read_bytes()[:-3], file.read_bytes()[:-1] + b"\x07", None):
        file.write_bytes(content) if content else file.unlink()
        assert read_token_counts(store).tolist() == COUNTS.tolist()
