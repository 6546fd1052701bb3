"""How far a training has come: a clock that survives resumes, and progress through the duration."""

import time
from dataclasses import dataclass

from bertpre.training.schedule import Duration


def expected_seconds(last: float, before: float) -> float:
    """What the final evaluation or checkpoint takes: as long as the last one, but at most twice the estimate `before`.

    A pause or a busy disk may have made one slow, which says little about the final one.
    """
    return min(last, 2 * before) if before else last


@dataclass
class Clock:
    """Seconds of training, those before a resume included.

    `elapsed`, `startup_seconds` and `reserve_seconds` are the first process's, shared at every step, so that all
    processes come to the same progress.
    """

    duration: Duration
    started: float = 0.0  # on time.perf_counter
    before_resume: float = 0.0
    elapsed: float = 0.0  # at the last step
    thread_seconds: float = 0.0  # of this thread on the processor, at the last step
    startup_seconds: float | None = None  # spent in starting and compiling, before each process's first step
    is_starting: bool = True  # until the first step of this process
    reserve_seconds: float = 0.0  # kept for the last evaluation and the last checkpoint

    def start(self, at: float | None = None) -> None:
        """Begin to count now, or from `at` on, which is on time.perf_counter."""
        self.started = time.perf_counter() if at is None else at

    def now(self) -> float:
        """Seconds of training so far."""
        return self.before_resume + time.perf_counter() - self.started

    def resume(self, elapsed: float, startup_seconds: float | None) -> None:
        """Continue from what a checkpoint says."""
        self.before_resume = self.elapsed = elapsed
        self.startup_seconds = startup_seconds

    def update(self, elapsed: float, reserve_seconds: float) -> None:
        """Take over the first process's clock, before a step."""
        self.elapsed, self.reserve_seconds, self.thread_seconds = elapsed, reserve_seconds, time.thread_time()
        if self.is_starting:
            self.startup_seconds = (self.startup_seconds or 0.0) + elapsed - self.before_resume
            self.is_starting = False

    def leave_out_pause(self) -> None:
        """Take a pause, in which the process was stopped, out of the training: the time in which this thread was idle.

        Else it would use up a budget, and the learning rate would not come to its end. A pause while the training
        starts counts as start-up.
        """
        if not self.is_starting:
            self.started += max(0.0, self.now() - self.elapsed - (time.thread_time() - self.thread_seconds))

    def progress(self, step: int, tokens: int) -> float:
        """The share of the training that is done after `step` steps and `tokens` tokens, from 0 to 1 or a little more.

        Neither start-up nor the reserve is part of a wall-clock budget's schedule.
        """
        if self.startup_seconds is None:  # no time has passed that counts
            return self.duration.progress(step, 0.0, tokens)
        return self.duration.progress(step, self.elapsed, tokens, self.startup_seconds, self.reserve_seconds)

    def seconds_left(self, step: int, tokens: int) -> float:
        """The time that the rest takes at the speed so far; what is kept for the end is part of a budget's rest."""
        now, startup = self.now(), self.startup_seconds or 0.0
        progress, so_far = self.duration.progress(step, now, tokens, startup), now - startup
        return max(0.0, so_far / progress - so_far) if progress else 0.0
