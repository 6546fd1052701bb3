"""Watches of the training loss."""

import statistics
from collections import deque


class SpikeWatch:
    """Warns of a training loss far above those of the last `lines` log lines with the same objective."""

    def __init__(self, lines: int = 10) -> None:
        self.lines = lines
        self.losses: dict[tuple[str, ...], deque[float]] = {}  # by the names of the losses that make up the whole one

    def __call__(self, step: int, metrics: dict[str, float]) -> str | None:
        """A warning where the loss is above the median by six times the median deviation, and by at least 0.5."""
        losses = self.losses.setdefault(tuple(name for name in metrics if "loss" in name), deque(maxlen=self.lines))
        loss, known = metrics["loss"], list(losses)
        losses.append(loss)
        if len(known) < self.lines:
            return None
        median = statistics.median(known)
        spread = statistics.median(abs(value - median) for value in known)
        if loss <= median + max(6 * spread, 0.5):
            return None
        return (
            f"the loss jumped from {median:.3f} to {loss:.3f} at step {step}; lower the learning rate if it stays there"
        )


class CausalWatch:
    """Says once, in a causal phase, that validations measure what only a later phase learns."""

    def __init__(self) -> None:
        self.has_said = False

    def __call__(self, step: int, metrics: dict[str, float]) -> str | None:
        """The message, with the first log line of the phase."""
        if self.has_said or "clm_loss" not in metrics or "mlm_loss" in metrics:
            return None
        self.has_said = True
        return "this phase predicts the next token: the MLM loss of a validation stays high until masked tokens follow"
