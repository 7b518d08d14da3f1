"""A program with all that it starts, as one thing that can be weighed and ended.

    with Group(command, environment, log, mark) as group: group.poll(); group.resident_bytes()

The program leads no group of its own: a guard does, whose input ends with this process, and which then ends the group,
so that `kill -9` of this process leaves nothing behind. Should the guard be killed too, whatever goes on is found by
`end_marked` at the next start, by a word in its environment.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

_GUARD = ["/bin/sh", "-c", "read -r line; kill -KILL 0"]  # waits for the end of its input, then ends its group
_PAGE = os.sysconf("SC_PAGE_SIZE")
MARK = "DATA_PREP_MARK"


class Group:
    """One run of `command`, its output appended to `log`; leaving the block ends every process of it.

    Args:
        mark: a word that stands in every process's environment, for `end_marked`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, mark: str) -> None:
        self._mark = mark
        marked = {**environment, MARK: mark}
        self._guard = subprocess.Popen(
            _GUARD,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
            env=marked,
        )
        try:
            with open(log, "ab") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    process_group=self._guard.pid,
                    env=marked,
                )
        except BaseException:
            self._end()
            raise

    def poll(self) -> bool:
        """Whether the program, or its guard, has ended."""
        return self._process.poll() is not None or self._guard.poll() is not None

    def wait(self, seconds: float) -> bool:
        """Wait at most so long for the program to end; whether it or its guard has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.poll()

    def resident_bytes(self) -> int:
        """The memory that its processes hold; what they share is counted for each."""
        return sum(pages * _PAGE for group, pages in _processes() if group == self._guard.pid)

    def __enter__(self) -> "Group":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._process.wait()

    def _end(self) -> None:
        # The group's number is not given to another while a process of it is there or its leader is not waited for.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.communicate()
        end_marked(self._mark)  # Ray's servers leave the group


def end_marked(mark: str) -> int:
    """End every process of ours with `mark` in its environment, and wait until none is left; returns how many."""
    ended: set[int] = set()
    while found := list(_marked(f"{MARK}={mark}".encode())):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.update(found)
        time.sleep(0.05)  # a killed process is there until it has let go of its memory and files
    return len(ended)


def _marked(word: bytes) -> Iterator[int]:
    """Numbers of the processes, other than this one, whose environment has `word`; zombies have none."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if word in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)


def _processes() -> Iterator[tuple[int, int]]:
    """(process group, resident pages) of every process."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                yield int(fields[2]), int(fields[21])
