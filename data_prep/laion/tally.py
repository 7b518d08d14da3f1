"""How far a download is, for a person: shards, rows a second, what came of them, and how long the rest takes."""

import sys
import time
from collections import Counter
from collections.abc import Mapping

from data_prep.laion.finished import SUCCESS
from data_prep.words import many

SECONDS_BETWEEN_LINES = 10.0


class Tally:
    """Counts of `rows` rows in `shards` shards over all parts; writes a line to stderr every ten seconds."""

    def __init__(self, shards: int, rows: int) -> None:
        self._shards, self._rows = shards, rows
        self._before, self._now = Counter[str](), Counter[str]()
        self._done = 0
        # What a run says it has finished, by shard; it is counted for good once it is compared with the plan.
        self.running: dict[int, Counter[str]] = {}
        self._started = self._last_line = time.monotonic()

    def add(self, reasons: Mapping[str, int], earlier: bool = False) -> None:
        """A finished shard; `earlier`: by an earlier call, so that it says nothing of the speed."""
        (self._before if earlier else self._now).update(reasons)
        self._done += 1

    @property
    def left(self) -> int:
        """How many rows are still to come."""
        return self._rows - sum(self.running.values(), self._before + self._now).total()

    def show(self) -> None:
        """Write a line, if it is time."""
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            print(self.line(now), file=sys.stderr, flush=True)

    def line(self, now: float) -> str:
        """The line; `now` is time.monotonic()."""
        fresh = sum(self.running.values(), self._now)
        every = self._before + fresh
        done, new = every.total(), fresh.total()
        rate = new / max(now - self._started, 1e-9)
        shards = f"{self._done + len(self.running)}/{many(self._shards, 'shard')}"
        said = f"download: {shards}, {done:,}/{many(self._rows, 'row')}, {rate:.0f} rows/s"
        if done:
            said += f", {shares(every)}"
        if new and self.left:
            said += f", {self.left / rate:.0f} s left"
        return said


def shares(reasons: Mapping[str, int], most: int = 5) -> str:
    """ "81.2 % success (HTTP 404 9.1 %, timeout 4.0 %)": success, then the commonest failures; of no rows a dash."""
    counts = Counter(reasons)
    total = counts.total()
    if not total:
        return "– success"
    success = counts.pop(SUCCESS, 0)
    named = ", ".join(f"{reason} {count / total:.1%}" for reason, count in counts.most_common(most) if count)
    said = f"{success / total:.1%} success" + (f" ({named})" if named else "")
    return said.replace("%", " %")
