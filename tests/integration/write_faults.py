"""Faults at the n-th file that is written, raised from Python's audit events: nothing of bertpre is replaced."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Fault = Callable[[], None]


@contextmanager
def at_write(number: int, fault: Fault, folder: Path) -> Iterator[None]:
    """Call `fault` just before the `number`-th file below a folder is opened for writing."""
    left, is_active = number, True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if not is_active or event != "open":
            return
        path, mode, _ = arguments
        if str(path).startswith(f"{folder}{os.sep}") and str(mode or "r")[0] in "wxa":
            left -= 1
            if left == 0:
                fault()

    sys.addaudithook(watch)  # hooks stay for the life of a process
    try:
        yield
    finally:
        is_active = False


def kill() -> None:
    """Kill this process, which leaves it no time to tidy up."""
    os.kill(os.getpid(), signal.SIGKILL)
