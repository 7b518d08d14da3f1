"""What a data set holds and what was lost on the way: `stats.json`, and `stats.html` for a person.

    record = stats(Path("laion"), seed=0, workers=8)

Rows are counted from img2dataset's tables; of adopted shards without a table the shards themselves are read. Only the
bins of the histograms and the most frequent hosts are held, whatever the number of rows.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.errors import DataError
from data_prep.laion.again import asked_again
from data_prep.laion.counts import Counts, Shard, Table, count
from data_prep.laion.finished import SUCCESS, urls_of
from data_prep.laion.layout import Part, later_files, read_parts
from data_prep.laion.ours import refuse_foreign
from data_prep.laion.plan import FOLDER, PLAN, read_plan
from data_prep.laion.sheet import draw
from data_prep.laion.stats_page import page
from data_prep.manifest import MANIFEST, ShardEntry, read_manifest
from data_prep.pool import unordered
from data_prep.progress import progress
from data_prep.words import many

JSON, HTML = "stats.json", "stats.html"
HOSTS = 50
REASONS = 100
PAIRS = 100


def stats(output: Path, seed: int, workers: int) -> dict[str, Any]:
    """Count everything under `output` and write `stats.json` and `stats.html` there.

    Returns:
        The content of stats.json. "rows" is the sum of "reasons"; with "rows_to_come" and "rows_without_table" (of
        collected shards whose tables are gone) it is the plan's. Where there are more names than are held, counts may
        be low by "reasons_low_by_at_most" and "hosts_low_by_at_most".

    Raises:
        DataError: neither a plan nor a manifest, or a damaged one, or a damaged table of a planned part; or files of
            these names that are someone's own.
    """
    refuse_foreign_pages(output)
    folder, entries = _manifest(output)
    planned = read_plan(output) if (output / FOLDER / PLAN).exists() else None
    if planned is None and folder is None:
        raise DataError(
            f"{output} has neither {FOLDER}/{PLAN} nor a {MANIFEST}; run python -m data_prep plan, or manifest for "
            "shards that are there"
        )
    jobs, to_come, lost = _planned(read_parts(output)) if planned else ([], 0, 0)
    if planned is None and folder is not None:
        jobs = [Shard(folder / entry.shard, entry) for entry in entries]
    counts = Counts()
    with progress(len(jobs), "stats", "shard") as advance:
        for found in unordered(count, jobs, min(workers, max(len(jobs), 1))):
            counts.merge(found)
            advance(1)
    pairs = list(draw(folder, entries, PAIRS, seed)) if folder else []
    record: dict[str, Any] = {
        "format": 1,
        "plan": planned and {name: planned[name] for name in ("rows", "counts", "off")},
        "rows": counts.rows,
        "rows_to_come": to_come,
        "rows_without_table": lost,
        "reasons": _reasons(counts),
        "reasons_low_by_at_most": counts.reasons.undercount,
        "hosts": [
            {"host": host, "rows": rows, SUCCESS: counts.hosts.good[host]}
            for host, rows in _ordered(counts.hosts.rows, HOSTS)
        ],
        "hosts_low_by_at_most": counts.hosts.undercount,
        "histograms": {name: histogram.record() for name, histogram in counts.histograms.items()},
        "shards": len(entries),
        "samples": sum(entry.samples for entry in entries),
        "bytes": sum(entry.bytes for entry in entries),
        "pairs": {"seed": seed, "drawn": [[pair.shard, pair.key] for pair in pairs]},
    }
    record["not_known"] = list(_gaps(record, counts, folder is not None))
    atomic.write_text(output / HTML, page(record, pairs, output.resolve().name))
    atomic.write_text(output / JSON, json.dumps(record, indent=1) + "\n")
    return record


def refuse_foreign_pages(output: Path) -> None:
    """Raise DataError where `stats.json` or `stats.html` is someone's own and would be replaced."""
    for name in (JSON, HTML):
        refuse_foreign(output / name)


def _manifest(output: Path) -> tuple[Path | None, list[ShardEntry]]:
    """The folder of the manifest, of collected shards or adopted ones, and its entries."""
    for folder in (output / "shards", output):
        if (folder / MANIFEST).exists():
            return folder, read_manifest(folder)
    return None, []


def _planned(parts: list[Part]) -> tuple[list[Table | Shard], int, int]:
    """The finished shards of the parts, how many rows are not downloaded yet, and of how many the tables are gone."""
    jobs: list[Table | Shard] = []
    later, to_come, lost = later_files(parts), 0, 0
    for part in parts:
        missing: list[int] = []
        bare: list[int] = []
        for shard in range(part.shards):
            if part.file_of(shard, "_stats.json").exists():
                jobs.append(Table(part.file_of(shard, ".parquet"), later[part.name]))
            else:
                (bare if part.collected(shard).is_file() else missing).append(shard)
        to_come += _left(part, missing, later[part.name])
        lost += _left(part, bare, later[part.name])
    return jobs, to_come, lost


def _left(part: Part, shards: Sequence[int], later: Sequence[Path]) -> int:
    """How many rows these shards have that no later part has asked for again."""
    if not shards or not later:
        return sum(len(part.rows_of(shard)) for shard in shards)
    urls, again = urls_of(part), asked_again(later)
    return sum(urls[row] not in again for shard in shards for row in part.rows_of(shard))


def _ordered(counts: Any, most: int) -> list[tuple[str, int]]:
    """The most frequent, those of one count by name: workers end in any order."""
    ranked: list[tuple[str, int]] = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ranked[:most]


def _reasons(counts: Counts) -> dict[str, int]:
    """Rows by what came of them, the frequent first; the rare ones of many kinds as one."""
    named = dict(_ordered(counts.reasons.rows, REASONS))
    rest = counts.rows - sum(named.values())
    return {**named, **({"other reasons": rest} if rest else {})}


def _gaps(record: dict[str, Any], counts: Counts, collected: bool) -> Iterator[str]:
    """Sentences on what could not be said, and why."""
    if record["plan"] is None:
        yield "There is no plan: what rules took out of the metadata is not known."
    if counts.tars:
        yield (
            f"Shards without img2dataset's table beside them: {counts.tars}. Their hosts are not known, and of "
            "failures only what the manifest says."
        )
    if record["rows_to_come"]:
        yield f"Not downloaded yet, or their shard was put aside: {many(record['rows_to_come'], 'row')} of the plan."
    if record["rows_without_table"]:
        yield (
            f"The download's tables are gone for {many(record['rows_without_table'], 'row')} whose shards are there: "
            "what came of these is not known, and retry cannot ask for them again."
        )
    if not collected:
        yield "There is no manifest yet, so no samples are shown; python -m data_prep run makes it."
    if counts.pictures and record["histograms"]["similarity"]["unknown"] == counts.pictures:
        yield "The metadata has no similarity of picture and caption."
