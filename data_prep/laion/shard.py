"""Everything that is looked at in one shard, and in what the download wrote beside it.

report, hashes = check_shard(Job(root=Path("laion"), name="parts/00000/00003.tar", max_aspect=3.0))
"""

import json
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_prep.errors import DataError
from data_prep.laion import findings
from data_prep.laion.findings import Found
from data_prep.laion.finished import SUCCESS, read_reasons
from data_prep.laion.names import PARTS, downloaded_as
from data_prep.laion.pictures import check_sample
from data_prep.laion.tar import walk
from data_prep.manifest import sha256_file
from data_prep.words import many

_READ = ("url", "caption", "key", "status", "error_message")  # the first and last for `stats` and `retry`
MOST_ROWS = 1 << 22  # of a table: a file of kilobytes can hold many more


@dataclass(frozen=True)
class Job:
    """A shard to check: its folder, its name below that, and the aspect that pictures may have."""

    root: Path
    name: str
    max_aspect: float


@dataclass
class Report:
    """What was found in a shard: how often each reason, with its first example; `seen` is what was looked at."""

    name: str
    bytes: int
    seen: list[list[int]]
    max_aspect: float
    sha256: str = ""
    samples: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)


def look(path: Path) -> list[list[int]]:
    """Size, times and inode of a shard and of what the download wrote beside it, nothing for what is not there.

    A record is missed only where its folder is there, so that counts as well. A copy that keeps the time of other bytes
    (`cp -a`) has another inode, and a file that is written to another ctime.
    """
    records = [state_of(file) if file.parent.is_dir() else [0] for file in _records(path)]
    return [state_of(path), *records]


def state_of(file: Path) -> list[int]:
    """What changes with a file's bytes; nothing where there is no file."""
    try:
        stat = os.stat(file)
    except OSError:
        return []
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def refuse_changed(root: Path, report: Report) -> None:
    """Raise DataError where a shard was written to since it was looked at; one that is not there was not looked at."""
    if report.seen and state_of(root / report.name) != report.seen[0]:
        shard = findings.printable(str(root / report.name))
        raise DataError(f"{shard} was written to while it was verified; end what does that and run the same again")


def check_shard(job: Job) -> tuple[Report, np.ndarray]:
    """Read the shard once for its SHA-256 and once for its samples. Whatever is wrong is told in the report.

    Returns:
        The report, and 64 bits (uint64) of each picture's SHA-256, in order.
    """
    path, found = job.root / job.name, Found()
    hashes = np.zeros(0, np.uint64)
    seen = look(path)
    report = Report(job.name, seen[0][0] if seen[0] else 0, seen, job.max_aspect)
    if path.is_file():
        try:
            report.sha256 = sha256_file(path)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Pillow about damaged EXIF; the picture is what counts
                hashes = _check_samples(path, report, found)
        except OSError as error:
            found.add(findings.UNREADABLE, error.strerror or str(error))
    else:
        found.add(findings.UNREADABLE, "it is no regular file" if seen[0] else "it is a link to nothing")
    report.counts, report.examples = dict(found.counts), found.examples
    return report, hashes


def _check_samples(path: Path, report: Report, found: Found) -> np.ndarray:
    keys: dict[str, None] = {}
    hashes: list[int] = []
    bare: list[str] = []  # samples without JSON
    for key, members in walk(path, found):
        keys[key] = None
        picture = check_sample(key, members, found, report.max_aspect)
        if picture is not None:
            hashes.append(picture)
        if "json" not in members:
            bare.append(key)
    report.samples = len(keys)
    if 0 < len(bare) < len(keys):
        found.add(findings.NO_JSON, bare[0], len(bare))
    if twice := len(hashes) - len(set(hashes)):
        found.add(findings.DUPLICATE, many(twice, "picture"), twice)
    _check_beside(path, list(keys), found)
    return np.array(hashes, np.uint64)


def _check_beside(path: Path, keys: Sequence[str], found: Found) -> None:
    """The download's own table and statistics; a shard without them must hold a sample.

    Of a collected shard none may be missing where its part is there: `retry` and `stats` go by them.
    """
    table, stats = _records(path)
    lacking = [record.name for record in (table, stats) if not record.is_file()]
    ours = table.parent != path.parent or (table.parent.parent.name == PARTS and len(lacking) == 1)
    if lacking and ours and table.parent.is_dir():
        found.add(findings.RECORD, " and ".join(lacking))
    try:
        outcomes = _outcomes(table) if table.is_file() else None
        in_stats = json.loads(stats.read_bytes())["successes"] if stats.is_file() else None
        if outcomes is not None and in_stats is not None and table.parent.parent.name == PARTS:
            _check_reasons(stats, [outcome for _, outcome in outcomes], found)
    except DataError:
        raise
    except Exception as error:  # of damaged files pyarrow raises many kinds; all mean the same here
        found.add(findings.COUNT, f"what was recorded beside it cannot be read: {type(error).__name__}: {error}")
        return
    in_table = None if outcomes is None else [key for key, outcome in outcomes if outcome == SUCCESS]
    if in_table is not None and set(in_table) != set(keys):
        missing, strange = len(set(in_table) - set(keys)), len(set(keys) - set(in_table))
        found.add(findings.KEYS, f"of {len(in_table)} in {table.name} {missing} are missing, {strange} are not in it")
    for where, said in ((table, None if in_table is None else len(in_table)), (stats, in_stats)):
        if said is not None and said != len(keys):
            found.add(findings.COUNT, f"{len(keys)}, {where.name} says {said}")
    if not keys and in_table is None and in_stats is None and not found.counts:
        found.add(findings.EMPTY, "")


def _records(path: Path) -> tuple[Path, Path]:
    """The table and the statistics of a shard: those of a collected one are where it was downloaded to."""
    before = downloaded_as(f"{path.parent.name}/{path.name}")
    tar = path.parent.parent / before if before else path
    return tar.with_suffix(".parquet"), tar.with_name(f"{tar.stem}_stats.json")


def _check_reasons(stats: Path, outcomes: Sequence[str], found: Found) -> None:
    """The statistics count by reason what the table has by row; the manifest's failures are theirs."""
    if read_reasons(stats) != Counter(outcomes):
        found.add(findings.COUNT, f"{stats.name} has other counts of reasons than the table")


def _outcomes(table: Path) -> list[tuple[str, str]] | None:
    """Key, and "success" or why there is none, of each row; None where the table is not img2dataset's."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(f"{table} can only be read with pyarrow: pip install pyarrow") from None
    with parquet.ParquetFile(table) as file:
        if not {"key", "status"} <= set(file.schema_arrow.names):
            return None
        if file.metadata.num_rows > MOST_ROWS:
            raise ValueError(f"{file.metadata.num_rows} rows")
        rows = file.read(columns=[name for name in _READ if name in file.schema_arrow.names]).to_pydict()
    reasons = rows.get("error_message", rows["status"])
    triples = zip(rows["key"], rows["status"], reasons, strict=True)
    return [(key, SUCCESS if status == SUCCESS else reason) for key, status, reason in triples]
