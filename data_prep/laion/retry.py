"""Asks again for the pictures that did not come for a reason that may pass: new parts, of these rows alone.

    plan_retry(Path("laion"))     # plan/retry-00000-1.parquet …, which `download` takes to parts/00000-retry1 …

The n-th retry has what failed in the one before it, so no row is asked for in two places. What was opted out, is gone
or is no picture is never asked for again.
"""

import json
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.errors import DataError
from data_prep.laion.finished import SUCCESS, UnfinishedError, place_in_shard, read_table
from data_prep.laion.layout import RETRY, Part, check_plan, read_parts
from data_prep.laion.reasons import transient
from data_prep.manifest import sha256_file


def plan_retry(output: Path) -> int:
    """Add the next retry to the plan, once all that is planned is downloaded.

    Returns:
        How many rows it has; 0 where nothing failed for a reason that may pass, and no part is added then.

    Raises:
        DataError: there is no plan, or a shard of it is not downloaded yet.
    """
    parts = read_parts(output)
    last = max((part.generation for part in parts), default=0)
    added = []
    for part in parts:
        if part.generation == last and (rows := _failed_rows(part)):
            added.append(_write_part(part, rows))
    if added:  # only now do the new files belong to the plan
        before = [_record(part) for part in parts if part.generation]
        atomic.write_text(output / RETRY, json.dumps({"parts": before + added}, indent=1) + "\n")
    return sum(record["rows"] for record in added)


def _failed_rows(part: Part) -> list[int]:
    """The rows of the part's file that may come when asked for again, in order."""
    rows = []
    for shard in range(part.shards):
        try:
            table = read_table(part, shard)
        except UnfinishedError as error:
            raise DataError(f"part {part.name} is not downloaded yet ({error}); run download first") from None
        first = part.rows_of(shard).start
        for row in table:
            if row["status"] != SUCCESS and transient(row["error_message"]):
                rows.append(first + place_in_shard(row["key"], part.shard_size))
    return sorted(rows)


def _write_part(part: Part, rows: list[int]) -> dict[str, Any]:
    """Write the next generation's file of a part; returns its record."""
    from pyarrow import parquet

    check_plan(part)
    file = f"retry-{part.number}-{part.generation + 1}.parquet"
    path = part.output / "plan" / file
    with atomic.writing(path) as writing:
        parquet.write_table(parquet.read_table(part.plan).take(rows), writing)
    return {
        "part": part.number,
        "generation": part.generation + 1,
        "file": file,
        "rows": len(rows),
        "sha256": sha256_file(path),
    }


def _record(part: Part) -> dict[str, Any]:
    """A part of an earlier retry as `plan/retry.json` has it."""
    return {name: getattr(part, name) for name in ("file", "rows", "sha256", "generation")} | {"part": part.number}
