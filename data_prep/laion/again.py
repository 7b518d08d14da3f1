"""Which rows a retry has asked for again: from then on what comes of them is the retry's affair alone.

    asked_again([Path("laion/plan/retry-00000-1.parquet")])     # {"https://example.org/7.jpg": "HTTP 503"}

Where an earlier shard is made once more they fail there as they did before, without being asked for, so that no picture
is in two shards and every row counts once.

It runs in img2dataset's environment too.
"""

from collections.abc import Sequence
from pathlib import Path

from data_prep.errors import DataError

REASON = "reason"  # the column of a retry's file that says why its row failed before


def asked_again(files: Sequence[Path | str]) -> dict[str, str]:
    """Why each row of these retries' files (earlier ones first) failed at first, by its address.

    Raises:
        DataError: a file is missing or damaged.
    """
    from pyarrow import ArrowException, parquet

    found: dict[str, str] = {}
    for file in files:
        try:
            table = parquet.read_table(file, columns=["url", REASON])
        except (OSError, ArrowException) as error:
            raise DataError(f"{file} cannot be read ({error}); copy it again") from None
        for url, reason in zip(table["url"].to_pylist(), table[REASON].to_pylist(), strict=True):
            found.setdefault(url, reason)
    return found
