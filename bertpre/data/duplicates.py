"""Duplicates: which documents of a corpus repeat an earlier one, to the letter or nearly, or one that is held out."""

import hashlib
from collections import Counter

import numpy as np

from bertpre.data.randomness import scramble

SHINGLE_WORDS = 5
BANDS, BAND_ROWS = 14, 8
MINHASH_SEED = 1


def digests_of(texts: list[str]) -> np.ndarray:
    """A digest of each text, (N, 2), uint64: equal texts have equal ones."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").reshape(-1, 2)


def bands_of(texts: list[str]) -> np.ndarray:
    """Hashes of each text's MinHash bands, (N, 14), uint64: texts that share one in some column are near-duplicates.

    Of runs of five words, 112 hashes in 14 bands of 8: texts that have 80 % of their runs in common share a band with
    probability 0.92, those with 50 % with 0.05 (Penedo et al. 2024, FineWeb's deduplication).
    """
    from rensa import RMinHash

    signatures = RMinHash.digests_from_token_sets([shingles(text) for text in texts], BANDS * BAND_ROWS, MINHASH_SEED)
    words = np.array(signatures, dtype=np.uint32).reshape(len(texts), BANDS, BAND_ROWS).view(np.uint64)
    hashes = np.zeros(words.shape[:2], dtype=np.uint64)
    for number in range(words.shape[2]):
        hashes = scramble(hashes + words[:, :, number])
    return hashes


def shingles(text: str) -> list[str]:
    """Runs of five words, whatever their case; the whole text where it has fewer."""
    words = text.lower().split()
    return [" ".join(words[at : at + SHINGLE_WORDS]) for at in range(max(1, len(words) - SHINGLE_WORDS + 1))]


def first_of_like(digests: np.ndarray, bands: np.ndarray | None, forbidden: int) -> tuple[np.ndarray, Counter[str]]:
    """Which rows from row `forbidden` on are like no row before them, (N,), bool; and the others counted by reason.

    digests: (forbidden + N, 2); bands: (forbidden + N, 14), or None where only equal texts are alike. Likeness is
    passed on: of a chain of near-duplicates the first stays.
    """
    equal = group_of(digests)
    first_equal = first_rows(equal)
    first = first_equal if bands is None else first_rows(connected(equal, bands))
    rows = np.arange(len(digests))[forbidden:]
    is_first, is_forbidden = first[forbidden:] == rows, first[forbidden:] < forbidden
    is_repeat = ~is_first & ~is_forbidden
    is_equal = first_equal[forbidden:] != rows
    dropped = {"held out": is_forbidden, "duplicate": is_repeat & is_equal, "near-duplicate": is_repeat & ~is_equal}
    return is_first, +Counter({reason: int(rows.sum()) for reason, rows in dropped.items()})


def group_of(values: np.ndarray) -> np.ndarray:
    """A number for each row, (N,), that equal rows share."""
    return np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)


def first_rows(groups: np.ndarray) -> np.ndarray:
    """For each row, (N,), the first row of its group."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return first[inverse]


def connected(equal: np.ndarray, bands: np.ndarray) -> np.ndarray:
    """Groups of rows, (N,), that are linked by equal texts or by a band, one after the other."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows = np.arange(len(equal))
    links = [first_rows(column) for column in (equal, *bands.T)]
    edges = np.ones(len(rows) * len(links), dtype=bool), (np.tile(rows, len(links)), np.concatenate(links))
    return connected_components(coo_array(edges, shape=(len(rows), len(rows))), directed=False)[1]
