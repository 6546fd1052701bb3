"""Cleaning: markup, control characters, white space; empty and repeated documents are dropped and counted."""

import hashlib
import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from bertpre.data.corpus import Document

LINE_BREAK = re.compile(r"<\s*(?:br|/?p)\s*/?\s*>", re.IGNORECASE)
TAG = re.compile(r"</?[a-zA-Z][^<>]{0,100}>")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028\u2029\ufeff\ufffd]")
BLANKS = re.compile(r"[^\S\n]+")
NEWLINES = re.compile(r"\s*\n\s*")


def clean_text(text: str) -> str:
    """Plain text with one space between words and one newline between paragraphs, in Unicode NFC."""
    text = LINE_BREAK.sub("\n", text)
    text = html.unescape(TAG.sub(" ", text))
    text = CONTROL.sub(" ", unicodedata.normalize("NFC", text))
    return NEWLINES.sub("\n", BLANKS.sub(" ", text)).strip()


def clean_documents(documents: Iterator[Document], dropped: Counter[str]) -> Iterator[Document]:
    """Clean each document; drop the empty ones and exact repeats (of the cleaned text), counting each in `dropped`."""
    seen: set[bytes] = set()
    for document in documents:
        text = clean_text(document.text)
        if not text:
            dropped["empty"] += 1
            continue
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        if digest in seen:
            dropped["duplicate"] += 1
            continue
        seen.add(digest)
        yield replace(document, text=text)
