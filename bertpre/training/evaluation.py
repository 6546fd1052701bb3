"""When a training is evaluated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertpre.training.checkpoint import Memory


@dataclass(frozen=True)
class Evaluation:
    """When and how a training is evaluated; `measure` takes the step and returns metrics, and may have a memory."""

    measure: Callable[[int], dict[str, Any]]
    every: int = 0  # steps; 0: only at the end, and at the start
    at_start: bool = True
    memory: Memory | None = None
