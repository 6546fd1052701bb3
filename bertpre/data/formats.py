"""What local files hold, judged by their content: WikiExtractor's articles, JSON lines or text."""

import codecs
import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import chain

from bertpre.data.cleaning import ENDS_SENTENCE, blocks_of_lines, is_wrapped, joined_lines, wrap_width
from bertpre.data.compressed import file_named, open_file
from bertpre.data.sentences import split_sentences
from bertpre.data.tables import COMMENT

WIKI, JSON_LINES, TEXT, EMPTY, BINARY, WIKI_DUMP = "<doc> blocks", ".jsonl", ".txt", "empty", "binary", "dump"
ARTICLE = re.compile(r'<doc id=.*?\btitle="(?P<title>.*)">\s*$')  # titles may contain quotes
TAGGED = re.compile(r"\S[ \t]+(O|[BIESLU]-\S+)\s*$")  # a word's line, which ends with the tag of an entity or of none
HEADING = re.compile(r"#{1,6} \S")
HEAD_BYTES = 1 << 16
SAMPLED_FILES = 20
LEAST_LINES = 10  # of as many words each, for a table of words and their columns
MANY_FILES = 20  # so many files are documents rather than shards, and enough of them to hold some out


def is_utf16(file: str) -> bool:
    """Whether a file is text in UTF-16 or UTF-32: by the mark at its beginning, or by many NUL characters there."""
    head = read_head(file)
    return head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or head.count(b"\0") > 0.1 * len(head)


def read_head(file: str) -> bytes:
    """The first bytes of a file, decompressed."""
    with open_file(file, "rb") as stream, file_named(file):
        head = stream.read(HEAD_BYTES)
    return head.removeprefix(codecs.BOM_UTF8)


def recognize(file: str) -> str:
    """What a file holds, by its first bytes: WIKI, JSON_LINES, TEXT, EMPTY, BINARY or WIKI_DUMP."""
    head = read_head(file)
    if not is_utf8(head):
        return BINARY
    text = codecs.getincrementaldecoder("utf-8")().decode(head).lstrip()
    if "\0" in text or head.startswith(b"PK\x03\x04"):  # a zip archive, such as a Word file
        return BINARY
    if not text:
        return TEXT if head else EMPTY
    first, end, _ = text.partition("\n")
    if ARTICLE.match(first):
        return WIKI
    if first.startswith("<mediawiki"):
        return WIKI_DUMP
    return JSON_LINES if is_json_object(first, is_complete=bool(end) or len(head) < HEAD_BYTES) else TEXT


def is_utf8(head: bytes) -> bool:
    """Whether the beginning of a file is UTF-8; its last character may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def is_json_object(line: str, is_complete: bool) -> bool:
    """Whether a line is a JSON object, or looks like the start of one."""
    if not is_complete:
        return re.match(r'\{\s*"[^"]*"\s*:', line) is not None
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def read_articles(file: str) -> Iterator[str]:
    """The texts of a file's `<doc>` blocks, without their titles, as BERT was trained without headings.

    Raises ValueError, which names the file, where it is not UTF-8, text is outside a block, or the last block is cut.
    """
    title: str | None = None  # of the block that is being read
    lines: list[str] = []
    try:
        with open_file(file, "rt", encoding="utf-8-sig") as stream:
            for line in stream:
                if title is not None and line.rstrip() != "</doc>":
                    lines.append(line)
                elif title is not None:
                    yield without_title(title, "".join(lines))
                    title, lines = None, []
                elif match := ARTICLE.match(line):
                    title = match["title"]
                elif line.strip():
                    raise ValueError(f"{file} has text outside of its <doc> blocks: {line.strip()[:60]!r}")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error}") from None
    if title is not None:
        raise ValueError(f"{file} ends inside the article {title!r}: was its extraction interrupted?")


def without_title(title: str, text: str) -> str:
    """An article's text without its first line, where that is the title."""
    text = text.strip()
    first, _, rest = text.partition("\n")
    return rest.lstrip() if first.strip() == title.strip() else text


def advised_unit(files: list[str]) -> tuple[str, str] | None:
    """The unit that is plainly meant in text files, and the sign of it; None where a line may be a document.

    Judged by the beginnings of some files: lines wrapped at a fixed width, Markdown headings, blank lines that separate
    groups of lines, or many short files of several paragraphs.
    """
    some = files[:: math.ceil(len(files) / SAMPLED_FILES)]
    blocks = [block for file in some for block in first_blocks(file)]
    lines = list(chain.from_iterable(blocks))
    if len(blocks) < 3:
        return None
    larger = "document" if len(files) >= MANY_FILES else "paragraph"
    blocks_per_line = len(blocks) / len(lines)
    if is_wrapped(blocks, least_pairs=10):
        return larger, "lines are wrapped at a fixed width"
    headings, groups = sum(HEADING.match(line) is not None for line in lines), sum(len(block) > 1 for block in blocks)
    has_larger = larger == "document" or 10 * groups > len(blocks)  # where a paragraph is a line, nothing is gained
    if headings >= max(3, 0.01 * len(lines)) and blocks_per_line > 0.1 and has_larger:
        return larger, "there are Markdown headings"
    if 2 * groups < len(blocks):  # a line is a paragraph: a text, or part of one
        are_short = larger == "document" and all(os.path.getsize(file) < HEAD_BYTES for file in some)
        has_paragraphs = are_short and len(blocks) >= 3 * len(some)
        return ("document", "many short files have blank lines between paragraphs") if has_paragraphs else None
    if blocks_per_line > 0.03 and are_sentences(lines):
        return "paragraph", "each line is a sentence and blank lines separate documents"
    # One text a line with a missing one here and there has few blank lines.
    return (larger, "blank lines separate groups of lines") if blocks_per_line > 0.12 else None


def first_blocks(file: str) -> list[list[str]]:
    """The runs of lines without a blank line between them at the beginning of a text file."""
    head = read_head(file)
    text = head.decode(errors="replace")
    return blocks_of_lines(text.rpartition("\n")[0] if len(head) == HEAD_BYTES else text)


def read_paragraphs(file: str) -> Iterator[str]:
    """The paragraphs of a text file: lines without a blank line, or one of white space, between them.

    Wrapped lines are joined here, since two lines of a dialogue do not show the width at which a book is wrapped.
    """
    blocks = first_blocks(file)
    width = wrap_width(blocks) if is_wrapped(blocks, least_pairs=10) else None
    lines: list[str] = []
    with open_file(file, "rt", encoding="utf-8-sig") as stream:
        for line in chain(stream, [""]):
            if line.strip():
                lines.append(line)
            elif lines:
                block = [each.strip() for each in lines]
                # Parts of a book may be narrower, which their cleaning sees.
                yield joined_lines(block, width) if width and not is_wrapped([block]) else "".join(lines).rstrip("\n")
                lines = []


def are_tagged(file: str) -> bool:
    """Whether the lines at a file's beginning are words with tags of entities, as in CoNLL files."""
    lines = list(chain.from_iterable(first_blocks(file)))
    return len(lines) >= 10 and sum(TAGGED.search(line) is not None for line in lines) > 0.9 * len(lines)


def are_words(file: str, tags: Collection[str]) -> bool:
    """Whether the lines at a file's beginning are words, as in CoNLL files, and not sentences.

    The lines have one of the tags last, or, where blank lines separate them, all have as many columns. Tags without a
    letter or digit do not count: a sentence of the task may end with the word ".", as a line may with that tag.
    """
    blocks = [[re.split(r"[ \t]+", line.strip()) for line in block] for block in blocks_without_comments(file)]
    rows, groups = list(chain.from_iterable(blocks)), sum(len(block) > 1 for block in blocks)
    if not rows:
        return False
    columns, count = Counter(map(len, rows)).most_common(1)[0]
    have_tags = sum(row[-1] in tags and re.search(r"\w", row[-1]) is not None for row in rows if len(row) > 1)
    is_table = count > 0.9 * len(rows)
    has_groups = len(blocks) > 1 and 2 * groups > len(blocks)
    if have_tags > 0.5 * len(rows):
        return is_table or has_groups
    return is_table and has_groups and (columns == 1 or len(rows) >= LEAST_LINES)


def blocks_without_comments(file: str) -> list[list[str]]:
    """The same runs of lines as `first_blocks`, without the comments of CoNLL files."""
    blocks = [[line for line in block if not COMMENT.match(line)] for block in first_blocks(file)]
    return list(filter(None, blocks))


def are_sentences(lines: list[str]) -> bool:
    """Whether most lines are exactly one sentence with its end mark."""
    some = lines[:: math.ceil(len(lines) / 1000)]
    return sum(len(split_sentences(line)) == 1 and ENDS_SENTENCE(line) is not None for line in some) > 0.8 * len(some)
