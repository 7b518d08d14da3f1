"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere (logs, files, CI)."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(total: int, label: str, unit: str = "image") -> Iterator[Callable[[int], object]]:
    """Yields ``advance(count)`` of ``unit``s. Writes to stderr, so that stdout holds the result alone."""
    if sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit=unit, leave=False) as bar:
            yield bar.update
        return

    done, started, last_line = 0, time.monotonic(), time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, last_line
        done += count
        now = time.monotonic()
        if done >= total or now - last_line >= SECONDS_BETWEEN_LINES:
            last_line = now
            rate = done / max(now - started, 1e-9)
            print(f"{label}: {done}/{total} {unit}s, {rate:.0f}/s", file=sys.stderr, flush=True)

    yield advance
