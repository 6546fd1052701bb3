"""How often sentences of other languages are cut in two, or not cut at all; prints a JSON line for each treebank.

    git clone https://github.com/UniversalDependencies/UD_Ukrainian-IU
    python benchmarks/treebanks.py UD_Ukrainian-IU ...        (folders of .conllu files)

Of each treebank the first 6,000 sentences are read. Each one should stay whole: `false` counts the boundaries inside
them. Two that follow each other are joined by a space, and should be cut there where the first one ends with a mark and
the second one begins with no small letter: `missed` counts the joints that are not.
"""

import json
import re
import sys
from itertools import islice
from pathlib import Path

from bertpre.data.sentences import split_sentences

MOST = 6000
CLOSERS = r"""["'”’»›“)\] ]*"""
ENDS_WITH_MARK = re.compile(rf"(?:[.!?…。！？।॥։።؟۔]|[\u0370-\u03ff\u1f00-\u1fff];){CLOSERS}$")  # ; asks in Greek
OPENERS = "\"'`“‘„«‹¿¡(\\[*–—- "


def sentences_of(folder: Path) -> list[str]:
    """The sentences of a treebank, in the order of its files."""
    texts = []
    for file in sorted(folder.rglob("*.conllu")):
        lines = file.read_text(encoding="utf-8").splitlines()
        texts += [line.partition("=")[2].strip() for line in lines if line.startswith("# text =")]
    return list(islice(texts, MOST))


def measure(folder: Path) -> dict[str, object]:
    """The counts of one treebank."""
    texts = sentences_of(folder)
    joints = [pair for pair in zip(texts, texts[1:], strict=False) if is_joint(*pair)]
    missed = sum(not is_cut(*pair) for pair in joints)
    false = sum(len(split_sentences(text)) - 1 for text in texts)
    counts = {"sentences": len(texts), "joints": len(joints), "false": false, "missed": missed}
    return {"benchmark": "treebanks", "treebank": folder.name} | counts


def is_joint(one: str, other: str) -> bool:
    """Whether two sentences that follow each other show where the first one ends."""
    return ENDS_WITH_MARK.search(one) is not None and not other.lstrip(OPENERS)[:1].islower()


def is_cut(one: str, other: str) -> bool:
    """Whether there is a boundary between two sentences."""
    place = 0
    for sentence in split_sentences(f"{one} {other}"):
        place += len(sentence.replace(" ", ""))
        if place >= len(one.replace(" ", "")):
            break
    return place == len(one.replace(" ", ""))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(measure(Path(name))), flush=True)
