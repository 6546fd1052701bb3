"""The one exception that means: the user can mend this."""


class UserError(Exception):
    """A user's mistake: the message says what is wrong, where, and what to do; the command line exits with status 2."""
