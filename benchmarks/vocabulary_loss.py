"""Compare the loss over the vocabulary, forward and backward, with torch's own on a CPU; prints one JSON line.

python benchmarks/vocabulary_loss.py [ROUNDS]        (default: 9; the variants take turns, medians are reported)

Random bf16 scores of as many masked tokens as a batch has: 32 rows of 128 tokens with BERT's vocabulary, 15 % masked;
and a batch of recipe imdb-mini-cpu. `grown_mb` is what the process grew by when each ran first.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from training_step import hardware

from bertpre.model.modeling_bertpre import IGNORE_INDEX, cross_entropy
from bertpre.runtime import keep_freed_memory, set_deterministic
from bertpre.training.metrics import peak_memory_mb

SHAPES = {"mini": (614, 30522), "imdb-mini-cpu": (1638, 16384)}


def torchs_own(logits: Tensor, labels: Tensor, num_items: Tensor) -> Tensor:
    """The loss by torch's own function."""
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum") / num_items


def seconds_of(loss: Callable[[Tensor, Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> float:
    """One forward and backward pass."""
    start = time.perf_counter()
    loss(logits, labels, torch.full((), float(len(labels)))).backward()
    seconds = time.perf_counter() - start
    logits.grad = None
    return seconds


def measure(rounds: int, rows: int, vocabulary: int) -> dict[str, object]:
    """Median milliseconds of both, and their ratio."""
    logits = torch.randn(rows, vocabulary, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, vocabulary, (rows,))
    losses = {"bertpre": cross_entropy, "torch": torchs_own}
    grown = {}
    for name, loss in losses.items():  # the smaller one first: the peak never falls
        before = peak_memory_mb(torch.device("cpu"))
        seconds_of(loss, logits, labels)
        grown[name] = peak_memory_mb(torch.device("cpu")) - before
    each: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(rounds):
        for name, loss in losses.items():
            each[name].append(seconds_of(loss, logits, labels))
    medians = {name: statistics.median(values) for name, values in each.items()}
    return {
        "milliseconds": {name: round(1000 * value, 1) for name, value in medians.items()},
        "bertpre_to_torch": round(medians["bertpre"] / medians["torch"], 3),
        "grown_mb": grown,
    }


if __name__ == "__main__":
    keep_freed_memory()
    set_deterministic(True)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    results = {name: measure(rounds, *shape) for name, shape in SHAPES.items()}
    print(json.dumps({"benchmark": "vocabulary_loss", "rounds": rounds} | results | {"hardware": hardware()}))
