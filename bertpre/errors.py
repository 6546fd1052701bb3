"""The error for a user's mistake, and how other errors are quoted in it."""

import math
from collections.abc import Sequence


class UserError(Exception):
    """A user's mistake; the message names the key or file and the remedy. The command line exits with status 2."""


def reason(error: OSError) -> str:
    """Why a file or folder cannot be used, in words: `permission denied`, not `PermissionError`."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "there is a file of this name"
    return (error.strerror or first_line(error)).lower()


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Why a file cannot be read as text, in words."""
    return reason(error) if isinstance(error, OSError) else f"{first_line(error)}; save it as UTF-8"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def refuse_outside(argument: str, value: float, least: float, most: float = math.inf) -> None:
    """Raise UserError where an argument's value is not between two numbers, both included."""
    if not least <= value <= most:
        allowed = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise UserError(f"{argument}: {value} is not {allowed}")


def refuse_unknown(argument: str, value: object, choices: Sequence[str]) -> None:
    """Raise UserError where an argument's value is not one of the choices."""
    if value not in choices:
        raise UserError(f"{argument}: {value!r} is not one of {', '.join(choices)}")
