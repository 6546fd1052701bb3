"""Cleaning: removes markup, wiki remnants, control characters and superfluous white space."""

import html
import re
import unicodedata

REFERENCE = re.compile(r"<ref\b[^<>]{0,500}(?:/>|>.{0,2000}?</ref>)", re.IGNORECASE | re.DOTALL)
LINE_BREAK = re.compile(r"<\s*(?:br|/?p)\s*/?\s*>", re.IGNORECASE)
TAG = re.compile(r"</?[a-zA-Z][^<>]{0,100}>")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028\u2029\ufeff\ufffd\ud800-\udfff]")
BLANKS = re.compile(r"[^\S\n ][^\S\n]*| [^\S\n]+")  # white space other than a single space
NEWLINES = re.compile(r"\n[\n ]+")

# Remnants in wiki dumps. Braces and brackets followed by a space are kept: `[[ -f file ]]` is shell code.
TEMPLATE = re.compile(r"\{\{(?=\S)[^{}]{0,2000}\}\}")
LINK = re.compile(r"\[\[(?=\S)(?P<page>[^\[\]|\n]{1,300})(?:\|(?P<shown>[^\[\]\n]{0,500}))?\]\]")
HIDDEN_LINKS = ("file:", "image:", "category:")
EMPTY_BRACKETS = re.compile(r"\((?<= \()[\s;,:]*\) ?")  # "ion () has": the dump lost the content
BRACKET_START = re.compile(r"\((?<= \()\s*[;,][\s;,]*(?=[^()\n]{1,300}\))")  # "Aruba ( ; , Papiamento: )"
TABLE_LINE = re.compile(r"^(?:[!{}-]|[^\S\n])*+\|(?:[|!{}-]|[^\S\n])*+$", re.MULTILINE)


def clean_text(text: str) -> str:
    """Plain text with one space between words and one newline between paragraphs, in Unicode NFC."""
    if "<" in text:
        text = TAG.sub(" ", LINE_BREAK.sub("\n", REFERENCE.sub("", text)))
    text = html.unescape(text)
    text = without_wiki_remnants(text)
    text = CONTROL.sub(" ", unicodedata.normalize("NFC", text))
    return NEWLINES.sub("\n", BLANKS.sub(" ", text)).replace(" \n", "\n").strip()


def without_wiki_remnants(text: str) -> str:
    """Remove templates, link syntax, lines of table marks, and brackets whose content is lost."""
    if "[[" in text or "{{" in text:
        for _ in range(3):  # links and templates nest
            text = LINK.sub(link_text, TEMPLATE.sub("", text))
    if "|" in text:
        text = TABLE_LINE.sub("", text)
    if " (" in text:
        text = BRACKET_START.sub("(", EMPTY_BRACKETS.sub("", text))
    return text


def link_text(link: re.Match[str]) -> str:
    """The visible text of a wiki link."""
    if link["page"].lower().startswith(HIDDEN_LINKS):
        return ""
    return (link["shown"] or link["page"]).split("|")[-1]
