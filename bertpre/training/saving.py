"""When a training is saved, and what it resumes from."""

import time
from typing import Any

from torch.distributed import ProcessGroup

from bertpre.errors import UserError
from bertpre.training.agreement import broadcast_from_first, on_every_process, refuse_different_weights
from bertpre.training.background import BackgroundWriter
from bertpre.training.checkpoint import (
    Checkpoints,
    Memory,
    discard_first,
    load_checkpoint,
    read_skipped,
    save_checkpoint,
    write_skipped,
)
from bertpre.training.clock import expected_seconds
from bertpre.training.step import TrainingStep


class Saver:
    """Saves a training and restores it: weights, optimizers, the memory of evaluations, and a state, which is JSON.

    All processes make each call together; one of them writes. Without a `place` nothing is saved.
    """

    def __init__(
        self, place: Checkpoints | None, step: TrainingStep, memory: Memory | None, group: ProcessGroup | None
    ) -> None:
        self.place, self.step, self.memory, self.group = place, step, memory, group
        self.writer = BackgroundWriter()
        self.saved_step: int | None = None
        self.saved_seconds = 0.0  # on the clock that the processes share
        self.save_seconds = 0.0  # that a checkpoint takes, on this process

    def is_due(self, step: int, seconds: float) -> bool:
        """Whether the steps or the seconds between two checkpoints have passed; the same on every process."""
        if self.place is None:
            return False
        is_late = self.place.every_seconds and seconds - self.saved_seconds >= self.place.every_seconds
        return bool(is_late or (self.place.every and step % self.place.every == 0))

    def check_weights(self, step: int, remedy: str) -> None:
        """Raise UserError where processes hold different weights or are at different steps, or a weight is not finite.

        fp16's overflows are normal, so gradients alone do not show whether a weight is the cause.
        """
        refuse_different_weights(self.step.model, step, self.step.is_sharded, self.group)
        if not self.step.has_finite_weights():
            raise UserError(f"the weights are not finite after step {step}; {remedy}; earlier checkpoints are intact")

    def save(self, state: dict[str, Any], seconds: float, in_background: bool) -> None:
        """Write a checkpoint; call `finish_writing` first.

        With `in_background` training may continue as soon as what belongs to the checkpoint is copied. `seconds` is on
        the clock that the processes share.
        """
        start = time.perf_counter()
        on_every_process(lambda: self.write(state, self.writer if in_background else None), self.group)
        self.saved_step, self.saved_seconds = state["step"], seconds
        if self.writer.pending is None:  # a later checkpoint has AdamW's two moments too
            self.save_seconds = (time.perf_counter() - start) * (1 if state["step"] else 3)

    def write(self, state: dict[str, Any], background: BackgroundWriter | None) -> None:
        """Write a checkpoint, where this process has a part in it."""
        step, is_main = self.step, self.step.accelerator.is_main_process
        if self.place is not None and (is_main or step.is_sharded):
            save_checkpoint(self.place, step.model, step.optimizers, state, self.memory, is_main, background)

    def discard(self) -> None:
        """Remove the checkpoints of a training that has taken no step, so that the next start may have other settings.

        Damaged ones of a later step stay. Call `finish_writing` first.
        """
        if self.place is not None and self.step.accelerator.is_main_process:
            discard_first(self.place.folder)

    def finish_writing(self) -> None:
        """Wait until the checkpoint that is being written, if any, is complete.

        Raises UserError, on every process, where it cannot be written.
        """
        seconds = on_every_process(self.writer.wait, self.group)
        if seconds is not None:
            self.save_seconds = expected_seconds(seconds, self.save_seconds)

    def restore(self) -> dict[str, Any] | None:
        """Take over the newest whole checkpoint; returns its state, or None without one."""
        self.finish_writing()
        if self.place is None:
            return None
        step = self.step
        state = load_checkpoint(self.place.folder, step.model, step.optimizers, self.memory, self.group)
        if state is None:
            return None
        refuse_different_weights(step.model, state["step"], step.is_sharded, self.group)
        step.working.update()
        self.saved_step, self.saved_seconds = state["step"], state["elapsed"]
        self.save_seconds = state.get("save_seconds", 0.0)
        return state

    def left_out(self) -> dict[int, list[str]]:
        """The steps that are left out since the training went back, with their documents."""
        place = self.place
        return {} if place is None else broadcast_from_first(lambda: read_skipped(place.folder), self.group)

    def leave_out(self, steps: dict[int, list[str]]) -> None:
        """Remember the steps to leave out, before the training goes back."""
        place, is_main = self.place, self.step.accelerator.is_main_process
        if place is not None:
            on_every_process(lambda: write_skipped(place.folder, steps) if is_main else None, self.group)
