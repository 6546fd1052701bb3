"""Cleaning: plain text in NFC, without markup and wiki remnants."""

import pytest

from bertpre.data.cleaning import clean_text


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
def test_markup_control_characters_and_white_space_are_removed(raw: str, clean: str) -> None:
    assert clean_text(raw) == clean


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("The ammonium ion () has", "The ammonium ion has"),
        ("Aruba ( ; , Papiamento: ) is", "Aruba (Papiamento: ) is"),
        ("Albedo (; from Latin albedo) is", "Albedo (from Latin albedo) is"),
        ("see [[Sudan|the Sudan]] and [[Egypt]]", "see the Sudan and Egypt"),
        ("text [[File:a.jpg|thumb|260px|[[Sabu-Jaddi]] Rock Art]] goes on", "text goes on"),
        ("end\n[[Category:Conflicts in 1916]]\n", "end"),
        ("War {{cite web|title={{lang|en|X}}|date=2014}} ended<ref name=a>Source, p. 3</ref>.", "War ended."),
        ("a\n|||||\nb", "a\nb"),
        ("a<ref name=x/> b", "a b"),
        # only looks like wiki markup
        ("call main() now (really)", "call main() now (really)"),
        ("if [[ -f file ]]; then {{ user.name }}", "if [[ -f file ]]; then {{ user.name }}"),
        ("either | or", "either | or"),
        ("loved it ;) (a lot; twice)", "loved it ;) (a lot; twice)"),
    ],
)
def test_wiki_remnants_are_removed(raw: str, clean: str) -> None:
    assert clean_text(raw) == clean
