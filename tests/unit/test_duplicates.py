"""Duplicates: equal texts, texts that are nearly equal, and texts that are held out."""

import random

import numpy as np
import pytest

from bertpre.data.duplicates import bands_of, digests_of, first_of_like

WORDS = [f"word{number}" for number in range(2000)]


def text(seed: int, words: int = 200) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def changed(original: str, words: int, seed: int = 0) -> str:
    """The text with its last `words` words exchanged for others."""
    kept = original.split()[:-words]
    return " ".join([*kept, *random.Random(seed + 1000).choices(WORDS, k=words)])


def chosen(texts: list[str], forbidden: int = 0, near: bool = True) -> tuple[list[bool], dict[str, int]]:
    keep, dropped = first_of_like(digests_of(texts), bands_of(texts) if near else None, forbidden)
    return keep.tolist(), dict(dropped)


def test_the_first_of_equal_texts_stays() -> None:
    a, b = text(1), text(2)
    assert chosen([a, b, a, a, b]) == ([True, True, False, False, False], {"duplicate": 3})
    assert chosen([a, b, a], near=False) == ([True, True, False], {"duplicate": 1})


def test_the_first_of_near_duplicates_stays_where_they_are_looked_for() -> None:
    texts = [text(1), text(2), changed(text(1), 5), text(1)]
    assert chosen(texts) == ([True, True, False, False], {"near-duplicate": 1, "duplicate": 1})
    assert chosen(texts, near=False) == ([True, True, True, False], {"duplicate": 1})


def test_what_is_like_a_held_out_text_is_dropped_and_the_held_out_ones_are_not_counted() -> None:
    texts = [text(1), text(2), text(1), changed(text(2), 5), text(3)]
    assert chosen(texts, forbidden=2) == ([False, False, True], {"held out": 2})
    assert chosen(texts, forbidden=2, near=False) == ([False, True, True], {"held out": 1})


@pytest.mark.parametrize(("words", "low", "high"), [(10, 0.97, 1.0), (60, 0.05, 0.35), (150, 0.0, 0.02)])
def test_how_like_texts_must_be(words: int, low: float, high: float) -> None:
    """The chance of a shared band with Jaccard similarity s is 1 - (1 - s^8)^14: s is 0.90, 0.53, 0.14 here."""
    originals = [text(seed) for seed in range(150)]
    others = [changed(original, words, seed) for seed, original in enumerate(originals)]
    shared = (bands_of(originals) == bands_of(others)).any(axis=1)
    assert low <= shared.mean() <= high


def test_case_does_not_matter_and_short_texts_have_bands_too() -> None:
    assert (bands_of(["One two three four five six"]) == bands_of(["one TWO three four five six"])).all()
    assert bands_of(["", "a", "a b"]).shape == (3, 14)
    assert bands_of([]).shape == (0, 14)
    assert np.unique(bands_of(["a", "b", "a b"]), axis=0).shape == (3, 14)
