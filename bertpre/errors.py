"""The error for a user's mistake, and how other errors are quoted in it."""

import errno
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk, of what a user may have there
PLACE = re.compile(r" in position \d+(-\d+)?")  # in the error of a decoder
# The words in which numpy and safetensors say the same as FULL, in errors without a number.
IN_WORDS = re.compile(rf"\d+ requested and \d+ written|os error ({FULL[0]}|{FULL[1]})\b")


class UserError(Exception):
    """A user's mistake; the message names the key or file and the remedy. The command line exits with status 2."""


class ArgumentError(UserError):
    """A mistake in one argument, which the caller may know by another name, such as a recipe's key."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(f"{argument}: {reason}")
        self.argument, self.reason = argument, reason


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that a disk is full."""
    return getattr(error, "errno", None) in FULL or IN_WORDS.search(str(error)) is not None


def reason(error: OSError) -> str:
    """Why a file or folder cannot be used, in words: `permission denied`, not `PermissionError`."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "there is a file of this name"
    return (error.strerror or first_line(error)).lower()


def unreadable(error: Exception) -> str:
    """Why a file cannot be read as text, in words."""
    if isinstance(error, OSError):
        return reason(error)
    return first_line(error) + ("; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else "")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has no message.

    The position of a byte that cannot be decoded is left out: it counts within a block, not within the file.
    """
    return PLACE.sub("", (str(error).strip() or type(error).__name__).splitlines()[0])


def refuse_outside(argument: str, value: float, least: float, most: float = math.inf) -> None:
    """Raise UserError where an argument's value is not between two numbers, both included."""
    if not least <= value <= most:
        allowed = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise UserError(f"{argument}: {value} is not {allowed}")


def refuse_unknown(argument: str, value: object, choices: Sequence[str]) -> None:
    """Raise UserError where an argument's value is not one of the choices."""
    if value not in choices:
        raise UserError(f"{argument}: {value!r} is not one of {', '.join(choices)}")


def refuse_table(argument: str, value: object) -> None:
    """Raise UserError for a dictionary or data frame where texts are wanted: it would give the names of its columns."""
    if isinstance(value, Mapping) or hasattr(value, "columns"):
        split = "['train']" * (type(value).__name__ == "DatasetDict")
        raise UserError(
            f"{argument}: is a {type(value).__name__}, not texts; give one of its columns, {argument}{split}['text']"
        )


def strings_in(argument: str, values: Iterable[str]) -> Iterator[str]:
    """The values one by one; raises UserError for a single string, a table, and what is not a string."""
    if isinstance(values, str | os.PathLike):
        raise UserError(f"{argument}: is a single string or path; give an iterable of strings, or read_texts(path)")
    refuse_table(argument, values)
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise UserError(f"{argument}: item {number} is {type(value).__name__}, not a string; use read_texts")
        yield value
