"""A thread that writes one checkpoint at a time while training continues."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from bertpre.runtime import compute_alone

logger = logging.getLogger(__name__)


class BackgroundWriter:
    """Runs one job at a time in a thread. Use it in a `with` statement, which ends when the job has."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "checkpoint", compute_alone)
        self.pending: Future[float] | None = None

    def __enter__(self) -> "BackgroundWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.thread.shutdown()
        if kind is not None and self.pending is not None and (failure := self.pending.exception()):
            logger.warning("%s", failure)  # the error that ends the training is not this one

    def start(self, job: Callable[[], None]) -> None:
        """Start a job; call `wait` first."""
        assert self.pending is None, "a job is running, or its error was not asked for"
        self.pending = self.thread.submit(seconds_of, job)

    def wait(self) -> float | None:
        """Wait for the job, if there is one; returns its seconds, raises its error."""
        pending, self.pending = self.pending, None
        return None if pending is None else pending.result()


def seconds_of(job: Callable[[], None]) -> float:
    """Do a job; returns its seconds."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start
