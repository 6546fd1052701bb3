"""What a command prints while it works: lines of progress, warnings and results, above one live line on a terminal."""

import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

SIZES = {  # what launchers call a process's number, and how many there are: torchrun, then MPI's
    "RANK": "WORLD_SIZE", "PMI_RANK": "PMI_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",
}  # fmt: skip
SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
REDRAW_SECONDS = 0.2  # between two drawings of the live line


logger = logging.getLogger(__name__)


@cache
def log_once(message: str) -> None:
    """Log a message the first time that this process has it; a source is read several times."""
    logger.warning(message)


class Console:
    """Prints for the whole process, or for the first one of several; `is_quiet` leaves progress out.

    The live line is the last line of a terminal. It is drawn again and again, never printed elsewhere, and removed at
    the end: what was printed above it stays.
    """

    def __init__(self) -> None:
        self.is_quiet = False
        self.line: tqdm | None = None
        self.stage, self.drawn = "", 0.0  # what was drawn last, and when on time.monotonic

    def say(self, text: str) -> None:
        """Print progress: a line that `--quiet` leaves out."""
        if not self.is_quiet:
            self.show(text)

    def show(self, text: str) -> None:
        """Print a result or a warning."""
        if is_first_process():
            with self.above_line():
                print(text, flush=True)

    def draws(self, stage: str) -> bool:
        """Whether `draw` would draw now: on a terminal, and not too soon after the last time for the same stage."""
        is_due = stage != self.stage or time.monotonic() - self.drawn >= REDRAW_SECONDS
        return is_due and not self.is_quiet and is_first_process() and sys.stderr.isatty()

    def draw(self, stage: str, text: str = "", share: float | None = None) -> None:
        """Draw the live line: the stage, a bar where the share that is done (0 to 1) is known, and the text."""
        if not self.draws(stage):
            return
        bar = "" if share is None else "{percentage:3.0f}% |{bar:10}| "
        form, done = f"{stage} {bar}{text}", min(share or 0.0, 1.0)
        if self.line is None:
            from tqdm import tqdm

            self.line = tqdm(total=1.0, initial=done, bar_format=form, leave=False, dynamic_ncols=True, file=sys.stderr)
        else:
            self.line.bar_format, self.line.n = form, done
            self.line.refresh()
        self.stage, self.drawn = stage, time.monotonic()

    def erase(self) -> None:
        """Remove the live line, if there is one."""
        if self.line is not None:
            self.line.close()
            self.line = None

    @contextmanager
    def above_line(self) -> Iterator[None]:
        """Make room for output above the live line; it is drawn again afterwards."""
        if self.line is None:
            yield
            return
        with self.line.external_write_mode():
            yield


console = Console()


class WarningHandler(logging.Handler):
    """Prints what the package logs on stderr, as `warning: ...`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        if is_first_process():
            with console.above_line():
                sys.stderr.write(f"{record.levelname.lower()}: {record.getMessage()}\n")
                sys.stderr.flush()


def is_first_process() -> bool:
    """Whether this is the only process, or the first one of a group; a number without a group is a leftover."""
    return not is_one_of_several() or first_set(SIZES) == "0"


def is_one_of_several() -> bool:
    """Whether a launcher has started several processes, of which this is one."""
    return first_set(SIZES.values()) not in ("0", "1")


def first_set(names: Iterable[str]) -> str:
    """The value of the first of these environment variables that is set, as accelerate reads them; else 0.

    Under `srun` torchrun's processes have MPI's variables too, all with the number of the task that started them.
    """
    return next((os.environ[name] for name in names if name in os.environ), "0")


def program() -> str:
    """What the user types to start bertpre: `bertpre` where the shell finds it, else what started this one."""
    started = Path(sys.argv[0])
    if shutil.which("bertpre") is None and started.name == "bertpre":
        return shlex.quote(sys.argv[0])
    if shutil.which("bertpre") is None and started.name == "__main__.py" and started.parent.name == "bertpre":
        return f"{shlex.quote(sys.executable)} -m bertpre"
    return "bertpre"


def command_line(*words: str | Path) -> str:
    """A command of bertpre, as a shell takes it: paths may hold spaces."""
    return f"{program()} {shlex.join(map(str, words))}"


def time_text(seconds: float) -> str:
    """Seconds in words: `0.4 s`, `58 s`, `2 min 5 s`, `3 h 12 min`, `2 d 4 h`."""
    if 0.05 <= seconds < 0.95:
        return f"{seconds:.1f} s"
    whole, units = round(seconds), {"d": 86400, "h": 3600, "min": 60, "s": 1}
    counts = {}
    for name, size in units.items():
        counts[name], whole = divmod(whole, size)
    names = [*units]
    largest = next((place for place, name in enumerate(names) if counts[name]), len(names) - 1)
    return " ".join(f"{counts[name]} {name}" for name in names[largest : largest + 2] if counts[name]) or "0 s"


def scientific(value: float) -> str:
    """A number in short scientific notation: 3.0e-3."""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}" if value else "0"


def dropped_text(dropped: Mapping[str, int]) -> str:
    """How many documents were dropped for each reason, for reading."""
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) or "none"


def spread_text(over: dict[str, Any]) -> str:
    """What `mean_and_std` returns, for reading; one seed has no standard deviation."""
    return figure_text(over["mean"]) + (f" ± {figure_text(over['std'])}" if len(over["values"]) > 1 else "")


def interval_text(interval: Sequence[float], form: str | None = None) -> str:
    """The 95 % confidence interval, its ends in this format; as figures without one."""
    low, high = (figure_text(end) if form is None else f"{end:{form}}" for end in interval)
    return f"95 % CI {low}{'-' if interval[0] >= 0 else ' to '}{high}"


def figure_text(value: float) -> str:
    """A figure to four places; one that is near 0, such as the error of small numbers, to four digits."""
    return f"{value:.4g}" if 0 < abs(value) < 0.001 else f"{value:.4f}"
