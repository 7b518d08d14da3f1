"""The one error a user is meant to read: what is wrong, what was found, what to do."""


class RefusedError(Exception):
    """Raised before any work is done, or when going on would give a wrong number. The message is for the user."""
