"""Compare sentence segmenters on real reviews labelled by hand; prints one JSON line.

    pip install pysbd syntok blingfire
    python benchmarks/sentence_boundaries.py [FOLDER OR HUB ID]        (default: stanfordnlp/imdb)

sentence_boundaries.json says where the sentences end in the first 900 cleaned characters of 72 reviews of the split
"unsupervised": the rules were improved on sample 1 and measured once on sample 2. A boundary is correct if the sentence
ends at exactly that character. Speed is in characters per second, on 2,000 whole reviews, one core.
"""

import hashlib
import importlib.util
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import read_documents
from bertpre.data.sentences import split_sentences

Segmenter = Callable[[str], list[str]]
ROUNDS, REVIEWS = 5, 2000


def split_naively(text: str) -> list[str]:
    """A split as most scripts do it."""
    return re.split(r"(?<=\.) ", text.replace("\n", " "))


def segmenters() -> dict[str, Segmenter]:
    """bertpre's segmenter, the naive one, and those of the installed libraries."""
    found: dict[str, Segmenter] = {"bertpre": split_sentences, "split_at_full_stop": split_naively}
    if importlib.util.find_spec("pysbd"):
        import pysbd

        found["pysbd"] = pysbd.Segmenter(language="en", clean=False).segment
    if importlib.util.find_spec("syntok"):
        from syntok import segmenter

        found["syntok"] = lambda text: [
            text[sentence[0].offset : sentence[-1].offset + len(sentence[-1].value)]
            for paragraph in segmenter.analyze(text)
            for sentence in paragraph
            if sentence
        ]
    if importlib.util.find_spec("blingfire"):
        import blingfire

        found["blingfire"] = lambda text: blingfire.text_to_sentences(text).split("\n")
    return found


def ends_of(text: str, split: Segmenter) -> set[int]:
    """The ends of all sentences but the last, not counting white space, which segmenters treat differently."""
    ends, letters = set(), 0
    for sentence in split(text):
        letters += len("".join(sentence.split()))
        ends.add(letters)
    return ends - {len("".join(text.split()))}


def labelled_texts(path: str) -> list[tuple[int, str, set[int]]]:
    """Sample, text and the ends without white space, of each labelled review."""
    labels = {row["row"]: row for row in json.loads(Path(__file__).with_suffix(".json").read_text())}
    texts = []
    for number, review in enumerate(read_documents(path, split="unsupervised")):
        if row := labels.get(number):
            text = clean_text(review)[: row["characters"]]
            if hashlib.blake2b(text.encode(), digest_size=8).hexdigest() != row["blake2b"]:
                raise SystemExit(f"review {number} of {path} is not the one that was labelled")
            texts.append((row["sample"], text, {len("".join(text[:end].split())) for end in row["ends"]}))
    return texts


def measure(path: str) -> dict[str, object]:
    """Precision and recall on both samples, and speed."""
    labelled = labelled_texts(path)
    reviews = list(map(clean_text, islice(read_documents(path, split="unsupervised"), REVIEWS)))
    figures: dict[str, dict[str, float]] = {}
    seconds: dict[str, list[float]] = {}
    for name, split in segmenters().items():
        figures[name], seconds[name] = {}, []
        for sample in (1, 2):
            pairs = [(ends_of(text, split), truth) for number, text, truth in labelled if number == sample]
            right = sum(len(found & truth) for found, truth in pairs)
            figures[name][f"precision_{sample}"] = round(right / sum(len(found) for found, _ in pairs), 4)
            figures[name][f"recall_{sample}"] = round(right / sum(len(truth) for _, truth in pairs), 4)
    for _ in range(ROUNDS):
        for name, split in segmenters().items():
            start = time.perf_counter()
            for review in reviews[: REVIEWS if name not in ("pysbd", "syntok") else REVIEWS // 20]:
                split(review)
            seconds[name].append(time.perf_counter() - start)
    for name, values in seconds.items():
        count = REVIEWS if name not in ("pysbd", "syntok") else REVIEWS // 20
        figures[name]["characters_per_second"] = round(sum(map(len, reviews[:count])) / statistics.median(values))
    counts = {f"boundaries_{sample}": sum(len(t) for s, _, t in labelled if s == sample) for sample in (1, 2)}
    return {"benchmark": "sentence_boundaries", **counts, "rounds": ROUNDS, **figures}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1] if len(sys.argv) > 1 else "stanfordnlp/imdb")))
