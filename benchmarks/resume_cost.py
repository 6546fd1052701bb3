"""Measure a resume at the first and at the billionth token; prints one JSON line.

python benchmarks/resume_cost.py [TOKENS]        (default: 1,000,000,000, which takes 2 GB of disk)

A synthetic store of random tokens in shards of the usual size; imdb-mini-cpu's model and optimizers.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from training_step import hardware

from bertpre.data.sampler import PairDataset, Position
from bertpre.data.store import finish_store, open_shards, write_shard
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.recipe import load_recipe
from bertpre.training.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from bertpre.training.optimizer import build_optimizers

SHARD, SENTENCE, SENTENCES = 4_000_000, 20, 12  # tokens in a shard and in a sentence, sentences in a document
BATCH, LENGTH, VOCABULARY = 64, 128, 16384


def make_store(folder: Path, tokens: int) -> None:
    """Write a store."""
    partial, generator = folder.with_suffix(".partial"), np.random.default_rng(0)
    partial.mkdir()
    sentences = SHARD // SENTENCE
    entries = []
    for number in range(tokens // SHARD):
        ids = generator.integers(5, VOCABULARY, SHARD, dtype=np.uint16)
        lengths = np.full(sentences, SENTENCE), np.full(sentences // SENTENCES, SENTENCES)
        lengths[1][-1] += sentences - lengths[1].sum()
        entries.append(write_shard(partial, f"train-{number:05}", "train", ids, *lengths))
    finish_store(partial, folder, entries, np.ones(VOCABULARY, dtype=np.int64), {})


def timed(function: Callable[..., Any], *arguments: object) -> tuple[Any, float]:
    """A result and its seconds."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, round(time.perf_counter() - start, 3)


def build() -> tuple[BertPreForPreTraining, list]:
    """The model and its optimizers."""
    model = BertPreForPreTraining(
        BertPreConfig(**load_recipe("imdb-mini-cpu").model.model_dump(), vocab_size=VOCABULARY)
    )
    return model, build_optimizers(model, "muon", 3e-3, 0.01)


def resume(place: Path, position: Position) -> dict[str, float]:
    """Seconds of the parts of a resume at a position."""
    folder = place / f"at-{position.group}"
    save_checkpoint(Checkpoints(folder, keep=1), *build(), {"step": 1, "position": asdict(position)})
    model, optimizers = build()
    shards, opening = timed(open_shards, place / "data", "train")
    state, loading = timed(load_checkpoint, folder, model, optimizers)
    dataset = PairDataset(shards, LENGTH, seed=0)
    _, first_batch = timed(dataset.take, Position(**state["position"]), BATCH)
    return {"open_and_check_store": opening, "load_checkpoint": loading, "first_batch": first_batch}


def main(tokens: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        make_store(place / "data", tokens)
        last = PairDataset(open_shards(place / "data", "train"), LENGTH, seed=0).groups - 1
        resume(place, Position())  # from here on the files are in memory, for both
        line = {"benchmark": "resume_cost", "tokens": tokens}
        line |= {"at_the_start": resume(place, Position()), "at_the_end": resume(place, Position(0, 0, last, 1000))}
        print(json.dumps(line | {"hardware": hardware()}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000_000)
