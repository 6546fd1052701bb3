"""The store: whole or not there, checked when opened, small on disk."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bertpre.data.store import PARTS, StoreWriter, entropy, open_shards, read_manifest
from bertpre.errors import UserError

DOCUMENTS = [[[5, 6, 7], [8]], [[9, 9]], [[5], [6], [5, 5]]]


def write(folder: Path, vocab_size: int = 100, shard_tokens: int = 1 << 24) -> Path:
    writer = StoreWriter(folder / "data", vocab_size, shard_tokens)
    for document in DOCUMENTS:
        writer.add("train", document)
    writer.add("validation", [[7, 7, 7]])
    writer.close(tokenizer_hash="abc")
    return folder / "data"


def test_a_shard_holds_tokens_and_where_sentences_and_documents_begin(tmp_path: Path) -> None:
    (shard,) = open_shards(write(tmp_path), "train", "abc")
    assert shard.tokens.tolist() == [5, 6, 7, 8, 9, 9, 5, 6, 5, 5]
    assert shard.sentences.tolist() == [0, 3, 4, 6, 7, 8, 10]
    assert shard.documents.tolist() == [0, 2, 3, 6]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(100, np.uint16), (65536, np.uint16), (65537, np.uint32)])
def test_tokens_take_two_bytes_where_the_vocabulary_allows(vocab_size: int, dtype: type, tmp_path: Path) -> None:
    assert open_shards(write(tmp_path, vocab_size), "train")[0].tokens.dtype == dtype


def test_the_largest_id_of_a_vocabulary_survives(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "data", 65536)
    writer.add("train", [[65535]])
    writer.close()
    assert open_shards(tmp_path / "data", "train")[0].tokens.tolist() == [65535]


def test_shards_are_memory_mapped(tmp_path: Path) -> None:
    (shard,) = open_shards(write(tmp_path), "train")
    assert isinstance(shard.tokens, np.memmap)


def test_nothing_stands_in_its_place_before_it_is_whole(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "data", 100, shard_tokens=1)
    writer.add("train", DOCUMENTS[0])
    assert not (tmp_path / "data").exists()
    with pytest.raises(UserError, match="run `bertpre prepare`"):
        open_shards(tmp_path / "data", "train")


def test_what_a_killed_writer_left_does_not_get_into_the_next_store(tmp_path: Path) -> None:
    killed = StoreWriter(tmp_path / "data", 100, shard_tokens=1)
    for document in DOCUMENTS:
        killed.add("validation", document)
    store = write(tmp_path)
    assert len(open_shards(store, "validation")) == 1
    assert not store.with_name("data.partial").exists()
    assert len(list(store.iterdir())) == 2 * len(PARTS) + 1


@pytest.mark.parametrize("part", PARTS)
def test_a_flipped_byte_is_found_when_the_store_is_opened(part: str, tmp_path: Path) -> None:
    store = write(tmp_path)
    file = store / f"train-00000.{part}.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"train-00000.{part}.npy is missing or damaged"):
        open_shards(store, "train")
    assert open_shards(store, "validation")


def test_a_missing_file_is_found_when_the_store_is_opened(tmp_path: Path) -> None:
    store = write(tmp_path)
    (store / "train-00000.tokens.npy").unlink()
    with pytest.raises(UserError, match="train-00000.tokens.npy is missing or damaged"):
        open_shards(store, "train")


def test_another_tokenizers_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="another tokenizer"):
        open_shards(write(tmp_path), "train", tokenizer_hash="xyz")


def test_a_damaged_manifest_is_a_users_message(tmp_path: Path) -> None:
    store = write(tmp_path)
    (store / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="manifest.json is damaged"):
        read_manifest(store)


def test_the_manifest_counts_every_shard(tmp_path: Path) -> None:
    manifest = read_manifest(write(tmp_path, shard_tokens=3))
    assert len(manifest["shards"]) == 3  # documents of 4, of 2 and 4 tokens; and one for validation
    assert (manifest["documents"], manifest["sentences"], manifest["tokens"]) == (4, 7, 13)
    assert manifest["tokenizer_hash"] == "abc"
    assert json.loads(json.dumps(manifest)) == manifest


def test_the_unigram_entropy_is_of_the_training_part(tmp_path: Path) -> None:
    counts = {5: 4, 6: 2, 7: 1, 8: 1, 9: 2}
    expected = -sum(count / 10 * math.log(count / 10) for count in counts.values())
    assert read_manifest(write(tmp_path))["unigram_entropy"] == pytest.approx(expected)


def test_entropy_is_in_nats() -> None:
    assert entropy(np.array([3, 3, 0, 3])) == pytest.approx(math.log(3))
    assert entropy(np.array([7, 0])) == 0
