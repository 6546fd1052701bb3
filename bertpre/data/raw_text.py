"""A tokenizer that removes markup by itself, so that a model read by other programs sees texts as in its training."""

import json
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Of the elements in cleaning.py those whose names nobody puts in angle brackets as words, as in "copy <source>".
ELEMENTS = (
    "a|abbr|b|big|blockquote|body|br|center|cite|dd|del|div|dl|dt|em|font|h1|h2|h3|h4|h5|h6|head|hr|html|i|img|ins|li|ol|p|"
    "pre|q|s|small|span|strike|strong|sub|sup|table|tbody|td|tfoot|th|thead|tr|tt|u|ul"
)
NAMED = rf"</?(?:{ELEMENTS}|{ELEMENTS.upper()})"  # tokenizers in JavaScript lack (?i)
TAG = rf"{NAMED}(?:\s+[\w:.-]+\s*=[^<>]*|\s*/?)>"
SLOW_TAG = rf"{NAMED}(?:\s+[\w:.-]+\s*=[^<>]*)?\s*/?>"  # the same until 2026-11: no end to 3,200 spaces in an open tag
# BertNormalizer removes the marks of the direction of writing by itself.
CONTROL = r"[\x00-\x08\x0b-\x1f\x7f\u200b\u2028\u2029\ufeff\ufffd]"
ENTITIES = {
    "quot": '"', "#34": '"', "apos": "'", "#39": "'", "nbsp": " ", "#160": " ", "mdash": "—", "ndash": "–",
    "hellip": "…", "lsquo": "‘", "rsquo": "’", "ldquo": "“", "rdquo": "”", "lt": "<", "gt": ">", "amp": "&",
}  # fmt: skip
WINDOWS = {chr(byte): bytes([byte]).decode("cp1252") for byte in (0x85, *range(0x91, 0x98))}  # as in cleaning.py: … “ —
STEPS: list[dict[str, Any]] = [  # as tokenizer.json writes them; the last entity is the sign that begins the others
    {"type": "NFC"},
    {"type": "Replace", "pattern": {"Regex": TAG}, "content": " "},
    *(
        {"type": "Replace", "pattern": {"String": written}, "content": sign}
        for written, sign in [*((f"&{name};", sign) for name, sign in ENTITIES.items()), *WINDOWS.items()]
    ),
    {"type": "Replace", "pattern": {"Regex": CONTROL}, "content": " "},
]
SLOW_STEPS = [STEPS[0], STEPS[1] | {"pattern": {"Regex": SLOW_TAG}}, *STEPS[2:]]


def for_raw_texts(tokenizer: "PreTrainedTokenizerBase") -> "PreTrainedTokenizerBase":
    """A copy of a tokenizer that first brings a text into NFC and removes tags, common entities and control characters.

    That is most of `clean_text` and leaves clean texts as they are. A tokenizer other than BERT's is returned itself.
    """
    own = normalizer_of(tokenizer)
    if own is None or own["type"] != "BertNormalizer":
        return tokenizer
    return with_normalizer(deepcopy(tokenizer), {"type": "Sequence", "normalizers": [*STEPS, own]})


def for_clean_texts(tokenizer: "PreTrainedTokenizerBase") -> "PreTrainedTokenizerBase":
    """The tokenizer without what `for_raw_texts` has put before its normalizer: bertpre cleans texts itself."""
    if type(tokenizer.backend_tokenizer.normalizer).__name__ != "Sequence":
        return tokenizer
    *steps, own = (normalizer_of(tokenizer) or {})["normalizers"]
    return with_normalizer(tokenizer, own) if steps in (STEPS, SLOW_STEPS) else tokenizer


def reads_raw_texts(folder: Path) -> bool:
    """Whether the tokenizer in a folder is one of `for_raw_texts`."""
    file = folder / "tokenizer.json"
    normalizer = json.loads(file.read_text(encoding="utf-8"))["normalizer"] if file.exists() else None
    return bool(normalizer and normalizer.get("normalizers", [])[:-1] in (STEPS, SLOW_STEPS))


def normalizer_of(tokenizer: "PreTrainedTokenizerBase") -> dict[str, Any] | None:
    """A tokenizer's normalizer, as tokenizer.json writes it."""
    normalizer: dict[str, Any] | None = json.loads(tokenizer.backend_tokenizer.to_str())["normalizer"]
    return normalizer


def with_normalizer(tokenizer: "PreTrainedTokenizerBase", normalizer: dict[str, Any]) -> "PreTrainedTokenizerBase":
    """The tokenizer, which has this normalizer now."""
    from tokenizers import Tokenizer

    backend = tokenizer.backend_tokenizer
    backend.normalizer = Tokenizer.from_str(
        json.dumps(json.loads(backend.to_str()) | {"normalizer": normalizer})
    ).normalizer
    return tokenizer
