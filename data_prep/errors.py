"""The exceptions of this package that are meant for the person at the keyboard."""


class DataError(Exception):
    """Says in one sentence what is wrong, what was found, and what to do; shown without a traceback."""


class UsageError(DataError):
    """The same for options that contradict each other or are out of range: shown with the usage, exit code 2."""
