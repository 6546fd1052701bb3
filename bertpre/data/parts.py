"""Parts: runs of consecutive documents, cleaned and then encoded together; each is a pure function of its documents.

So workers can process the parts in any order, on any machine, and write the same bytes.
"""

import hashlib
import unicodedata
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.data.cleaning import ENTITY, clean_text
from bertpre.data.duplicates import minhashes, text_digests
from bertpre.data.encoder import Encoder
from bertpre.data.randomness import uniform
from bertpre.data.sentences import split_sentences
from bertpre.data.store import SPLITS, write_shard
from bertpre.data.workspace import SEPARATOR, Part

PART_CHARACTERS = 1 << 24
SPLIT_KEY = 0x5EED  # keeps the draw of the validation documents independent of the masks' random numbers
MIX_KEY = 0x4D49  # the same for the draw of documents by weight
SPACES = " \n\t\r\xa0\u3000"  # white space that texts have
EXAMPLE_CHARACTERS = 80  # of a text that cleaning removed most of
CLEANING = 2  # raised where the cleaned texts or the facts of a part change, so that older parts are cleaned again


@dataclass(frozen=True)
class CleanOptions:
    """Which documents of a part are kept: those that are long enough, and of these the source's share."""

    min_characters: int = 1
    weight: float = 1.0  # below 1: the share of the documents; above: how many times an epoch reads them
    seed: int = 0
    near_duplicates: bool = False  # whether to compute MinHashes


@dataclass(frozen=True)
class EncodeOptions:
    """How the documents of a part are encoded and divided into training and validation."""

    tokenizer: str  # folder
    tokenizer_hash: str
    validation_fraction: float
    seed: int


def clean_part(part: Part, texts: list[str], options: CleanOptions) -> None:
    """Clean a part's documents and write them with their digests; does nothing where that is done."""
    origin = hashlib.blake2b(
        SEPARATOR.join([f"{CLEANING} {options}", *texts]).encode("utf-8", "surrogatepass")
    ).hexdigest()
    if part.is_finished("clean", origin):
        return
    part.begin("clean")
    cleaned = [clean_text(text) for text in texts]
    long_enough = [text for text in cleaned if len(text) >= options.min_characters]
    digests = text_digests(long_enough)
    is_drawn = uniform(MIX_KEY, options.seed, digests[:, 0], digests[:, 1]) < options.weight
    drawn = list(compress(long_enough, is_drawn.tolist()))
    part.save("digests", digests[is_drawn])
    if options.near_duplicates:
        part.save("minhashes", minhashes(drawn))
    part.save_texts(drawn)
    empty = cleaned.count("")
    dropped = {
        "empty": empty,
        "too short": len(cleaned) - len(long_enough) - empty,
        "weight": len(long_enough) - len(drawn),
    }
    facts = {"repeats": max(1, int(options.weight)), "dropped": dict(+Counter(dropped))}
    part.finish("clean", origin, facts | {"cleaning": what_was_removed(texts, cleaned)})


def what_was_removed(texts: list[str], cleaned: list[str]) -> dict[str, Any]:
    """How many characters of some texts cleaning removed, and how many texts lost most of theirs, with an example.

    White space does not count, and an entity such as `&auml;` or a letter with its combining accent is one character.
    """
    written = (unicodedata.normalize("NFC", ENTITY.sub("&", text) if "&" in text else text) for text in texts)
    sizes, left = (np.array([len(text) - sum(map(text.count, SPACES)) for text in each]) for each in (written, cleaned))
    lost_most = np.flatnonzero(2 * left < sizes)
    largest = texts[lost_most[np.argmax((sizes - left)[lost_most])]] if len(lost_most) else ""
    return {
        "characters": int(sizes.sum()),
        "removed": int((sizes - left).sum()),
        "lost_most": len(lost_most),
        "example": " ".join(largest[:1000].split())[:EXAMPLE_CHARACTERS],
    }


def encoding_origin(part: Part, options: EncodeOptions) -> str:
    """A digest of everything that an encoded part depends on."""
    cleaned = part.facts("clean")["origin"]
    return hashlib.blake2b(f"{cleaned} {options}".encode() + part.load("keep").tobytes()).hexdigest()


def is_encoded(part: Part, options: EncodeOptions) -> bool:
    """Whether a part is encoded from its present texts with these options."""
    return part.is_finished("encode", encoding_origin(part, options))


def encode_part(part: Part, options: EncodeOptions) -> None:
    """Split the kept documents of a cleaned part into sentences and encode them; does nothing where that is done.

    Writes a shard of training documents and one of validation documents, which are drawn by their digests.
    """
    if is_encoded(part, options):
        return
    part.begin("encode")
    encoder = load_encoder(options.tokenizer, options.tokenizer_hash)
    documents = [split_sentences(text) for text in part.kept_texts()]
    sentences = [sentence for document in documents for sentence in document]
    encoded = EncodedDocuments(*encoder.encode(sentences), np.array(list(map(len, documents)), dtype=np.int64))
    is_validation = validation_draws(part, options.seed) < options.validation_fraction
    repeats = {"train": part.facts("clean")["repeats"], "validation": 1}
    shards = []
    for split, chosen in zip(SPLITS, (~is_validation, is_validation), strict=True):
        tokens, sentence_lengths, document_lengths = encoded.select(chosen)
        if split == "train":
            part.save("counts", np.bincount(tokens, minlength=encoder.vocab_size))
        if len(document_lengths):
            tokens = tokens.astype(np.uint16 if encoder.vocab_size <= 1 << 16 else np.uint32)
            lengths = sentence_lengths, document_lengths
            entry = write_shard(part.folder, f"{part.name}.{split}", split, tokens, *lengths)
            shards.append(entry | {"repeats": repeats[split]})
    part.save("lines", checksums(sentences))
    no_token = len(documents) - sum(shard["documents"] for shard in shards)
    part.finish("encode", encoding_origin(part, options), {"no_token": no_token, "shards": shards})


def validation_draws(part: Part, seed: int) -> np.ndarray:
    """A number from 0 to 1 for each kept document, (D,); those below the share of validation are held out."""
    digests = part.load("digests")[part.load("keep")]
    return uniform(SPLIT_KEY, seed, digests[:, 0], digests[:, 1])


@dataclass(frozen=True)
class EncodedDocuments:
    """The documents of a part: token ids of all sentences, (T,), their offsets, (S + 1,), sentences of each, (D,)."""

    tokens: np.ndarray
    offsets: np.ndarray
    sentences: np.ndarray

    def select(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, sentence lengths and document lengths of the documents marked in `chosen`, (D,), bool.

        Sentences without a token are left out, and so are documents without a sentence.
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


def checksums(sentences: list[str]) -> np.ndarray:
    """A checksum of each sentence, (S,), uint64."""
    sums = ((zlib.crc32(line), line) for line in (sentence.encode() for sentence in sentences))
    return np.array([first << 32 | zlib.crc32(line, first) for first, line in sums], dtype=np.uint64)
