"""Which word of a sentence is shown as [MASK]."""

import pytest

from bertpre.pretraining.mask_predictions import longest_word


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["a", "b", "c", "film", "spoiled", "##s", "me", "now", "then"], 3),  # the longer word has a second piece
        (["यह", "मैं", "तो", "हिन्दी", "की", "है", "वह", "था"], 3),  # vowel signs are marks
        (["ก", "ข", "ค", "ที่จริง", "ง", "จ", "ฉ"], 3),
        (["a", "b", "c", "1234", "...", "x2", "me"], None),
        (["longer", "than", "all"], None),  # too short a sentence
    ],
)
def test_the_longest_whole_word_inside_a_sentence_is_masked(words: list[str], place: int | None) -> None:
    assert longest_word(words) == place
