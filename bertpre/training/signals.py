"""SIGTERM and SIGINT between two steps; SIGCONT after a pause."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from bertpre.console import is_one_of_several


class StopRequest:
    """Notes SIGTERM and SIGINT, so that the loop can save and stop between two steps.

    Further SIGTERMs are ignored: a queue signals every process, and the launcher passes its own on to them, so two are
    normal. A SIGINT after another signal, such as a second Ctrl-C, ends the process at once. `after_pause` is called
    when a process that was stopped, by Ctrl-Z or a queue, is continued.
    """

    def __init__(self, active: bool, after_pause: Callable[[], None]) -> None:
        # Python lets only the main thread handle signals.
        self.active = active and threading.current_thread() is threading.main_thread()
        self.received, self.after_pause = 0, after_pause
        self.previous: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "StopRequest":
        if self.active:
            handlers: dict[int, signal._HANDLER] = {signal.SIGTERM: self.note, signal.SIGINT: self.note}
            if hasattr(signal, "SIGCONT"):  # Windows has none
                handlers[signal.SIGCONT] = lambda *_: self.after_pause()
            self.previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def note(self, number: int, _: FrameType | None) -> None:
        """Handle a signal."""
        if self.received and number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.received = self.received or number


def signal_name(number: int) -> str:
    """The name of a signal; of several processes' signals added together, "a signal"."""
    return next((each.name for each in (signal.SIGTERM, signal.SIGINT) if each == number), "a signal")


def exit_status(number: int) -> int:
    """A shell's status for a command that a signal has ended, so that no command after `&&` is started.

    0 under a launcher, which would report a failure of this process; it gets the signal itself.
    """
    is_launched = any(name in os.environ for name in ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"))
    return 0 if is_launched or is_one_of_several() else 128 + number
