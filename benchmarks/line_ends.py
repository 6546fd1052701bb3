"""How often the line ends of posts are lost, and those of wrapped lines stay; prints a JSON line for each treebank.

    git clone https://github.com/UniversalDependencies/UD_Thai-PUD
    python benchmarks/line_ends.py UD_Thai-PUD ...        (folders of .conllu files)

posts: documents of 2, 3 and 6 sentences that follow each other, one a line, without the mark at the end, as in chats.
`joined` is the share of those that lose a line end. wrapped: 6 sentences in one paragraph, wrapped at 40, 60 and 78
columns between words as the treebank has them, or between characters in Chinese and Japanese, which take two columns.
`kept` is the share of those that keep a line end.
"""

import json
import sys
import textwrap
from pathlib import Path

from treebanks import sentences_of

from bertpre.data.cleaning import clean_text

MARKS = " .!?…。！？।॥۔؟"
LINES, COLUMNS = (2, 3, 6), (40, 60, 78)
WIDE = ("Chinese", "Japanese")


def documents(sentences: list[str], size: int) -> list[list[str]]:
    """Sentences that follow each other, `size` at a time."""
    return [sentences[start : start + size] for start in range(0, len(sentences) - size + 1, size)]


def words_of(folder: Path) -> list[str]:
    """The sentences with a no-break mark of our own between words that no space separates, for Thai."""
    texts, words = [], []
    for file in sorted(folder.rglob("*.conllu")):
        for line in file.read_text(encoding="utf-8").splitlines():
            fields = line.split("\t")
            if fields[0].isdigit():
                words.append(fields[1] + ("" if "SpaceAfter=No" in fields[-1] else " "))
            elif not line and words:
                texts.append("\u0001".join(words))
                words = []
    return texts


def wrap(text: str, columns: int, is_wide: bool) -> str:
    """A text in lines of so many columns; a text with marks between words is wrapped there."""
    if is_wide:
        width = columns // 2
        return "\n".join(text[start : start + width] for start in range(0, len(text), width))
    lines = [""]
    for word in text.split("\u0001"):
        if len(lines[-1]) + len(word.rstrip()) > columns:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.strip() for line in lines)


def measure(folder: Path) -> dict[str, object]:
    """The shares of one treebank."""
    sentences, is_wide = sentences_of(folder), any(name in folder.name for name in WIDE)
    posts = {size: [[s.rstrip(MARKS) for s in each] for each in documents(sentences, size)] for size in LINES}
    joined = {
        size: sum(clean_text("\n".join(post)).count("\n") < size - 1 for post in some) / len(some)
        for size, some in posts.items()
    }
    whole = words_of(folder)[:6000] if "Thai" in folder.name else sentences
    paragraphs = ["".join(each) if is_wide or "Thai" in folder.name else " ".join(each) for each in documents(whole, 6)]
    kept = {}
    for columns in COLUMNS:
        lines = [
            wrap(text, columns, is_wide) if is_wide or "\u0001" in text else textwrap.fill(text, columns)
            for text in paragraphs
        ]
        kept[columns] = sum("\n" in clean_text(text) for text in lines) / len(lines)
    rounded = [{key: round(value, 3) for key, value in shares.items()} for shares in (joined, kept)]
    return {"benchmark": "line_ends", "treebank": folder.name, "joined": rounded[0], "kept": rounded[1]}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(measure(Path(name))), flush=True)
