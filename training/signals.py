"""SIGTERM, SIGINT and SIGUSR1 ask for a checkpoint after the current step and an end; a second SIGINT ends at once.

Before the first step there is nothing to save: any of them ends the process then. Data workers do not get them: they
are in process groups of their own (training/data/loader.py).
"""

import os
import signal
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later


class StopRequest:
    """Remembers the first signal that asked this process to stop, by name."""

    def __init__(self) -> None:
        self.name = ""
        self.stepping = False
        for number in STOPPING:
            signal.signal(number, self._received)

    def wait_for_step(self) -> None:
        """From now on a signal waits for the end of the step."""
        self.stepping = True

    def _received(self, number: int, frame: FrameType | None) -> None:
        if not self.stepping or (self.name and number == signal.SIGINT):
            self.name = signal.Signals(number).name
            raise KeyboardInterrupt
        if not self.name:
            self.name = signal.Signals(number).name
            os.write(2, f"{self.name}: a checkpoint after this step, then the end\n".encode())  # print may be busy
