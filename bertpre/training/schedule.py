"""Learning-rate schedules as pure functions of progress, and the duration that progress is a share of."""

import math
from dataclasses import dataclass


def lr_at(progress: float, schedule: str, warmup: float, decay: float = 1.0) -> float:
    """The factor on the learning rate at a `progress` from 0 to 1; `warmup` and `decay` are shares of the training.

    `linear`: rises during `warmup`, then falls to zero (Devlin et al. 2018, appendix A.2).
    `cosine`: rises during `warmup`, then falls to zero along half a cosine (Loshchilov and Hutter 2017).
    `trapezoid`: rises during `warmup`, stays, falls to zero during the last `decay` (Hägele et al. 2024).
    """
    if progress < warmup:
        return progress / warmup
    fall = min(decay, 1 - warmup) if schedule == "trapezoid" else 1 - warmup
    left = max(0.0, min(1.0, (1 - progress) / fall)) if fall else float(progress < 1)
    return (1 - math.cos(math.pi * left)) / 2 if schedule == "cosine" else left


def whole_warmup(warmup: float, steps: int | None) -> float:
    """The share `warmup` of so many steps (None: not known), or 0 where it is less than one, whose rate would be 0."""
    return warmup if steps is None or warmup * steps >= 1 else 0.0


@dataclass(frozen=True)
class Duration:
    """How long to train: steps, tokens or a wall-clock budget in seconds; the first to be reached ends it."""

    max_steps: int | None = None
    budget_seconds: float | None = None
    max_tokens: int | None = None

    def progress(
        self,
        step: int,
        elapsed_seconds: float,
        tokens: int = 0,
        startup_seconds: float = 0.0,
        reserve_seconds: float = 0.0,
    ) -> float:
        """The share of the training that is done, from 0 to 1 (more, where time or tokens were overrun).

        `startup_seconds` of the budget were spent before the first step, and `reserve_seconds` are kept for what comes
        after the last one: neither is part of the schedule.
        """
        by_steps = step / self.max_steps if self.max_steps else 0.0
        by_time = 0.0
        if self.budget_seconds:
            left = self.budget_seconds - startup_seconds - reserve_seconds
            by_time = (elapsed_seconds - startup_seconds) / left if left > 0 else 1.0
        by_tokens = tokens / self.max_tokens if self.max_tokens else 0.0
        return max(by_steps, by_time, by_tokens)
