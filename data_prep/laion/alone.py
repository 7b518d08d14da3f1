"""One process at a time downloads to a data set or moves its shards.

with alone(Path("laion")): ...
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from data_prep.errors import DataError
from data_prep.laion.names import PARTS


@contextlib.contextmanager
def alone(output: Path) -> Iterator[None]:
    """Hold the lock of a data set's folder while the block runs; it goes with the process, however that ends.

    Raises:
        DataError: another process holds it.
    """
    (output / PARTS).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(output / PARTS, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"another process is downloading to {output} now, or moves its shards; wait for it to end"
            ) from None
        yield
    finally:
        os.close(descriptor)
