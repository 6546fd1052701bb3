"""The store: token ids of whole documents in flat files, memory-mapped; pairs are spans into them."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.errors import UserError

SPLITS = ("train", "validation")
PARTS = ("tokens", "sentences", "documents")
SHARD_TOKENS = 1 << 24


@dataclass(frozen=True)
class Shard:
    """Some documents.

    tokens: ids of all sentences, one after the other, `(T,)`.
    sentences: where each sentence begins in `tokens`, and the end, `(number of sentences + 1,)`.
    documents: where each document begins in `sentences`, and the end, `(number of documents + 1,)`.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray


class StoreWriter:
    """Writes shards beside the place they are meant for, and moves them there when all are whole."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self.folder, self.partial = folder, folder.with_name(folder.name + ".partial")
        self.dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        self.shard_tokens = shard_tokens
        self.shards: list[dict[str, Any]] = []
        self.token_counts = np.zeros(vocab_size, dtype=np.int64)  # of the training part
        self.open: dict[str, list[list[list[int]]]] = {split: [] for split in SPLITS}
        self.open_tokens = dict.fromkeys(SPLITS, 0)
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)

    def add(self, split: str, document: list[list[int]]) -> None:
        """Add one document, given as the token ids of its sentences."""
        self.open[split].append(document)
        self.open_tokens[split] += sum(map(len, document))
        if self.open_tokens[split] >= self.shard_tokens:
            self.flush(split)

    def flush(self, split: str) -> None:
        """Write the documents gathered so far as a shard."""
        documents = self.open[split]
        if not documents:
            return
        lengths = np.fromiter((len(sentence) for document in documents for sentence in document), dtype=np.int64)
        tokens = np.concatenate(
            [np.array(sentence, dtype=self.dtype) for document in documents for sentence in document]
        )
        arrays = {
            "tokens": tokens,
            "sentences": np.concatenate([[0], np.cumsum(lengths)]),
            "documents": np.concatenate([[0], np.cumsum([len(document) for document in documents])]),
        }
        number = sum(shard["split"] == split for shard in self.shards)
        name = f"{split}-{number:05d}"
        for part in PARTS:
            np.save(self.partial / f"{name}.{part}.npy", arrays[part], allow_pickle=False)
        checksums = {part: file_checksum(self.partial / f"{name}.{part}.npy") for part in PARTS}
        counts = {"documents": len(documents), "sentences": len(lengths), "tokens": len(tokens)}
        self.shards.append({"name": name, "split": split, **counts, "sha256": checksums})
        if split == "train":
            self.token_counts += np.bincount(tokens, minlength=len(self.token_counts))
        self.open[split], self.open_tokens[split] = [], 0

    def close(self, **facts: Any) -> dict[str, Any]:
        """Write the last shards and the manifest, then move the store to its place; returns the manifest."""
        for split in SPLITS:
            self.flush(split)
        counts = {key: sum(shard[key] for shard in self.shards) for key in ("documents", "sentences", "tokens")}
        manifest = counts | {"unigram_entropy": entropy(self.token_counts)} | facts | {"shards": self.shards}
        (self.partial / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        self.partial.rename(self.folder)
        return manifest


def entropy(counts: np.ndarray) -> float:
    """The entropy of a distribution given by counts, in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a finished store."""
    try:
        return json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        raise UserError(f"no prepared data in {folder}: run `bertpre prepare` with this recipe first") from None
    except json.JSONDecodeError:
        raise UserError(
            f"{folder}/manifest.json is damaged: move {folder} away and run `bertpre prepare` again"
        ) from None


def open_shards(folder: Path, split: str, tokenizer_hash: str | None = None) -> list[Shard]:
    """Memory-map the shards of one split after checking them against their checksums.

    Raises UserError for a damaged file, or where the store was made with another tokenizer than `tokenizer_hash`.
    """
    manifest = read_manifest(folder)
    if tokenizer_hash is not None and manifest["tokenizer_hash"] != tokenizer_hash:
        raise UserError(
            f"the data in {folder} was made with another tokenizer: run `bertpre prepare` in a new output_dir"
        )
    shards = []
    for entry in manifest["shards"]:
        if entry["split"] != split:
            continue
        files = {part: folder / f"{entry['name']}.{part}.npy" for part in PARTS}
        for part, file in files.items():
            if not file.exists() or file_checksum(file) != entry["sha256"][part]:
                raise UserError(f"{file} is missing or damaged: move {folder} away and run `bertpre prepare` again")
        shards.append(Shard(**{part: np.load(file, mmap_mode="r", allow_pickle=False) for part, file in files.items()}))
    return shards


def file_checksum(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
