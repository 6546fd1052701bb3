"""Errors that are a user's to mend, and how others are quoted in them."""


class UserError(Exception):
    """A mistake in what the user gave; the message names the key or file and the remedy. The CLI exits with 2."""


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
