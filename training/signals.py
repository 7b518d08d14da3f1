"""SIGTERM, SIGINT and SIGUSR1 ask for a checkpoint after the current step and an end; a second SIGINT ends at once."""

import signal
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later


class StopRequest:
    """Remembers the first signal that asked this process to stop. Made before workers fork: they inherit the handler,
    so a signal to the whole process group does not tear the data away under the last step."""

    def __init__(self) -> None:
        self.name = ""
        for number in STOPPING:
            signal.signal(number, self._received)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.name and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.name = self.name or signal.Signals(number).name
