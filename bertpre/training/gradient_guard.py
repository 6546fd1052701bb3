"""Gradients that are not finite: found before they do harm, and their steps left out."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from bertpre.training.precision import LossScale
from bertpre.training.sharding import gather_full

MAX_SKIPPED = 5  # steps; more than a few bad ones mean that the training itself is unsound


class NonFiniteGradient(Exception):
    """The gradient of a step is not finite; `documents` names the documents that the step's examples came from."""

    def __init__(self, step: int, documents: Callable[[], list[str]]) -> None:
        super().__init__(step)
        self.step, self.documents = step, documents


@dataclass
class GradientGuard:
    """Clips gradients and checks their norms: before each update, or only every so often where a check is expensive.

    On a GPU each check makes the CPU wait, so norms are collected there and checked together.
    """

    max_grad_norm: float
    loss_scale: LossScale
    checks_each_step: bool = True
    skipped: dict[int, list[str]] = field(default_factory=dict)  # steps that are left out, with their documents
    unchecked: list[tuple[int, Callable[[], list[str]], torch.Tensor]] = field(default_factory=list)

    def clip(self, model: nn.Module, step: int, documents: Callable[[], list[str]]) -> torch.Tensor:
        """Clip the gradients of a step to the largest allowed norm; returns the norm that they had."""
        grad_norm = gather_full(nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm))
        self.unchecked.append((step, documents, grad_norm))
        return grad_norm

    def allows_update(self) -> bool:
        """Whether the optimizers may use the gradients; False only where fp16 overflowed, which is normal."""
        return not self.checks_each_step or self.check()

    def check(self) -> bool:
        """Check all gradients since the last check; returns False where fp16 overflowed.

        Raises NonFiniteGradient where one is not finite for another reason.
        """
        unchecked, self.unchecked = self.unchecked, []
        norms = torch.stack([norm for *_, norm in unchecked]).tolist() if unchecked else []
        for (step, documents, _), norm in zip(unchecked, norms, strict=True):
            is_finite = math.isfinite(norm)
            if self.loss_scale.enabled:
                self.loss_scale.update(is_finite)
                if not is_finite and self.loss_scale.value >= LossScale.LEAST:
                    return False
            if not is_finite:
                raise NonFiniteGradient(step, documents)
        return True

    def skip(self, step: int, documents: list[str]) -> bool:
        """Leave a step out from here on; returns False where too many are left out already."""
        if len(self.skipped) >= MAX_SKIPPED:
            return False
        self.skipped[step] = documents
        return True
