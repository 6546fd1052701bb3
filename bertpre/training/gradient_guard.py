"""Gradients that are not finite: their steps are skipped, and several in a row are an error."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import nn

from bertpre.training.precision import LossScale
from bertpre.training.sharding import gather_full

MAX_IN_A_ROW = 5  # steps; a bad text spoils one or two, so more mean that the weights or the device are at fault
MAX_LEFT_OUT, RECENT = 5, 10_000  # steps; more than a few among recent ones mean that the training itself is unsound


class NonFiniteGradient(Exception):
    """Training cannot continue: gradients are not finite; `documents` names, by step, what their examples came from."""

    def __init__(self, documents: dict[int, list[str]]) -> None:
        super().__init__(*documents)
        self.documents = documents

    def __str__(self) -> str:
        return not_finite(self.documents)


def not_finite(documents: dict[int, list[str]]) -> str:
    """That the gradients of some steps are not finite, in words, with the first few of their documents."""
    steps, names = ", ".join(map(str, documents)), list(dict.fromkeys(chain.from_iterable(documents.values())))
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    which = f"the gradients of steps {steps} are" if len(documents) > 1 else f"the gradient of step {steps} is"
    whose = "their texts" if len(documents) > 1 else "its text"
    return f"{which} not finite" + (f" ({whose}: {shown})" if shown else "")


@dataclass
class GradientGuard:
    """Clips gradients and counts the steps whose gradient is not finite.

    Such a step changes neither weights nor optimizers. On a CPU it is known at once. On a GPU to ask would make the CPU
    wait: there the optimizers skip the step themselves, and norms are collected and read together.
    """

    max_grad_norm: float
    loss_scale: LossScale
    checks_each_step: bool = True
    max_in_a_row: int = MAX_IN_A_ROW
    row: dict[int, list[str]] = field(default_factory=dict)  # the steps skipped since the last good one, with documents
    left_out: dict[int, list[str]] = field(default_factory=dict)  # steps that are not even tried again
    unchecked: list[tuple[int, Callable[[], list[str]], torch.Tensor]] = field(default_factory=list)

    def clip(self, model: nn.Module, step: int, documents: Callable[[], list[str]]) -> torch.Tensor:
        """Clip the gradients of a step to the largest allowed norm; returns the norm that they had."""
        grad_norm = gather_full(nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm))
        self.unchecked.append((step, documents, grad_norm))
        return grad_norm

    def check(self) -> dict[int, list[str]]:
        """The steps skipped since the last check, up to one that makes the row too long; waits for a GPU."""
        unchecked, self.unchecked = self.unchecked, []
        norms = torch.stack([norm for *_, norm in unchecked]).tolist() if unchecked else []
        skipped = {}
        for (step, documents, _), norm in zip(unchecked, norms, strict=True):
            is_finite = math.isfinite(norm)
            if self.loss_scale.enabled:
                self.loss_scale.update(is_finite)
            if is_finite:
                self.row = {}
                continue
            skipped[step] = self.row[step] = documents()
            if self.is_row_too_long:
                break
        return skipped

    @property
    def is_overflow(self) -> bool:
        """Whether fp16's loss scale explains a gradient that is not finite; then that is normal."""
        return self.loss_scale.enabled and self.loss_scale.value >= LossScale.LEAST

    @property
    def is_row_too_long(self) -> bool:
        """Whether too many steps in a row were skipped for training to continue."""
        return len(self.row) >= self.max_in_a_row and not self.is_overflow

    def state(self) -> dict[str, Any]:
        """The guard's part of a checkpoint; the steps that are left out have a file of their own."""
        return {
            "loss_scale": [self.loss_scale.value, self.loss_scale.good_steps] if self.loss_scale.enabled else None,
            "skipped_in_a_row": {str(step): documents for step, documents in self.row.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`; steps that are left out no longer count as skipped in a row.

        A checkpoint of bf16 or fp32 has no scale: fp16 begins with its own.
        """
        if self.loss_scale.enabled and state["loss_scale"] is not None:
            self.loss_scale.value, self.loss_scale.good_steps = state["loss_scale"]
        row = {int(step): documents for step, documents in state["skipped_in_a_row"].items()}
        self.row = {step: row[step] for step in row if step not in self.left_out}

    def leave_out(self, steps: dict[int, list[str]]) -> bool:
        """Do not even try some steps from here on; returns False where too many before them are left out already."""
        if sum(step > min(steps) - RECENT for step in self.left_out) >= MAX_LEFT_OUT:
            return False
        self.left_out |= steps
        return True
