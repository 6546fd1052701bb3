"""Write a task that no choice was tuned on, sentences rated by people from -4 to 4, as CSV files for `bertpre`.

python benchmarks/rated_snippets.py FOLDER OUTPUT_DIR

FOLDER holds `hutto_ICWSM_2014.tar.gz` of the source package vaderSentiment 0.5 on PyPI (MIT licence; Hutto and Gilbert
2014): sentences of film reviews (Pang and Lee 2005) and of three other kinds of text, each rated by 20 people. Every
fifth sentence goes into the test file. Prints one JSON line: the sentences of each file.
"""

import csv
import json
import sys
import tarfile
from pathlib import Path

KINDS = ("movieReviewSnippets", "amazonReviewSnippets", "nytEditorialSnippets", "tweets")


def convert(folder: Path, output: Path) -> dict[str, int]:
    """Write `KIND-train.csv` and `KIND-test.csv` with the columns `text` and `rating`."""
    counts = {}
    output.mkdir(parents=True, exist_ok=True)
    with tarfile.open(next(folder.rglob("hutto_ICWSM_2014.tar.gz"))) as archive:
        for kind in KINDS:
            text = archive.extractfile(f"hutto_ICWSM_2014/{kind}_GroundTruth.txt").read().decode("utf-8", "replace")
            rows = [line.split("\t", 2) for line in text.splitlines() if line.strip()]
            parts = {"train": [row for number, row in enumerate(rows) if number % 5], "test": rows[::5]}
            for part, chosen in parts.items():
                counts[f"{kind}-{part}"] = len(chosen)
                with (output / f"{kind}-{part}.csv").open("w", newline="", encoding="utf-8") as stream:
                    writer = csv.writer(stream)
                    writer.writerow(["text", "rating"])
                    writer.writerows([sentence, rating] for _, rating, sentence in chosen)
    return counts


if __name__ == "__main__":
    print(json.dumps(convert(Path(sys.argv[1]), Path(sys.argv[2]))))
