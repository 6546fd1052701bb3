"""The store: token ids of complete documents in flat, memory-mapped files; pairs are spans into them."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # a module that may be missing

from bertpre.errors import UserError
from bertpre.files import file_checksum

SPLITS = ("train", "validation")
PARTS = ("tokens", "sentences", "documents")
SIZES = ("documents", "sentences", "tokens")
TOKEN_COUNTS = "token_counts.npy"


@dataclass(frozen=True)
class Shard:
    """Some documents.

    tokens: ids of all sentences, concatenated, `(T,)`.
    sentences: offset of each sentence in `tokens`, and the end, `(number of sentences + 1,)`.
    documents: offset of each document in `sentences`, and the end, `(number of documents + 1,)`.
    copies: where a join has repeated documents, runs of them: how many documents, and how many times in a row.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    copies: Sequence[tuple[int, int]] = ()

    @property
    def originals(self) -> np.ndarray:
        """For each document a number that it shares with its copies, `(number of documents,)`."""
        counts, times = np.array(self.copies).T
        runs = np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1])
        return np.concatenate([np.tile(run, repeats) for run, repeats in zip(runs, times, strict=True)])


def write_shard(
    folder: Path,
    name: str,
    split: str,
    tokens: np.ndarray,
    sentence_lengths: np.ndarray,
    document_lengths: np.ndarray,
) -> dict[str, Any]:
    """Write a shard's three files; returns its entry for the manifest.

    tokens: (T,). sentence_lengths: tokens in each sentence, (S,). document_lengths: sentences in each document, (D,).
    """
    arrays = {"tokens": tokens, "sentences": offsets(sentence_lengths), "documents": offsets(document_lengths)}
    for part in PARTS:
        np.save(folder / f"{name}.{part}.npy", arrays[part], allow_pickle=False)
    checksums = {part: file_checksum(folder / f"{name}.{part}.npy") for part in PARTS}
    counts = {"documents": len(document_lengths), "sentences": len(sentence_lengths), "tokens": len(tokens)}
    return {"name": name, "split": split, **counts, "repeats": 1, "sha256": checksums}


def offsets(lengths: np.ndarray) -> np.ndarray:
    """Lengths of consecutive pieces, (N,), as offsets, (N + 1,)."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def join_shards(folder: Path, name: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Join some shards of a split, in their order, into one; returns its entry."""
    repeats, copies = {entry["repeats"] for entry in entries}, {}
    if len(repeats) > 1:  # the sources have different weights: repeat the documents themselves
        copies = {"copies": [(entry["documents"], entry["repeats"]) for entry in entries]}
        entries = [entry for entry in entries for _ in range(entry["repeats"])]
    shards = [load_shard(folder, entry["name"], mmap_mode=None) for entry in entries]
    tokens = np.concatenate([shard.tokens for shard in shards])
    sentence_lengths = np.concatenate([np.diff(shard.sentences) for shard in shards])
    document_lengths = np.concatenate([np.diff(shard.documents) for shard in shards])
    entry = write_shard(folder, name, entries[0]["split"], tokens, sentence_lengths, document_lengths)
    return entry | {"repeats": repeats.pop() if len(repeats) == 1 else 1} | copies


def finish_store(
    partial: Path, folder: Path, entries: list[dict[str, Any]], token_counts: np.ndarray, facts: dict[str, Any]
) -> None:
    """Write the manifest and the counts of all token ids, (V,), and move the store into place."""
    np.save(partial / TOKEN_COUNTS, token_counts, allow_pickle=False)
    counts = {key: sum(entry[key] for entry in entries) for key in SIZES}
    checksum = {"token_counts_sha256": file_checksum(partial / TOKEN_COUNTS)}
    manifest = counts | facts | checksum | {"shards": entries}
    (partial / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    partial.rename(folder)


def tidy_store(folder: Path) -> None:
    """Remove files that are not the store's. This is done after the rename, so a process killed here leaves a store."""
    wanted = {"manifest.json", TOKEN_COUNTS} | {
        f"{entry['name']}.{part}.npy" for entry in read_store_manifest(folder)["shards"] for part in PARTS
    }
    for file in folder.iterdir():
        if file.name not in wanted:
            file.unlink()


def read_store_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a finished store."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if "shards" not in manifest:
            raise ValueError("it lists no shards")
        return manifest
    except FileNotFoundError:
        raise UserError(f"{folder}: no prepared data; run `bertpre prepare` with this recipe first") from None
    except (ValueError, TypeError):
        raise UserError(
            f"{folder}/manifest.json is damaged; move {folder} away and run `bertpre prepare` again"
        ) from None


def read_token_counts(folder: Path) -> np.ndarray:
    """How often an epoch of training reads each token id, (V,).

    Counted again where the file is damaged, and for a store of before 2026-11-26, which has no checksum of it.
    """
    manifest, file = read_store_manifest(folder), folder / TOKEN_COUNTS
    if file.exists() and file_checksum(file) == manifest.get("token_counts_sha256"):
        return np.load(file, allow_pickle=False)
    return count_tokens(open_shards(folder, "train"), manifest["vocab_size"])


def count_tokens(shards: list[Shard], vocab_size: int) -> np.ndarray:
    """How often each token id occurs, (V,)."""
    return reduce(np.add, (np.bincount(shard.tokens, minlength=vocab_size) for shard in shards))


def open_shards(
    folder: Path, split: str, tokenizer_hash: str | None = None, *, verify: bool = True, share: tuple[int, int] = (0, 1)
) -> list[Shard]:
    """Memory-map the shards of one split after verifying their checksums; each is listed `repeats` times.

    Of processes that divide the verification among them, `share` is the number of this one and how many they are.
    Raises UserError for a damaged file, or if the store was made with another tokenizer than `tokenizer_hash`.
    """
    manifest = read_store_manifest(folder)
    if tokenizer_hash is not None and manifest["tokenizer_hash"] != tokenizer_hash:
        raise UserError(
            f"{folder}: the data was made with another tokenizer; run `bertpre prepare` again in a new folder"
        )
    entries = [entry for entry in manifest["shards"] if entry["split"] == split]
    allow_open_files(len(PARTS) * len(entries))
    shards = []
    for number, entry in enumerate(entries):
        files = {part: folder / f"{entry['name']}.{part}.npy" for part in PARTS}
        for part, file in files.items() if verify and number % share[1] == share[0] else ():
            if not file.exists() or file_checksum(file) != entry["sha256"][part]:
                raise UserError(f"{file} is missing or damaged; move {folder} away and run `bertpre prepare` again")
        shard = replace(load_shard(folder, entry["name"]), copies=entry.get("copies", ()))
        shards += [shard] * entry.get("repeats", 1)
    return shards


def load_shard(folder: Path, name: str, mmap_mode: Literal["r"] | None = "r") -> Shard:
    """Load a shard, memory-mapped by default: each array then keeps a file open."""
    files = (folder / f"{name}.{part}.npy" for part in PARTS)
    return Shard(*(np.load(file, mmap_mode=mmap_mode, allow_pickle=False) for file in files))


def allow_open_files(count: int) -> None:
    """Let this process open `count` more files; raises UserError where the system forbids it."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 512 + count + len(os.listdir("/dev/fd"))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        raise UserError(
            f"the store needs {count} open files, but this system allows {hard} in all: raise the limit with "
            f"`ulimit -n {wanted}`, as administrator"
        ) from None
