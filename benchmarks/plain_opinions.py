"""How many plain opinions on films a run's classifier labels correctly; prints one JSON line.

python benchmarks/plain_opinions.py RUN_DIR [FILE]

FILE has the tab-separated columns `text` and `label` (negative or positive). By default it is tests/plain_opinions.tsv,
which was written before the embedded corpus had its words. Neither they nor the quickstart's recipe are chosen on it:
that is what tests/plain_opinions_dev.tsv is for, 400 harder ones. Both were written without a look at the generator.
Some short opinions are so common that a generated training review holds them word for word; `unseen` leaves those out.
"""

import csv
import json
import re
import sys
from pathlib import Path

from bertpre.data.sample import CLASSES, generate, normalize
from bertpre.finetuning.loading import load_any_classifier
from bertpre.finetuning.prediction import as_examples
from bertpre.training.intervals import wilson_interval

OPINIONS = Path(__file__).parent.parent / "tests" / "plain_opinions.tsv"


def read_opinions(file: Path) -> list[tuple[str, int]]:
    """Texts and their labels, 1 for praise."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["text"], CLASSES.index(row["label"])) for row in rows]


def training_sentences() -> set[str]:
    """Every labelled training review of the embedded corpus and every sentence in it, normalized."""
    texts = [document.text for document in generate("train")]
    sentences = [sentence for text in texts for sentence in re.split(r"[.!?]+(?: |<br /><br />|$)", text)]
    return {normalize(text) for text in texts + sentences}


def share(hits: list[bool]) -> dict[str, float | int | list[float]]:
    """Number, share and 95 % confidence interval of the hits."""
    low, high = wilson_interval(sum(hits) / len(hits), len(hits))
    return {
        "opinions": len(hits), "correct": sum(hits), "accuracy": round(sum(hits) / len(hits), 4),
        "interval": [round(low, 4), round(high, 4)],
    }  # fmt: skip


def measure(run: str, file: Path = OPINIONS) -> dict[str, object]:
    """The classifier's accuracy on all opinions, on each class, and on those that no training review holds."""
    classifier, _ = load_any_classifier(run)
    texts, labels = zip(*read_opinions(file), strict=True)
    outputs = classifier.predict(as_examples(list(texts), classifier.task, False))
    hits = [classifier.task.classes[row.argmax()] == CLASSES[label] for row, label in zip(outputs, labels, strict=True)]
    known = training_sentences()
    by_class = {
        name: round(
            sum(hit for hit, label in zip(hits, labels, strict=True) if label == number) / labels.count(number), 4
        )
        for number, name in enumerate(CLASSES)
    }
    unseen = [hit for hit, text in zip(hits, texts, strict=True) if normalize(text) not in known]
    return share(hits) | by_class | {"unseen": share(unseen)}


if __name__ == "__main__":
    print(
        json.dumps({"benchmark": "plain_opinions", "run": sys.argv[1]} | measure(sys.argv[1], *map(Path, sys.argv[2:])))
    )
