"""Metrics of a model over a whole set, on all processes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bertpre.training.batches import add_counts
from bertpre.training.checkpoint import Memory
from bertpre.training.metrics import Batch, PretrainingObjective
from bertpre.training.sharding import is_sharded


@dataclass(frozen=True)
class Evaluation:
    """When and how a training is evaluated; `measure` takes the step and returns metrics, and may have a memory."""

    measure: Callable[[int], dict[str, Any]]
    every: int = 0  # steps; 0: only at the end, and at the start
    at_start: bool = True
    memory: Memory | None = None


def evaluate_batches(
    accelerator: Accelerator,
    model: nn.Module,
    objective: PretrainingObjective,
    batches: Iterable[Batch],
    dtype: torch.dtype,
) -> dict[str, float]:
    """The objective's metrics over all batches of all processes.

    Runs uncompiled (`forward` is called directly): a second program would cost more than it saves. A sharded model has
    to be called itself, and is never compiled.
    """
    forward, device = (model if is_sharded(model) else model.forward), accelerator.device
    ones = torch.ones((), device=device)
    sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in objective.metric_names}
    counts = dict.fromkeys(objective.count_names, 0)
    with torch.no_grad(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        for batch in batches:
            batch_counts = objective.counts(batch)
            outputs = forward(**batch, **dict.fromkeys(batch_counts, ones))
            measured = objective.measure(outputs, batch, dict.fromkeys(batch_counts, 1.0))
            sums = {name: value + measured[name].double() for name, value in sums.items()}
            counts = add_counts([counts, batch_counts])
    # A process without a batch takes part with zeros.
    everything = torch.tensor([*map(float, sums.values()), *counts.values()], dtype=torch.float64, device=device)
    total = accelerator.reduce(everything).tolist()
    return objective.means(dict(zip(sums, total, strict=False)), dict(zip(counts, total[len(sums) :], strict=True)))
