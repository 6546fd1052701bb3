"""What a program that does not clean texts gets from a classifier of IMDB, by how its tokenizer reads them.

python benchmarks/raw_reviews.py RUN DIR     (RUN: a finished run of imdb-mini-cpu; DIR: IMDB in its Hub layout)

Reads RUN's validation reviews, raw as DIR has them, with RUN's classifier in transformers alone, in fp32: with the
tokenizer as it was learned, with one that removes markup itself and cuts the end or the start of a long review, and
by the both ends that the model card's code keeps. Prints one JSON line: the accuracies, that of `bertpre` from
results.json, and the share of the raw reviews whose uncut token ids are those of the cleaned text.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from pyarrow import concat_tables
from pyarrow.parquet import read_table
from training_step import hardware
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertpre.data.cleaning import clean_text
from bertpre.data.raw_text import for_clean_texts, for_raw_texts
from bertpre.finetuning.splits import Labelled
from bertpre.recipe import load_recipe

BATCH = 32


def main(run: Path, data: str) -> None:
    """Read, measure and print."""
    recipe = load_recipe(str(run / "recipe.yaml"), [f"output_dir={run}", f"finetune.path={data}"])
    wanted, length = set(Labelled(recipe).parts.validation.texts), recipe.required_finetune.max_length
    table = concat_tables(read_table(file) for file in sorted(Path(data).rglob("train*.parquet")))
    rows = zip(table["text"].to_pylist(), table["label"].to_pylist(), strict=True)
    reviews = sorted(((text, label) for text, label in rows if clean_text(text) in wanted), key=lambda row: len(row[0]))
    texts, labels = [text for text, _ in reviews], np.array([label for _, label in reviews])
    model = AutoModelForSequenceClassification.from_pretrained(run / "finetuned", dtype=torch.float32).eval()
    learned, start, end = (for_clean_texts(AutoTokenizer.from_pretrained(run / "finetuned")) for _ in range(3))
    start, end = for_raw_texts(start), for_raw_texts(end)
    learned.truncation_side, start.truncation_side, end.truncation_side = "right", "right", "left"

    def uncut(tokenizer: object, some: list[str]) -> list[list[int]]:
        return tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]  # type: ignore[operator]

    def both_ends(text: str) -> list[int]:
        (ids,), room = uncut(end, [text]), length - 2
        kept = ids if len(ids) <= room else ids[: room // 4] + ids[room // 4 - room :]
        return [end.cls_token_id, *kept, end.sep_token_id]

    @torch.no_grad()
    def accuracy(encode: Callable[[str], list[int]]) -> float:
        right = 0
        for first in range(0, len(texts), BATCH):
            ids = [encode(text) for text in texts[first : first + BATCH]]
            answers = model(**learned.pad({"input_ids": ids}, return_tensors="pt")).logits.argmax(-1).numpy()
            right += int((answers == labels[first : first + BATCH]).sum())
        return round(right / len(texts), 4)

    def cut(tokenizer: object) -> Callable[[str], list[int]]:
        return lambda text: tokenizer(text, truncation=True, max_length=length)["input_ids"]  # type: ignore[operator]

    clean = uncut(learned, list(map(clean_text, texts)))
    same = {
        name: round(float(np.mean([a == b for a, b in zip(uncut(tokenizer, texts), clean, strict=True)])), 4)
        for name, tokenizer in (("as learned", learned), ("removes markup", end))
    }
    found = {
        "as learned, start": accuracy(cut(learned)), "removes markup, start": accuracy(cut(start)),
        "removes markup, end": accuracy(cut(end)), "removes markup, both ends": accuracy(both_ends),
        "bertpre": round(json.loads((run / "results.json").read_text())["finetune"]["validation"]["accuracy"], 4),
    }  # fmt: skip
    print(json.dumps({"benchmark": "raw_reviews", "reviews": len(texts), "same ids": same, "accuracy": found}
                     | {"hardware": hardware()}))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
