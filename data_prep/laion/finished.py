"""Whether a shard that img2dataset calls finished is: its exit code and statistics alone say so too often.

    record = check(part, 3, urls)      # {"bytes": …, "rows": 10000, "reasons": {"success": 8123, "HTTP 404": 1205, …}}

After a full disk it reports every sample written though the tar ends early; a sample that raised is in no table.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.errors import DataError
from data_prep.laion.layout import Part
from data_prep.shards import read_headers
from data_prep.words import many

SUFFIXES = (".tar", ".parquet", "_stats.json")  # img2dataset writes the last at the end, and goes by it afterwards
SUCCESS = "success"


class UnfinishedError(Exception):
    """Says what a shard lacks; it is to be downloaded again."""


def urls_of(part: Part) -> list[str]:
    """The addresses of the part's rows, in order."""
    from pyarrow import parquet

    urls: list[str] = parquet.read_table(part.plan, columns=["url"])["url"].to_pylist()
    return urls


def check(part: Part, shard: int, urls: Sequence[str]) -> dict[str, Any]:
    """Compare a shard's table, statistics and tar with the plan, and bring them to the disk.

    Args:
        urls: of all rows of the part.

    Returns:
        "bytes" of the tar, "rows", and "reasons": how many rows came to what, "success" among them.

    Raises:
        UnfinishedError: they do not agree.
    """
    table = read_table(part, shard)
    _check_rows(table, [urls[row] for row in part.rows_of(shard)], part, shard)
    reasons = Counter(row["error_message"] if row["status"] != SUCCESS else SUCCESS for row in table)
    if read_reasons(part.file_of(shard, "_stats.json")) != reasons:
        raise UnfinishedError("the statistics and the table differ")
    tar = part.file_of(shard, ".tar")
    if not tar.exists() and part.collected(shard).is_file():
        tar = part.collected(shard)
    _check_tar(tar, {row["key"] for row in table if row["status"] == SUCCESS})
    for path in (tar, *(part.file_of(shard, suffix) for suffix in SUFFIXES[1:])):
        atomic.fsync(path)
    return {"bytes": tar.stat().st_size, "rows": len(table), "reasons": dict(sorted(reasons.items()))}


def read_table(part: Part, shard: int) -> list[dict[str, Any]]:
    """What became of each row: dicts of url, key, status and error_message.

    Raises:
        UnfinishedError: there is no readable table.
    """
    from pyarrow import ArrowException, parquet

    path = part.file_of(shard, ".parquet")
    try:
        columns = ["url", "key", "status", "error_message"]
        rows: list[dict[str, Any]] = parquet.read_table(path, columns=columns).select(columns).to_pylist()
    except (OSError, ValueError, LookupError, ArrowException) as error:
        raise UnfinishedError(f"{path.name} is not readable: {error}") from None
    return rows


def read_reasons(path: Path) -> Counter[str]:
    """The counts in a `_stats.json`.

    Raises:
        UnfinishedError: there is none, or it is not whole (yet).
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["status_dict"]
        return Counter({str(name): int(count) for name, count in found.items()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnfinishedError(f"{path.name} is not readable: {error}") from None


def place_in_shard(key: str, shard_size: int) -> int:
    """The row within its shard that img2dataset's key stands for (its `compute_key`)."""
    digits = len(str(shard_size - 1)) if shard_size > 1 else 0
    return int(key[len(key) - digits :] or 0)


def discard(part: Part, shard: int) -> None:
    """Remove what there is of a shard, so that img2dataset makes it again."""
    for suffix in reversed(SUFFIXES):  # first that by which img2dataset would take it for finished
        part.file_of(shard, suffix).unlink(missing_ok=True)


def refuse_lost(part: Part) -> None:
    """That img2dataset will fetch nothing of a part that is collected: it fetches all shards without statistics.

    Raises:
        DataError: it would, and `collect` would refuse what came.
    """
    lost = [
        part.collected(shard)
        for shard in range(part.shards)
        if part.collected(shard).is_file() and not part.file_of(shard, "_stats.json").exists()
    ]
    if lost:
        named = " and ".join(map(str, lost)) if part.folder.is_dir() else part.collected_pattern
        raise DataError(
            f"part {part.name} is not whole, and {part.folder} has lost the statistics of {many(len(lost), 'shard')} "
            f"that came, so img2dataset would fetch what is there again; put them back, or remove {named} too: then "
            "the same command downloads them anew"
        )


def _check_rows(table: list[dict[str, Any]], urls: Sequence[str], part: Part, shard: int) -> None:
    """Each planned row once, with its own address."""
    if len(table) != len(urls):
        raise UnfinishedError(f"the table has {len(table)} rows of {len(urls)}")
    found = {place_in_shard(row["key"], part.shard_size): row["url"] for row in table}
    if found != dict(enumerate(urls)):
        raise UnfinishedError("the table has other rows than the plan")


def _check_tar(tar: Path, keys: set[str]) -> None:
    """Picture, caption and description of each sample, and nothing else."""
    try:
        names = [info.name for info, _ in read_headers(tar)]
    except DataError as error:
        raise UnfinishedError(str(error)) from None
    if sorted(names) != sorted(f"{key}.{suffix}" for key in keys for suffix in ("jpg", "txt", "json")):
        raise UnfinishedError(f"{tar.name} has {many(len(names), 'member')} for {many(len(keys), 'sample')}")
