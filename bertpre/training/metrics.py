"""What a step measures: numbers that add up over micro-batches and processes to those of the step."""

import sys
from collections.abc import Mapping
from typing import Any, Protocol

import psutil
import torch

Batch = Mapping[str, torch.Tensor]

STEPS_WITH_PAIRS = "steps_with_pairs"
STEPS_WITH_TARGETS = {"mlm": "steps_with_masked_tokens", "clm": "steps_with_next_tokens"}  # by objective


class Objective(Protocol):
    """What a training measures; `count_names` are the arguments of the model that say how many targets there are.

    `options` are further ones, the same in every step.
    """

    metric_names: tuple[str, ...]
    count_names: tuple[str, ...]
    options: dict[str, bool]

    def counts(self, batch: Batch) -> dict[str, int]: ...

    def measure(self, outputs: Any, batch: Batch, counts: Mapping[str, Any]) -> dict[str, torch.Tensor]: ...


def peak_memory_mb(device: torch.device) -> int:
    """The peak memory so far: on a GPU what torch has allocated there, else this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return memory.peak_wset // 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)
