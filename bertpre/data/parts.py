"""Parts: runs of consecutive documents, cleaned and then encoded together, each a pure function of its documents.

So workers can take parts in any order, on any machine, and the store's bytes are the same; and a part that is already
there need not be made again.
"""

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.data.cleaning import clean_text
from bertpre.data.duplicates import bands_of, digests_of
from bertpre.data.encoder import Encoder
from bertpre.data.randomness import uniform
from bertpre.data.sentences import split_sentences
from bertpre.data.store import SPLITS, write_shard
from bertpre.files import write_text

PART_CHARACTERS = 1 << 24
SEPARATOR = "\0"  # between cleaned texts, which hold no control characters
SPLIT_KEY = 0x5EED  # sets the draw of the validation documents apart from the masks' numbers
MIX_KEY = 0x4D49  # and that of the documents of a source with a weight
LINE_SAMPLE = 16  # one line in so many, chosen by its checksum, is looked at for repeats


@dataclass(frozen=True)
class Sieve:
    """Which documents of a part are kept: those long enough, and a source's share of them."""

    min_characters: int = 1
    weight: float = 1.0  # below 1, the share of the documents; above, how often an epoch takes them
    seed: int = 0
    near_duplicates: bool = False  # whether to look for them


@dataclass(frozen=True)
class Cut:
    """How the documents of a part are encoded and divided."""

    tokenizer: str  # folder
    tokenizer_hash: str
    validation_fraction: float
    seed: int


def cut_into_parts(texts: Iterable[str], characters: int = PART_CHARACTERS) -> Iterator[list[str]]:
    """Group consecutive texts into parts of at least this size; a remainder of less than half joins the last."""
    whole: list[str] = []
    growing: list[str] = []
    size = 0
    for text in texts:
        growing.append(text)
        size += len(text)
        if size >= characters:
            if whole:
                yield whole
            whole, growing, size = growing, [], 0
    if size >= characters // 2 and whole:
        yield whole
        whole = []
    if whole or growing:
        yield whole + growing


def clean_part(folder: Path, number: int, texts: list[str], sieve: Sieve) -> None:
    """Clean a part's documents and write them down with their digests, unless it was done before with these texts."""
    stem = part_stem(folder, number)
    origin = hashlib.blake2b(SEPARATOR.join([str(sieve), *texts]).encode("utf-8", "surrogatepass")).hexdigest()
    known = read_facts(folder, number, "clean")
    if known is not None and known["origin"] == origin:
        return
    forget_facts(folder, number, "clean")
    cleaned = [clean_text(text) for text in texts]
    kept = [text for text in cleaned if len(text) >= sieve.min_characters]
    digests = digests_of(kept)
    is_drawn = uniform(MIX_KEY, sieve.seed, digests[:, 0], digests[:, 1]) < sieve.weight
    empty = cleaned.count("")
    dropped = {
        "empty": empty,
        "too short": len(cleaned) - len(kept) - empty,
        "weight": len(kept) - int(is_drawn.sum()),
    }
    drawn = list(compress(kept, is_drawn.tolist()))
    np.save(f"{stem}.digests.npy", digests[is_drawn], allow_pickle=False)
    if sieve.near_duplicates:
        np.save(f"{stem}.bands.npy", bands_of(drawn), allow_pickle=False)
    Path(f"{stem}.texts").write_bytes(SEPARATOR.join(drawn).encode())
    facts = {"origin": origin, "repeats": max(1, int(sieve.weight)), "dropped": dict(+Counter(dropped))}
    write_facts(folder, number, "clean", facts)


def read_digests(folder: Path, number: int) -> np.ndarray:
    """The digests of a cleaned part's texts, (N, 2)."""
    return np.load(f"{part_stem(folder, number)}.digests.npy", allow_pickle=False)


def read_bands(folder: Path, number: int) -> np.ndarray:
    """The MinHash bands of a cleaned part's texts, (N, 14)."""
    return np.load(f"{part_stem(folder, number)}.bands.npy", allow_pickle=False)


def read_texts(folder: Path, number: int, kept: bool = False) -> list[str]:
    """The cleaned texts of a part: all, or those that are kept."""
    content = Path(f"{part_stem(folder, number)}.texts").read_bytes().decode()
    texts = content.split(SEPARATOR) if content else []
    return list(compress(texts, read_keep(folder, number).tolist())) if kept else texts


def texts_size(folder: Path, number: int) -> int:
    """Bytes of a cleaned part's texts."""
    return Path(f"{part_stem(folder, number)}.texts").stat().st_size


def write_keep(folder: Path, number: int, keep: np.ndarray) -> None:
    """Write down which of a part's texts are kept, (N,), bool."""
    np.save(f"{part_stem(folder, number)}.keep.npy", keep, allow_pickle=False)


def read_keep(folder: Path, number: int) -> np.ndarray:
    """Which of a part's texts are kept, (N,), bool."""
    return np.load(f"{part_stem(folder, number)}.keep.npy", allow_pickle=False)


def encoding_origin(folder: Path, number: int, cut: Cut) -> str:
    """A digest of all that an encoded part is made from."""
    cleaned = read_facts(folder, number, "clean")["origin"]
    return hashlib.blake2b(f"{cleaned} {cut}".encode() + read_keep(folder, number).tobytes()).hexdigest()


def is_encoded(folder: Path, number: int, cut: Cut) -> bool:
    """Whether a part is encoded, from what lies there now."""
    known = read_facts(folder, number, "encode")
    return known is not None and known["origin"] == encoding_origin(folder, number, cut)


def encode_part(folder: Path, number: int, cut: Cut) -> None:
    """Split and encode the documents of a cleaned part that are kept, unless it was done before.

    Writes a shard of training documents and one of validation documents, which are chosen by their digests.
    """
    if is_encoded(folder, number, cut):
        return
    forget_facts(folder, number, "encode")
    stem = part_stem(folder, number)
    encoder = load_encoder(cut.tokenizer, cut.tokenizer_hash)
    documents = [split_sentences(text) for text in read_texts(folder, number, kept=True)]
    sentences = [sentence for document in documents for sentence in document]
    encoded = EncodedDocuments(
        *encoder.encode(sentences), np.array([len(document) for document in documents], dtype=np.int64)
    )
    digests = read_digests(folder, number)[read_keep(folder, number)]
    is_validation = uniform(SPLIT_KEY, cut.seed, digests[:, 0], digests[:, 1]) < cut.validation_fraction
    shards = []
    repeats = read_facts(folder, number, "clean")["repeats"]
    for split, chosen in zip(SPLITS, (~is_validation, is_validation), strict=True):
        tokens, sentence_lengths, document_lengths = encoded.select(chosen)
        if split == "train":
            counts = np.bincount(tokens, minlength=encoder.vocab_size)
            np.save(f"{stem}.counts.npy", counts, allow_pickle=False)
        if len(document_lengths):
            tokens = tokens.astype(np.uint16 if encoder.vocab_size <= 1 << 16 else np.uint32)
            shards.append(
                write_shard(folder, f"{Path(stem).name}.{split}", split, tokens, sentence_lengths, document_lengths)
                | {"repeats": repeats if split == "train" else 1}
            )
    np.save(f"{stem}.lines.npy", sampled_lines(sentences), allow_pickle=False)
    lost = len(documents) - sum(shard["documents"] for shard in shards)
    facts = {"no_token": lost, "shards": shards, "origin": encoding_origin(folder, number, cut)}
    write_facts(folder, number, "encode", facts)


@dataclass(frozen=True)
class EncodedDocuments:
    """The documents of a part: token ids of all sentences, (T,), their offsets, (S + 1,), sentences of each, (D,)."""

    tokens: np.ndarray
    offsets: np.ndarray
    sentences: np.ndarray

    def select(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, sentence lengths and document lengths of the documents marked in `chosen`, (D,).

        A sentence without a token is left out, and so is a document without a sentence.
        """
        lengths = np.diff(self.offsets)
        owner = np.repeat(np.arange(len(self.sentences)), self.sentences)
        kept = chosen[owner] & (lengths > 0)
        per_document = np.bincount(owner[kept], minlength=len(self.sentences))
        return self.tokens[np.repeat(kept, lengths)], lengths[kept], per_document[per_document > 0]


@lru_cache(maxsize=1)
def load_encoder(folder: str, tokenizer_hash: str) -> Encoder:
    """A worker's encoder of the tokenizer with this hash, which remembers words from part to part."""
    return Encoder.load(Path(folder))


def sampled_lines(sentences: list[str]) -> np.ndarray:
    """Checksums of a sample of the sentences, (L,), uint64.

    A sentence is in it always or never, so repeats show as in the whole.
    """
    sums = ((zlib.crc32(line), line) for line in (sentence.encode() for sentence in sentences))
    sample = [first << 32 | zlib.crc32(line, first) for first, line in sums if first % LINE_SAMPLE == 0]
    return np.array(sample, dtype=np.uint64)


def read_lines(folder: Path, number: int) -> np.ndarray:
    """The sampled checksums of an encoded part's sentences, (L,)."""
    return np.load(f"{part_stem(folder, number)}.lines.npy", allow_pickle=False)


def read_token_counts(folder: Path, number: int) -> np.ndarray:
    """How often each token occurs in an encoded part's training documents, (V,)."""
    return np.load(f"{part_stem(folder, number)}.counts.npy", allow_pickle=False)


def part_stem(folder: Path, number: int) -> str:
    """The beginning of the names of a part's files."""
    return str(folder / f"part-{number:05d}")


def read_facts(folder: Path, number: int, stage: str) -> dict[str, Any] | None:
    """What a finished stage (`clean`, `encode`) of a part wrote down; None where it is not finished."""
    file = Path(f"{part_stem(folder, number)}.{stage}.json")
    return json.loads(file.read_text()) if file.exists() else None


def forget_facts(folder: Path, number: int, stage: str) -> None:
    """Before a stage overwrites its files: what the old facts say of them will not be true."""
    Path(f"{part_stem(folder, number)}.{stage}.json").unlink(missing_ok=True)


def write_facts(folder: Path, number: int, stage: str, facts: dict[str, Any]) -> None:
    """Mark a stage of a part as finished."""
    write_text(Path(f"{part_stem(folder, number)}.{stage}.json"), json.dumps(facts))
