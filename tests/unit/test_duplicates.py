"""Duplicates: exact duplicates, near-duplicates, and duplicates of held-out texts."""

import random

import numpy as np
import pytest

from bertpre.data import duplicates
from bertpre.data.duplicates import first_of_duplicates, hash_bands, minhashes, shingles, text_digests

WORDS = [f"word{number}" for number in range(2000)]


def text(seed: int, words: int = 200) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def changed(original: str, words: int, seed: int = 0) -> str:
    """The text with its last `words` words replaced."""
    kept = original.split()[:-words]
    return " ".join([*kept, *random.Random(seed + 1000).choices(WORDS, k=words)])


def bands_of(texts: list[str]) -> np.ndarray:
    return hash_bands(minhashes(texts))


def deduplicated(texts: list[str], held_out: int = 0, near: bool = True) -> tuple[list[bool], dict[str, int]]:
    keep, dropped = first_of_duplicates(text_digests(texts), [minhashes(texts)] if near else None, held_out)
    return keep.tolist(), dict(dropped)


def test_the_first_of_exact_duplicates_is_kept() -> None:
    a, b = text(1), text(2)
    assert deduplicated([a, b, a, a, b]) == ([True, True, False, False, False], {"duplicate": 3})
    assert deduplicated([a, b, a], near=False) == ([True, True, False], {"duplicate": 1})


def test_texts_that_differ_by_white_space_or_capitals_are_exact_duplicates() -> None:
    texts = ["It is good. I like it.", "It is good.\nI like it.", "IT IS GOOD.  I LIKE IT.", "It is good, I like it."]
    assert deduplicated(texts, near=False) == ([True, False, False, True], {"duplicate": 2})
    assert deduplicated(["STRASSE É", "straße é"], near=False)[1] == {"duplicate": 1}


def test_the_first_of_near_duplicates_is_kept_if_bands_are_given() -> None:
    texts = [text(1), text(2), changed(text(1), 5), text(1)]
    assert deduplicated(texts) == ([True, True, False, False], {"near-duplicate": 1, "duplicate": 1})
    assert deduplicated(texts, near=False) == ([True, True, True, False], {"duplicate": 1})


def test_texts_that_share_a_band_but_less_than_half_of_their_shingles_are_kept() -> None:
    original = text(1, 60)
    others = [changed(original, 30, seed) for seed in range(800)]  # alike by a third, also among themselves
    bands = bands_of([original, *others])
    assert any(len(np.unique(column)) < len(column) for column in bands.T)
    assert deduplicated([original, *others]) == ([True] * 801, {})
    assert deduplicated([original, changed(original, 5)])[1] == {"near-duplicate": 1}


def test_duplicates_of_held_out_texts_are_dropped_and_the_held_out_texts_are_not_counted() -> None:
    texts = [text(1), text(2), text(1), changed(text(2), 5), text(3)]
    assert deduplicated(texts, held_out=2) == ([False, False, True], {"held out": 2})
    assert deduplicated(texts, held_out=2, near=False) == ([False, True, True], {"held out": 1})


@pytest.mark.parametrize(("words", "low", "high"), [(10, 0.97, 1.0), (60, 0.05, 0.35), (150, 0.0, 0.02)])
def test_texts_of_higher_similarity_share_a_band_more_often(words: int, low: float, high: float) -> None:
    """Texts of Jaccard similarity s share a band with probability 1 - (1 - s^8)^14; s is 0.90, 0.53, 0.14 here."""
    originals = [text(seed) for seed in range(150)]
    others = [changed(original, words, seed) for seed, original in enumerate(originals)]
    shared = (bands_of(originals) == bands_of(others)).any(axis=1)
    assert low <= shared.mean() <= high


def test_bands_ignore_case_and_exist_for_short_texts() -> None:
    assert (bands_of(["One two three four five six"]) == bands_of(["one TWO three four five six"])).all()
    assert bands_of(["", "a", "a b"]).shape == (3, 14)
    assert bands_of([]).shape == (0, 14)
    assert np.unique(bands_of(["a", "b", "a b"]), axis=0).shape == (3, 14)


def test_bands_are_those_of_each_text_however_many_are_shingled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["one two three four five six seven", "", "一部很好的电影，大家都应该去看看。", "a b", "x" * 50, ""]
    whole = bands_of(texts)
    for characters in (1, 20, 40):
        monkeypatch.setattr(duplicates, "SHINGLED_AT_ONCE", characters)
        assert (bands_of(texts) == whole).all()


def test_shingles_are_all_runs_of_five_words() -> None:
    assert shingles("One two three four five six") == ["one two three four five", "two three four five six"]
    assert shingles("One two three four five") == ["one two three four five"]
    assert shingles("One two") == ["one two"]


def test_a_script_whose_spaces_stand_between_phrases_has_shingles_of_characters() -> None:
    thai = shingles("ผมชอบหนังเรื่องนี้ เพราะนักแสดง เล่นดีมาก และเพลงก็ดี")
    assert {len(shingle.replace(" ", "")) for shingle in thai} == {10}


def test_texts_without_spaces_have_near_duplicates() -> None:
    original = "".join(chr(0x4E00 + random.Random(number).randrange(3000)) for number in range(420))
    one_changed, other = f"{original[:200]}中{original[201:]}", original[::-1]
    bands = bands_of([original, one_changed, other])
    assert (bands[0] == bands[1]).any()
    assert not (bands[0] == bands[2]).any()
