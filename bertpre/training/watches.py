"""Guards: numbers that are not finite, a loss that leaps, a loss that stays where word frequencies alone bring it."""

import math
import signal
import statistics
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

MAX_SKIPPED = 5  # batches; more than a few bad ones mean that the training itself is unsound


class NotFinite(Exception):
    """The gradient of a step is not finite; `documents` names what the step's examples were cut from."""

    def __init__(self, step: int, documents: Callable[[], list[str]]) -> None:
        super().__init__(step)
        self.step, self.documents = step, documents


class StopRequest:
    """Notes SIGTERM and SIGINT, so that the loop can save and stop between two steps; the second one kills at once."""

    def __init__(self, active: bool) -> None:
        # Python lets the main thread alone handle signals.
        self.active = active and threading.current_thread() is threading.main_thread()
        self.received, self.before = 0, {}

    def __enter__(self) -> "StopRequest":
        if self.active:
            self.before = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def note(self, number: int, _: FrameType | None) -> None:
        """The handler."""
        if self.received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.received = number


class SpikeWatch:
    """Reports a training loss far above those of the last log lines."""

    def __init__(self, lines: int = 10) -> None:
        self.losses: deque[float] = deque(maxlen=lines)

    def __call__(self, step: int, figures: dict[str, float]) -> str | None:
        """A line's warning, if there is one: above the median by six times the usual distance from it, at least 0.5."""
        loss, known = figures["loss"], list(self.losses)
        self.losses.append(loss)
        if len(known) < self.losses.maxlen:
            return None
        median = statistics.median(known)
        spread = statistics.median(abs(value - median) for value in known)
        if loss <= median + max(6 * spread, 0.5):
            return None
        return f"the loss leapt from {median:.3f} to {loss:.3f} before step {step}; if it stays there, lower the rate"


def plateau_loss(unigram_entropy: float, mask_split: tuple[float, float, float]) -> float:
    """The MLM loss of a model that knows how often each word occurs, and what masking does, but reads no context.

    Where [MASK] shows it is the entropy. Where a word shows, that word is the answer as often as kept words are among
    kept and replaced ones, which are told apart by nothing. Nats.
    """
    masked, replaced, kept = mask_split
    shown = replaced + kept
    telling = -sum(share * math.log(share / shown) for share in (replaced, kept) if share)
    return (masked + replaced) * unigram_entropy + telling


class PlateauWatch:
    """Recognises a loss that stays at `plateau_loss`, and says when it has left it."""

    NEAR, FALL, MIN_STEPS = 0.15, 0.02, 300  # nats above which it counts, share it has to fall, steps it may take

    def __init__(self, unigram_entropy: float, mask_split: tuple[float, float, float], architecture: str) -> None:
        self.level, self.architecture = plateau_loss(unigram_entropy, mask_split), architecture
        self.history: list[tuple[int, float]] = []
        self.has_left = self.has_warned = False

    def __call__(self, step: int, figures: dict[str, float]) -> str | None:
        """What is to be said about a log line's loss, once each: that it has left the plateau, or that it stays."""
        loss = figures["mlm_loss"]
        if not self.history and loss < self.level - 2 * self.NEAR:
            self.has_left = True  # it began with known weights, or goes on
        self.history.append((step, loss))
        if not self.has_left and loss < self.level - 2 * self.NEAR:
            self.has_left = True
            return f"the MLM loss is below {self.level:.2f}, where word frequencies alone bring it, since step {step}"
        if self.has_left or self.has_warned or not self.stands_still(step, loss):
            return None
        self.has_warned = True
        return self.explain(step, loss)

    def stands_still(self, step: int, loss: float) -> bool:
        """Whether the loss, near the level, has hardly fallen for a while."""
        earlier = [value for at, value in self.history if at <= step - self.MIN_STEPS]
        if not earlier or abs(loss - self.level) > 2 * self.NEAR:
            return False
        return loss > (1 - self.FALL) * min(earlier[-3:])

    def explain(self, step: int, loss: float) -> str:
        """The warning."""
        causes = [
            "it is early: a few thousand steps at this level are usual for BERT's own recipe with small batches",
            "the learning rate is too high or too low: try a third and three times of training.learning_rate",
            "the batch is small: raise training.global_batch_size",
            "labels do not fit the text: `bertpre doctor` shows masks, vocabulary and pairs",
        ]
        if self.architecture == "bert":
            causes.insert(
                1, "post-LN with AdamW leaves it late: model.architecture=modern with training.optimizer=muon"
            )
        listed = "".join(f"\n  {number}. {cause}" for number, cause in enumerate(causes, start=1))
        return (
            f"the MLM loss {loss:.2f} has stood near {self.level:.2f} for {self.MIN_STEPS} steps: at step {step} the "
            f"model predicts by word frequency alone. Likely causes, in order:{listed}"
        )


def warnings_for(watches: list[Any], step: int, figures: dict[str, float]) -> list[str]:
    """What the watches have to say about a log line."""
    said = [watch(step, figures) for watch in watches]
    return [text for text in said if text]
