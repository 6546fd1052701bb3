"""How long a checkpoint holds training up, waited for and in the background; prints one JSON line.

python benchmarks/checkpoint_stall.py [adamw|muon] [SHAPE] [ROUNDS]        (default: adamw, base, 5 rounds; or mini)

BERT in bf16, uncompiled, on random batches. `blocked` is the time until training may continue, `whole` until the
checkpoint is complete. `lost` adds to `blocked` what the steps that run during the writing take longer than others.
Medians are reported. Each checkpoint replaces the one before. `hashed` is how often each byte is read for a checksum.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from against_stock import SHAPES
from training_step import MASKED_SHARE, Variant, hardware, random_batch

from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.runtime import keep_freed_memory
from bertpre.training import checkpoint
from bertpre.training.background import BackgroundWriter
from bertpre.training.checkpoint import Checkpoints, list_checkpoints, save_checkpoint
from bertpre.training.metrics import peak_memory_mb
from bertpre.training.optimizer import build_optimizers

STEPS = 5  # without a checkpoint, to compare with


def seconds_of(act: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


class Training:
    """A model with its optimizers, and its checkpoints."""

    def __init__(self, optimizer: str, shape: str, folder: Path) -> None:
        _, batch_size, length, sizes = SHAPES[shape]
        model = BertPreForPreTraining(BertPreConfig(**sizes))
        model.set_attn_implementation("eager")
        self.variant = Variant(model, build_optimizers(model, optimizer, 1e-4, 0.01), torch.bfloat16, compiled=False)
        self.batch = random_batch(batch_size, length, sizes["vocab_size"], MASKED_SHARE)
        self.place, self.saves = Checkpoints(folder, keep=1), 0

    def step(self) -> float:
        """One step; returns its seconds."""
        return seconds_of(lambda: self.variant.step(self.batch))

    def save(self, background: BackgroundWriter | None) -> float:
        """Save; returns the seconds until training may continue."""
        self.saves += 1
        model, optimizers, state = self.variant.master, self.variant.optimizers, {"step": self.saves, "elapsed": 0.0}
        return seconds_of(lambda: save_checkpoint(self.place, model, optimizers, state, background=background))


def waited_for(training: Training) -> dict[str, float]:
    """The seconds of a save that training waits for."""
    blocked = training.save(None)
    training.step()  # so that both ways find the caches alike
    return {"blocked": blocked, "whole": blocked, "lost": blocked}


def in_background(training: Training, usual: float) -> dict[str, float]:
    """The seconds of a save during which training continues; a step usually takes `usual` seconds."""
    with BackgroundWriter() as writer:
        blocked, steps = training.save(writer), []
        while writer.pending is not None and not writer.pending.done():
            steps.append(training.step())
        writing = writer.wait()
    assert writing is not None, "too little memory is free for a copy"
    return {"blocked": blocked, "whole": blocked + writing, "lost": blocked + sum(steps) - usual * len(steps)}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: round(statistics.median(each[name] for each in rounds), 3) for name in rounds[0]}


def measure(optimizer: str, shape: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Both ways, one after the other, because the peak memory of one would hide that of the other."""
    keep_freed_memory()
    hashed: list[int] = []
    checksum = checkpoint.file_checksum
    checkpoint.file_checksum = lambda file: (hashed.append(file.stat().st_size), checksum(file))[1]
    training = Training(optimizer, shape, folder)
    usual = statistics.median(training.step() for _ in range(STEPS + 1))
    figures: dict[str, Any] = {"seconds_of_a_step": round(usual, 3)}
    ways = {"waited_for": waited_for, "in_background": lambda training: in_background(training, usual)}
    for name, way in ways.items():
        figures[name] = medians([way(training) for _ in range(rounds)])
        figures[name]["peak_memory_mb"] = peak_memory_mb(torch.device("cpu"))
    (newest,) = list_checkpoints(folder)
    size = sum(file.stat().st_size for file in newest.glob("*.safetensors"))
    return {"bytes": size, "hashed": round(sum(hashed) / (training.saves * size), 3), **figures}


def main(optimizer: str = "adamw", shape: str = "base", rounds: str = "5") -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as place:
        figures = measure(optimizer, shape, int(rounds), Path(place))
    line = {"benchmark": "checkpoint_stall", "optimizer": optimizer, "shape": shape, "rounds": int(rounds)}
    print(json.dumps(line | figures | {"hardware": hardware()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
