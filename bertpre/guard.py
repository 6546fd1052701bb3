"""How a command ends after an error: one message and a status, or a traceback where the error is a fault of bertpre."""

import errno
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

from bertpre.console import WarningHandler, console, is_first_process, is_one_of_several
from bertpre.errors import UserError, first_line, is_disk_full, reason

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SECONDS_FOR_MAIN_PROCESS = 10
SECONDS_TO_REPEAT = 0.1
PATH_ERRORS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)


def guarded(call: Callable[[list[str]], object]) -> None:
    """Call with the command line's arguments; exit with one message after an error that `explained` knows.

    The status is 2 after a user's mistake or a full disk, and 1 where another process has ended. `--debug` shows the
    traceback instead. Of several processes the main one speaks first.
    """
    logging.getLogger("bertpre").handlers, console.is_quiet = [WarningHandler()], False
    try:
        with no_interrupt_lost():
            call(sys.argv[1:])
    except Exception as error:
        message = explained(error)
        if "--debug" in sys.argv or message is None:
            raise
        is_lost = lost_process(error)
        if not is_lost and not is_first_process():
            time.sleep(SECONDS_FOR_MAIN_PROCESS)  # the main process reports first; its launcher then ends this one
        console.erase()
        sys.stderr.write(f"error: {message}\n")  # in one piece, between lines of other processes
        sys.exit(1 if is_lost else 2)


@contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """Repeat a Ctrl-C that arrives where Python ignores every exception, such as in a library's `__del__`."""
    before = sys.unraisablehook

    def repeat(ignored: "UnraisableHookArgs", /) -> None:
        if ignored.exc_type is KeyboardInterrupt:
            threading.Timer(SECONDS_TO_REPEAT, interrupt).start()  # at once it would be ignored here too
        else:
            before(ignored)

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before


def interrupt() -> None:
    """What Ctrl-C does, from another thread."""
    if os.name == "posix":
        os.kill(os.getpid(), signal.SIGINT)  # unlike raise_signal it also ends a wait of the main thread
    else:
        signal.raise_signal(signal.SIGINT)


def explained(error: Exception) -> str | None:
    """What to tell the user: what is wrong, and what to do. None for an error that is a fault of bertpre."""
    encoding = getattr(sys.stdout, "encoding", None)
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, UnicodeEncodeError) and encoding != "utf-8":  # cp1252 calls itself charmap in the error
        letter = ascii(error.object[error.start])
        return f"the output cannot show {letter} in {encoding}: set PYTHONIOENCODING=utf-8"
    if lost_process(error):
        return (
            f"another process of this training has ended ({first_line(error)}); its message, if it left one, is above "
            "(a system that runs out of memory leaves none). The same command resumes from the newest checkpoint"
        )
    if is_disk_full(error):
        return "the disk is full; make room and run the same command again: finished work is kept"
    return f"{error.filename}: {reason(error)}" if is_of_a_path(error) else None


def lost_process(error: Exception) -> bool:
    """Whether this is one of several processes, and the error says that another one does not answer."""
    says_so = re.search("Connection (reset|closed) by peer|Timed out waiting", str(error)) is not None
    return says_so and isinstance(error, RuntimeError) and is_one_of_several()


def is_of_a_path(error: Exception) -> TypeGuard[OSError]:
    """Whether a path that somebody gave is too long, or one that the user must not read or write."""
    return isinstance(error, OSError) and error.errno in PATH_ERRORS and bool(error.filename)
