"""The error for a user's mistake, and how other errors are quoted in it."""


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
