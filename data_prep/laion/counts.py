"""What came of the rows of one shard: from img2dataset's table beside it, or from the shard itself.

counts = count(Table(Path("laion/parts/00000/00000.parquet"), later=()))
"""

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data_prep.errors import DataError
from data_prep.laion.again import asked_again
from data_prep.laion.columns import Columns, find_columns
from data_prep.laion.findings import Found, printable
from data_prep.laion.finished import SUCCESS
from data_prep.laion.frequent import Frequent
from data_prep.laion.histogram import MEASURES, Histogram
from data_prep.laion.parquet import column_names, read_parquet
from data_prep.laion.pictures import meta_of
from data_prep.laion.rows import NUMBERS, Rows, as_numbers
from data_prep.laion.tar import walk
from data_prep.manifest import ShardEntry
from data_prep.shards import FORMATS, PICTURES

_TABLE = {"url", "caption", "key", "status", "error_message"}  # columns by which img2dataset's table is known


@dataclass(frozen=True)
class Table:
    """img2dataset's table of a planned part's shard, and the files of `later` parts, where their rows are counted."""

    path: Path
    later: Sequence[Path]


@dataclass(frozen=True)
class Shard:
    """A shard of someone's, and what the manifest says of it; it may be a link to where its table lies too."""

    path: Path
    entry: ShardEntry


@dataclass
class Counts:
    """Rows by reason ("success" among them) and by host, histograms of the pictures that came, and where from."""

    reasons: Frequent = field(default_factory=Frequent)
    hosts: Frequent = field(default_factory=Frequent)
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram(measure.edges) for name, measure in MEASURES.items()}
    )
    rows: int = 0
    pictures: int = 0
    tables: int = 0
    tars: int = 0

    def merge(self, other: "Counts") -> None:
        """Add another shard's."""
        self.reasons.merge(other.reasons)
        self.hosts.merge(other.hosts)
        for name, histogram in self.histograms.items():
            histogram.merge(other.histograms[name])
        self.rows += other.rows
        self.pictures += other.pictures
        self.tables += other.tables
        self.tars += other.tars


def count(job: Table | Shard) -> Counts:
    """Count one shard's rows.

    Raises:
        DataError: the table of a planned part is damaged.
    """
    if isinstance(job, Table):
        return _of_table(job.path, job.later)
    table = job.path.resolve().with_suffix(".parquet")
    try:
        if table.is_file() and set(column_names(table)) >= _TABLE:
            return _of_table(table, later=())
    except DataError:
        pass  # a table beside someone's shard may be of any kind; the shard itself is asked then
    return _of_shard(job.path, job.entry)


def _of_table(table: Path, later: Sequence[Path]) -> Counts:
    counts, again = Counts(tables=1), asked_again(later)
    names = column_names(table)
    found = find_columns(names, Columns({"url": "url", "caption": "caption"}, search=True), str(table))
    roles = {role: name for role, name in found.items() if role in ("url", "caption", *NUMBERS)}
    for rows, _ in read_parquet(table, {**roles, "status": "status", "reason": "error_message"}):
        reasons = [
            SUCCESS if status == SUCCESS.encode() else printable(_text(reason) or "no reason given")
            for status, reason in zip(rows.columns["status"], rows.columns["reason"], strict=True)
        ]
        here = np.array([_text(url) not in again for url in rows.columns["url"]], bool)
        came = np.array([reason == SUCCESS for reason in reasons], bool)
        kept = [reason for reason, keep in zip(reasons, here, strict=True) if keep]
        counts.rows += len(kept)
        counts.reasons.add(Counter(kept), {})
        counts.hosts.add(_hosts(rows.kept(here)), _hosts(rows.kept(came)))
        _measure(counts, rows.kept(came).columns)
    return counts


def _of_shard(path: Path, entry: ShardEntry) -> Counts:
    """From the members, and what the manifest says of failures."""
    columns: dict[str, Any] = {name: [] for name in ("caption", *NUMBERS)}
    for _, members in walk(path, Found()):
        meta = meta_of(members) or {}
        width, height = (meta.get(f"original_{side}", meta.get(side)) for side in ("width", "height"))
        if width is None or height is None:
            width, height = _size(members)
        values = (members.get("txt"), meta.get("similarity"), width, height)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    columns |= {name: as_numbers(columns[name]) for name in NUMBERS}
    counts = Counts(tars=1, rows=len(columns["caption"]) + sum(entry.failures.values()))
    failures = {printable(reason): number for reason, number in entry.failures.items()}
    counts.reasons.add({SUCCESS: len(columns["caption"]), **failures}, {})
    _measure(counts, columns)
    return counts


def _measure(counts: Counts, columns: dict[str, Any]) -> None:
    """Put the pictures that came into the histograms."""
    number = len(columns["caption"])
    unknown = np.full(number, np.nan)
    width, height, similarity = (columns.get(name, unknown) for name in ("width", "height", "similarity"))
    width, height = (np.where(side > 0, side, np.nan) for side in (width, height))
    lengths = [np.nan if (text := _text(caption)) is None else len(text) for caption in columns["caption"]]
    values = {
        "side": np.minimum(width, height),
        "aspect": width / height,
        "caption": np.array(lengths, np.float64),
        "similarity": similarity,
    }
    for name, histogram in counts.histograms.items():
        histogram.add(values[name])
    counts.pictures += number


def _hosts(rows: Rows) -> Counter[str]:
    """How many of the rows each host has, without a leading "www."."""
    return Counter(host_in(_text(url) or "") for url in rows.columns["url"])


def host_in(url: str) -> str:
    """The host of a URL that may be anything; "?" where none can be told."""
    place = url.partition("://")[2].partition("/")[0].partition("?")[0].rpartition("@")[2]
    host = place.partition("]")[0] + "]" if place.startswith("[") else place.partition(":")[0]
    return printable(host.lower().removeprefix("www.")) or "?"


def _size(members: dict[str, bytes]) -> tuple[int | None, int | None]:
    """Width and height that a picture's header says."""
    for suffix in PICTURES:
        if suffix in members:
            try:
                return Image.open(io.BytesIO(members[suffix]), formats=FORMATS).size
            except Exception:  # Pillow raises many kinds for damaged pictures; verify tells of them
                return None, None
    return None, None


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")
