"""Cleaning: plain text in NFC; empty and repeated documents are dropped and counted."""

from collections import Counter

import pytest

from bertpre.data.cleaning import clean_documents, clean_text
from bertpre.data.corpus import Document


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("plain text", "plain text"),
        ("  two\t blanks  ", "two blanks"),
        ("one<br /><br />two<BR>three<p>four</p>", "one\ntwo\nthree\nfour"),
        ("an <i>italic</i> word", "an italic word"),
        ('<a href="x">link</a>', "link"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("I <3 it, a<b", "I <3 it, a<b"),
        ("fish &amp; chips &quot;today&quot;", 'fish & chips "today"'),
        ("&lt;b&gt; is a tag", "<b> is a tag"),
        ("dos\r\nlines\r\n\r\nhere", "dos\nlines\nhere"),
        ("zero\u200bwidth\ufeff and\x00null", "zero width and null"),
        ("cafe\u0301", "caf\u00e9"),
        ("non\u00a0breaking", "non breaking"),
        ("日本語 と emoji 🎬", "日本語 と emoji 🎬"),
        (" \n\t<br/> ", ""),
        ("", ""),
    ],
)
def test_markup_control_characters_and_white_space_go(raw: str, clean: str) -> None:
    assert clean_text(raw) == clean


def test_empty_and_repeated_documents_are_dropped_and_counted() -> None:
    texts = ["first", " ", "second", "first ", "<br />", "<i>second</i>", "third"]
    dropped: Counter[str] = Counter()
    documents = [Document(str(number), text, number) for number, text in enumerate(texts)]
    kept = list(clean_documents(iter(documents), dropped))
    assert kept == [Document("0", "first", 0), Document("2", "second", 2), Document("6", "third", 6)]
    assert dropped == {"empty": 2, "duplicate": 2}


def test_documents_stream() -> None:
    def endless() -> object:
        number = 0
        while True:
            yield Document(str(number), f"text {number}")
            number += 1

    cleaned = clean_documents(endless(), Counter())
    assert [next(cleaned).id for _ in range(3)] == ["0", "1", "2"]
