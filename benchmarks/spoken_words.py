"""Ten million words that are mostly speech and stories, beside the ten million words of an encyclopaedia.

python benchmarks/spoken_words.py AOCHILDES CABNC SWITCHBOARD LCATS WIKIPEDIA OUT

The shares are about those of the BabyLM challenge of 2024 (child-directed speech 29 %, dialogue 29 %, stories 26 %,
Wikipedia 16 %), the texts are others: clones of UIUCLearningLanguageLab/AOCHILDES, NathanDuran/CABNC-Corpus,
NathanDuran/Switchboard-Corpus and xenotaur/LCATS on GitHub, and a folder with articles in the layout of the Hub's
`wikimedia/wikipedia`. OUT, a folder, gets one file of JSON lines for each kind; what one kind lacks, stories fill.
Prints one JSON line with the words of each kind.
"""

import csv
import json
import random
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

WORDS = 10_000_000
SHARES = {"child": 0.29, "dialogue": 0.29, "wikipedia": 0.16, "stories": 0.26}  # stories last: they fill
ENDS = {"question": "?", "imperative_emphatic": "!"}
NOT_HEARD = {"xxx", "yyy", "www"}  # what CHILDES writes for words that nobody understood


def child_directed(folder: Path) -> Iterator[str]:
    """Transcripts of the American part of CHILDES: what others say to the child, one utterance a line."""
    for file in sorted(folder.rglob("original_transcripts/*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["speaker_role"] != "Target_Child"]
        for _, transcript in groupby(rows, key=lambda row: row["transcript_id"]):
            said = [(row["gloss"].replace("_", " ").replace("+", " "), row["type"]) for row in transcript]
            kept = [text + ENDS.get(kind, ".") for text, kind in said if text and not NOT_HEARD & set(text.split())]
            yield "\n".join(kept)


def dialogues(conversations: Path, calls: Path) -> Iterator[str]:
    """Conversations of the British National Corpus and telephone calls of Switchboard, one turn a line."""
    for file in sorted(conversations.glob("cabnc_data/json/*.json")):
        for dialogue in json.loads(file.read_text(encoding="utf-8"))["dialogues"]:
            yield "\n".join(turn["text"] for turn in dialogue["utterances"])
    for file in sorted(file for part in ("train", "val", "test") for file in calls.glob(f"swda_data/{part}/*.txt")):
        parts = [line.split("|") for line in file.read_text(encoding="utf-8").splitlines() if line.count("|") == 2]
        yield "\n".join(" ".join(part[1] for part in turn) for _, turn in groupby(parts, key=lambda part: part[0]))


def stories(folder: Path) -> Iterator[str]:
    """Tales and short stories, one paragraph a line."""
    for file in sorted(folder.glob("corpora/**/*.json")):
        paragraphs = json.loads(file.read_text(encoding="utf-8"))["body"].split("\n\n")
        yield "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())


def articles(folder: Path) -> Iterator[str]:
    """Articles of Wikipedia."""
    import pyarrow.parquet as pq

    for file in sorted(folder.glob("*/*.parquet")):
        yield from pq.read_table(file, columns=["text"])["text"].to_pylist()


def main(child: str, conversations: str, calls: str, tales: str, wikipedia: str, out: Path) -> None:
    """The folder, and what is in it."""
    texts = {
        "child": child_directed(Path(child)),
        "dialogue": dialogues(Path(conversations), Path(calls)),
        "wikipedia": articles(Path(wikipedia)),
        "stories": stories(Path(tales)),
    }
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, int] = {}
    for kind, share in SHARES.items():
        wanted = WORDS - sum(found.values()) if kind == "stories" else round(share * WORDS)
        documents = [text for text in texts[kind] if text.strip()]
        random.Random(0).shuffle(documents)
        found[kind] = 0
        with (out / f"{kind}.jsonl").open("w", encoding="utf-8") as lines:
            for text in documents:
                if found[kind] >= wanted:
                    break
                found[kind] += len(text.split())
                lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    print(json.dumps({"benchmark": "spoken_words", "words": found, "in all": sum(found.values())}))


if __name__ == "__main__":
    *folders, out = sys.argv[1:]
    main(*folders, Path(out))
