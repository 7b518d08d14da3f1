"""The one exception of this package that is meant for the person at the keyboard."""


class DataError(Exception):
    """Says in one sentence what is wrong, what was found, and what to do; shown without a traceback."""
