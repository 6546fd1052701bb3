"""Duplicates: which documents of a corpus are exact or near-duplicates of an earlier or a held-out document."""

import hashlib
from collections import Counter
from collections.abc import Iterable

import numpy as np

from bertpre.data.cleaning import is_unspaced
from bertpre.data.groups import by_characters
from bertpre.data.randomness import scramble

SHINGLE_WORDS, SHINGLE_CHARACTERS = 5, 10
LONG_WORDS = 20  # characters a word on average: there are no spaces, as in lists of addresses
BANDS, BAND_ROWS = 14, 8
LEAST_SHARE = 0.5  # of equal MinHashes: their share estimates the Jaccard similarity
MINHASH_SEED = 1
WHITE_SPACE = b" \t\n\r\v\f"
SHINGLED_AT_ONCE = 1 << 20  # characters: a Chinese one has 120 bytes of shingles


def comparable(text: str) -> bytes:
    """A text without white space and capitals: equal for texts that differ only by these, as by a line break."""
    return text.casefold().encode().translate(None, WHITE_SPACE)


def text_digests(texts: list[str]) -> np.ndarray:
    """A 128-bit digest of what is `comparable` of each text, (N, 2), uint64."""
    digests = b"".join(hashlib.blake2b(comparable(text), digest_size=16).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").reshape(-1, 2)


def minhashes(texts: list[str]) -> np.ndarray:
    """112 MinHashes of each text's five-word shingles, (N, 112), uint32."""
    from rensa import RMinHash

    signatures = []
    for some in by_characters(texts, SHINGLED_AT_ONCE):
        signatures += RMinHash.digests_from_token_sets([*map(shingles, some)], BANDS * BAND_ROWS, MINHASH_SEED)
    return np.array(signatures, dtype=np.uint32).reshape(len(texts), BANDS * BAND_ROWS)


def hash_bands(signatures: np.ndarray) -> np.ndarray:
    """Hashes of the bands of MinHashes (N, 112), (N, 14), uint64: texts with an equal hash in a column may be alike.

    14 bands of 8 (Penedo et al. 2024, FineWeb's deduplication): texts of Jaccard similarity 0.8 share a band with
    probability 0.92, texts of similarity 0.5 with probability 0.05.
    """
    words = signatures.reshape(len(signatures), BANDS, BAND_ROWS).view(np.uint64)
    hashes = np.zeros(words.shape[:2], dtype=np.uint64)
    for number in range(words.shape[2]):
        hashes = scramble(hashes + words[:, :, number])
    return hashes


def shingles(text: str) -> list[str]:
    """All runs of five words in lower case, or of ten characters where there are no spaces; a shorter text whole."""
    words, size = text.lower().split(), SHINGLE_WORDS
    if len(text) > LONG_WORDS * len(words) or is_unspaced(text):  # Thai puts spaces between phrases
        words, size = list("".join(words)), SHINGLE_CHARACTERS
    return [" ".join(words[at : at + size]) for at in range(max(1, len(words) - size + 1))]


def first_of_duplicates(
    digests: np.ndarray, signatures: Iterable[np.ndarray] | None, num_held_out: int
) -> tuple[np.ndarray, Counter[str]]:
    """Which of the N documents after the held-out ones to keep, (N,), bool; and the others, counted by reason.

    A document is dropped if it duplicates any before it. digests: (num_held_out + N, 2); signatures: the MinHashes of
    as many texts in several arrays, or None to find exact duplicates only. Duplication is transitive: only the first of
    a chain is kept.
    """
    exact = group_equal(digests)
    first_exact = first_rows(exact)
    first = first_exact if signatures is None else first_rows(connected(exact, signatures))
    rows = np.arange(len(digests))[num_held_out:]
    is_first, is_held_out = first[num_held_out:] == rows, first[num_held_out:] < num_held_out
    is_repeat = ~is_first & ~is_held_out
    is_exact = first_exact[num_held_out:] != rows
    dropped = {"held out": is_held_out, "duplicate": is_repeat & is_exact, "near-duplicate": is_repeat & ~is_exact}
    return is_first, +Counter({reason: int(rows.sum()) for reason, rows in dropped.items()})


def group_equal(values: np.ndarray) -> np.ndarray:
    """A group number for each row, (N,); equal rows share one."""
    return np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)


def first_rows(groups: np.ndarray) -> np.ndarray:
    """For each row, (N,), the first row of its group."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return first[inverse]


def connected(exact: np.ndarray, signatures: Iterable[np.ndarray]) -> np.ndarray:
    """A group number for each row, (N,): rows linked by duplicates or near-duplicates, directly or through others.

    Near-duplicates share a band of their MinHashes and more than half of all 112: among thousands of texts that are
    alike by a third, as lines of a log are, some pair always shares a band.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    bands = np.zeros((BANDS, len(exact)), dtype=np.uint64)
    sketches = np.zeros((len(exact), BANDS * BAND_ROWS), dtype=np.uint8)  # a quarter of the memory is enough
    start = 0
    for each in signatures:
        stop = start + len(each)
        bands[:, start:stop], sketches[start:stop] = hash_bands(each).T, each.astype(np.uint8)
        start = stop
    rows, firsts = np.arange(len(exact)), first_rows(exact)
    linked = np.flatnonzero(firsts != rows)
    links = [(linked, firsts[linked])]  # two rows that are alike
    for column in bands:
        first = first_rows(column)
        alike = np.flatnonzero(first != rows)
        alike = alike[(sketches[alike] == sketches[first[alike]]).mean(1) > LEAST_SHARE]
        links.append((alike, first[alike]))
    later, earlier = (np.concatenate(each) for each in zip(*links, strict=True))
    edges = coo_array((np.ones(len(later), dtype=bool), (later, earlier)), shape=(len(rows), len(rows)))
    return connected_components(edges, directed=False)[1]
