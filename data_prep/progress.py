"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere (logs, files, CI)."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from data_prep.words import plural

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(total: int, label: str, unit: str = "image", ranks: int = 1) -> Iterator[Callable[[int], object]]:
    """Yields ``advance(count)``. Writes to stderr, so that stdout holds the result alone.

    Args:
        unit: what is counted.
        ranks: processes that share the work. ``advance`` is told this one's and takes the others to be as far.
    """
    done = 0

    def grown(count: int) -> int:
        nonlocal done
        before, done = done, min(done + count * ranks, total)
        return done - before

    if sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit=unit, leave=False) as bar:
            yield lambda count: bar.update(grown(count))
        return

    started = last_line = time.monotonic()

    def advance(count: int) -> None:
        nonlocal last_line
        grown(count)
        now = time.monotonic()
        if done >= total or now - last_line >= SECONDS_BETWEEN_LINES:
            last_line = now
            rate = done / max(now - started, 1e-9)
            speed = f"{rate:.0f}/s" if rate >= 1 else f"{rate:.2g}/s"
            left = f", {(total - done) / max(rate, 1e-9):.0f} s left" if done < total else ""
            print(f"{label}: {done}/{total} {plural(total, unit)}, {speed}{left}", file=sys.stderr, flush=True)

    yield advance
