"""Time and memory of `prepare` on a corpus of Wikipedia's size class, stage by stage; prints one JSON line.

    python benchmarks/prepare_wikipedia.py FOLDER [MEGABYTES]        (default: 1000)

FOLDER holds articles in the columns of `wikimedia/wikipedia`. They are repeated, each time under other titles, until
they have so many megabytes of text. The recipe is wikipedia-base. Then the batches of the first ten million slots of
pretraining are made, from the start and again from the middle, as a resumed training does.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import psutil
from prepare_imdb import ROW_GROUP, memory

if TYPE_CHECKING:
    from bertpre.data.sampler import Position
    from bertpre.pretraining.batches import PretrainingData
    from bertpre.training.batches import StepBatch

SLOTS = 10_000_000
STAGES = ("clean", "choose", "encode", "join")


def write_corpus(path: str, megabytes: float, file: Path) -> int:
    """Write the repeated articles as Parquet; returns their number of bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from bertpre.data.corpus import read_documents

    texts = list(read_documents(path, name="20231101.en", split="train"))
    written, copy = 0, 0
    with pq.ParquetWriter(file, pa.schema([("text", pa.string())])) as writer:
        while written < megabytes * 1e6:
            titled = [f"Article {copy}-{number}.\n{text}" for number, text in enumerate(texts)]
            writer.write_table(pa.table({"text": titled}), ROW_GROUP)
            written += sum(len(text.encode()) for text in titled)
            copy += 1
    return written


def peak_memory(action: Callable[[], object]) -> float:
    """The peak memory of this process and its workers in MB, while an action runs."""
    peak, is_over = 0, Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.5):
            peak = max(peak, memory(psutil.Process()))

    thread = Thread(target=watch)
    thread.start()
    try:
        action()
    finally:
        is_over.set()
        thread.join()
    return peak / 1e6


def timed_stages(seconds: dict[str, float]) -> None:
    """Let each stage of the builder add its seconds."""
    from bertpre.data.build import StoreBuilder

    def timed(name: str, stage: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: object) -> None:
            start = time.perf_counter()
            stage(*arguments)
            seconds[name] = time.perf_counter() - start

        return run

    for name in STAGES:
        setattr(StoreBuilder, name, timed(name, getattr(StoreBuilder, name)))


def feed(run: Path) -> dict[str, float]:
    """Seconds until the first batch and slots per second of all, from the start and from the middle of the slots."""
    from accelerate import Accelerator

    from bertpre.data.sampler import Position
    from bertpre.data.tokenizer import load_tokenizer
    from bertpre.pretraining.batches import PretrainingData
    from bertpre.recipe import load_recipe

    recipe = load_recipe(str(run / "recipe.yaml"))
    figures, start = {}, time.perf_counter()
    data = PretrainingData(recipe, load_tokenizer(run / "tokenizer"), run / "data", Accelerator(cpu=True))
    figures["open_seconds"] = time.perf_counter() - start
    position, half = Position(), SLOTS // 2
    for name in ("first_half", "resumed_half"):
        start, first, slots = time.perf_counter(), None, 0
        for batch in batches(data, position):
            first = first or time.perf_counter() - start
            slots += sum(part["input_ids"].numel() for part in batch.micro_batches)
            position = batch.after
            if slots >= half:
                break
        figures[f"{name}_first_batch_seconds"] = first or 0.0
        figures[f"{name}_slots_per_second"] = slots / (time.perf_counter() - start)
    return figures


def batches(data: "PretrainingData", position: "Position") -> "Iterator[StepBatch]":
    """The batches of steps from a position on."""
    while True:
        batch = data(position, 0.0)
        yield batch
        position = batch.after


def main(path: str, megabytes: float) -> None:
    """Measure and print."""
    from bertpre.commands.prepare import prepare
    from bertpre.hardware import cpu_name
    from bertpre.recipe import load_recipe

    seconds: dict[str, float] = {}
    timed_stages(seconds)
    with tempfile.TemporaryDirectory() as folder:
        corpus, run = Path(folder) / "articles.parquet", Path(folder) / "run"
        written = write_corpus(path, megabytes, corpus)
        overrides = [f"corpus.path={corpus}", "corpus.name=null", "corpus.split=train", f"output_dir={run}"]
        figures: dict[str, float] = {}
        start = time.perf_counter()
        peak = peak_memory(lambda: figures.update(prepare(load_recipe("wikipedia-base", overrides)) or {}))
        total = time.perf_counter() - start
        line = {
            "benchmark": "prepare_wikipedia", "processor": cpu_name(), "cores": len(os.sched_getaffinity(0)),
            "megabytes": written / 1e6, "tokens": figures["tokens"], "seconds": total, "peak_memory_mb": peak,
            "tokens_per_second": figures["tokens"] / total,
            "shares": {name: each / total for name, each in seconds.items()},
            "share_of_audit": 1 - sum(seconds.values()) / total,
            "feeding": feed(run),
        }  # fmt: skip
    print(json.dumps(line))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1000)
