"""Asks again for the pictures that did not come for a reason that may pass: new parts, of these rows alone.

    plan_retry(Path("laion"))     # plan/retry-00000-1.parquet …, which `download` takes to parts/00000-retry1 …

A retry has what failed before it and is not in an earlier one, so no row is asked for in two places (again.py). What
was opted out, is gone or is no picture is never asked for again.
"""

import json
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.errors import DataError
from data_prep.laion.again import REASON, asked_again
from data_prep.laion.finished import SUCCESS, UnfinishedError, place_in_shard, read_table
from data_prep.laion.layout import RETRY, Part, check_plan, later_files, read_parts
from data_prep.laion.reasons import transient
from data_prep.manifest import sha256_file

_RECORDED = ("number", "generation", "file", "rows", "sha256", "reasons")


def plan_retry(output: Path) -> int:
    """Add the next retry to the plan, once all that is planned is downloaded.

    Returns:
        How many rows it has; 0 where nothing failed for a reason that may pass, and no part is added then.

    Raises:
        DataError: there is no plan, or a shard of it is not downloaded yet.
    """
    parts = sorted(read_parts(output), key=lambda part: (part.number, part.generation))
    later, added = later_files(parts), []
    for _, group in groupby(parts, key=lambda part: part.number):
        generations = list(group)
        failed = [_failed_rows(part, later[part.name]) for part in generations]
        if any(failed):
            added.append(_write_part(generations, failed))
    if added:  # only now do the new files belong to the plan
        before = [{name: getattr(part, name) for name in _RECORDED} for part in parts if part.generation]
        atomic.write_text(output / RETRY, json.dumps({"parts": before + added}, indent=1) + "\n")
    return sum(record["rows"] for record in added)


def _failed_rows(part: Part, later: list[Path]) -> dict[int, str]:
    """The rows of the part's file that may come when asked for again and are in no later one, and why they failed."""
    again = asked_again(later)
    rows: dict[int, str] = {}
    for shard in range(part.shards):
        try:
            table = read_table(part, shard)
        except UnfinishedError as error:
            tar = part.collected(shard)
            if tar.exists() and not part.folder.is_dir():
                raise DataError(
                    f"{part.folder} is gone, with the tables that say which of its rows failed; remove "
                    f"{part.collected_pattern} too, and python -m data_prep run downloads this part anew"
                ) from None
            if tar.exists() or part.file_of(shard, ".parquet").exists():
                advice = "python -m data_prep run puts this shard aside and makes it again"
                raise DataError(f"part {part.name}: {error}; {advice}") from None
            raise DataError(f"part {part.name} is not downloaded yet ({error}); run download first") from None
        first = part.rows_of(shard).start
        for row in table:
            if row["status"] != SUCCESS and transient(row["error_message"]) and row["url"] not in again:
                rows[first + place_in_shard(row["key"], part.shard_size)] = row["error_message"]
    return dict(sorted(rows.items()))


def _write_part(generations: list[Part], failed: list[dict[int, str]]) -> dict[str, Any]:
    """Write the next generation's file of what failed in the earlier ones; returns its record."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = parquet.read_schema(generations[0].plan).names
    tables = []
    for part, rows in zip(generations, failed, strict=True):
        check_plan(part)
        table = parquet.read_table(part.plan, columns=columns).take(pa.array(list(rows), pa.int64()))
        tables.append(table.append_column(REASON, pa.array(list(rows.values()), pa.string())))
    last = generations[-1]
    file = f"retry-{last.number}-{last.generation + 1}.parquet"
    with atomic.writing(last.output / "plan" / file) as writing:
        parquet.write_table(pa.concat_tables(tables), writing)
    reasons = Counter(reason for rows in failed for reason in rows.values())
    return {
        "number": last.number,
        "generation": last.generation + 1,
        "file": file,
        "rows": reasons.total(),
        "sha256": sha256_file(last.output / "plan" / file),
        "reasons": dict(sorted(reasons.items())),
    }
