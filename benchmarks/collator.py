"""Compare how fast pairs are cut, looked up and masked with how fast the model reads them; prints one JSON line.

python benchmarks/collator.py [EPOCHS]        (default: 5; one process, one core for the data, medians are reported)

The data is one shard of 4 M random tokens in documents like IMDB's; the model is that of recipe imdb-mini-cpu.
"""

import json
import statistics
import sys
import time

import numpy as np
import torch
from training_step import BATCH_SIZE, LENGTH, MASKED_SHARE, VARIANTS, VOCABULARY, build, random_batch

from bertpre.data.masking import MaskingCollator
from bertpre.data.sampler import PairDataset, Position, in_batches
from bertpre.data.store import Shard
from bertpre.data.tokenizer import SPECIAL_TOKENS
from bertpre.hardware import cpu_name

DOCUMENTS, STEPS = 13_000, 15


def random_shard() -> Shard:
    """Documents of 12 sentences and, on average, 300 tokens."""
    generator = np.random.default_rng(0)
    documents = generator.geometric(1 / 12, DOCUMENTS)
    sentences = 1 + generator.poisson(24, documents.sum())
    tokens = generator.integers(5, VOCABULARY, sentences.sum()).astype(np.uint16)
    return Shard(tokens, np.concatenate([[0], np.cumsum(sentences)]), np.concatenate([[0], np.cumsum(documents)]))


def measure_data(epoch: int) -> dict[str, float]:
    """Tokens per second over a whole epoch: planning with look-up, the collator alone, and both."""
    dataset = PairDataset([random_shard()], LENGTH, seed=0)
    special_ids = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    collate = MaskingCollator(VOCABULARY, special_ids, np.arange(5, VOCABULARY), LENGTH, MASKED_SHARE)
    start = time.perf_counter()
    examples, _ = dataset.take(Position(epoch=epoch), len(dataset.plan(epoch)[0]))
    planned = time.perf_counter()
    tokens = sum(int(collate(group)["attention_mask"].sum()) for group in in_batches(examples, BATCH_SIZE))
    end = time.perf_counter()
    parts = {"plan_and_look_up": planned - start, "collate": end - planned, "all": end - start}
    return {name: tokens / seconds for name, seconds in parts.items()}


def measure_model() -> float:
    """Positions per second of the training step."""
    variant = build(*VARIANTS["bf16_copy_eager"])
    batch = random_batch(BATCH_SIZE, LENGTH, VOCABULARY, MASKED_SHARE)
    del batch["next_sentence_label"]  # the recipe trains no pairs
    seconds = [sum(variant.step(batch).values()) for _ in range(STEPS)]
    return batch["input_ids"].numel() / statistics.median(seconds[STEPS // 2 :])


def main(epochs: int) -> None:
    """Measure and print."""
    rows = [measure_data(epoch) for epoch in range(epochs)]
    data = {name: round(statistics.median(row[name] for row in rows)) for name in rows[0]}
    model = round(measure_model())
    line = {"benchmark": "collator", "hardware": f"{torch.get_num_threads()} cores, {cpu_name()}", "epochs": epochs}
    line |= {"data_tokens_per_second": data, "model_tokens_per_second": model}
    print(json.dumps(line | {"data_relative_to_model": round(data["all"] / model, 1)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
