"""Compare the loss over the vocabulary, forward and backward, with torch's own on a CPU; prints one JSON line.

python benchmarks/vocabulary_loss.py [ROUNDS]        (default: 9; the variants take turns, medians are reported)

The decoder of random bf16 states, its loss, all gradients, and how many labels score highest: of as many masked tokens
as a batch has, 32 rows of 128 tokens with BERT's vocabulary, 15 % masked, and a batch of recipe imdb-mini-cpu, and of
one of its causal steps. `bertpre` keeps no scores, as in pretraining; `kept` is a model whose scores are needed.
`grown_mb` is what the process grew by when each ran first.
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

from bertpre.model.losses_bertpre import IGNORE_INDEX, cross_entropy, vocabulary_loss
from bertpre.runtime import keep_freed_memory, set_deterministic
from bertpre.training.metrics import peak_memory_mb

SHAPES = {  # tokens that are scored, hidden size, vocabulary
    "mini": (614, 256, 30522),
    "imdb-mini-cpu": (1638, 256, 16384),
    "imdb-mini-cpu, causal": (8128, 256, 16384),
}
Variant = Callable[[list[Tensor], Tensor, Tensor], tuple[Tensor, Tensor]]


def kept(weights: list[Tensor], labels: Tensor, num_items: Tensor) -> tuple[Tensor, Tensor]:
    """The scores, and bertpre's loss of them."""
    logits = F.linear(*weights)
    return cross_entropy(logits, labels, num_items), right(logits, labels)


def torchs_own(weights: list[Tensor], labels: Tensor, num_items: Tensor) -> tuple[Tensor, Tensor]:
    """The scores, and the loss by torch's own function."""
    logits = F.linear(*weights)
    loss_sum = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return loss_sum / num_items, right(logits, labels)


def right(logits: Tensor, labels: Tensor) -> Tensor:
    """How many labels score highest."""
    return (logits.detach().max(-1).indices == labels).sum()


def without_scores(weights: list[Tensor], labels: Tensor, num_items: Tensor) -> tuple[Tensor, Tensor]:
    """bertpre's loss in pretraining."""
    states, weight, bias = weights
    return vocabulary_loss(states, weight, bias, labels, num_items)


VARIANTS: dict[str, Variant] = {  # those that take less memory first: the peak never falls
    "bertpre": without_scores, "kept": kept, "torch": torchs_own,
}  # fmt: skip


def seconds_of(variant: Variant, weights: list[Tensor], labels: Tensor) -> float:
    """One forward and backward pass."""
    start = time.perf_counter()
    loss, _ = variant(weights, labels, torch.full((), float(len(labels))))
    loss.backward()
    seconds = time.perf_counter() - start
    for weight in weights:
        weight.grad = None
    return seconds


def measure(rounds: int, rows: int, width: int, vocabulary: int) -> dict[str, object]:
    """Median milliseconds of all, and their ratios."""
    sizes, labels = ((rows, width), (vocabulary, width), (vocabulary,)), torch.randint(0, vocabulary, (rows,))
    # As in a model: with larger scores most probabilities would be denormal numbers, which take much longer.
    weights = [(torch.randn(size) * width**-0.25).to(torch.bfloat16).requires_grad_() for size in sizes]
    grown = {}
    for name, variant in VARIANTS.items():
        before = peak_memory_mb(torch.device("cpu"))
        seconds_of(variant, weights, labels)
        grown[name] = peak_memory_mb(torch.device("cpu")) - before
    each: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(rounds):
        for name, variant in VARIANTS.items():
            each[name].append(seconds_of(variant, weights, labels))
    medians = {name: statistics.median(values) for name, values in each.items()}
    return {
        "milliseconds": {name: round(1000 * value, 1) for name, value in medians.items()},
        "bertpre_to_torch": round(medians["bertpre"] / medians["torch"], 3),
        "bertpre_to_kept": round(medians["bertpre"] / medians["kept"], 3),
        "grown_mb": grown,
    }


if __name__ == "__main__":
    keep_freed_memory()
    set_deterministic(True)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    results = {name: measure(rounds, *shape) for name, shape in SHAPES.items()}
    print(json.dumps({"benchmark": "vocabulary_loss", "rounds": rounds} | results | {"hardware": hardware()}))
