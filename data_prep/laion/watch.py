"""Watches one run of img2dataset and says when it has to be ended: stalled, too much memory, disk, or no network.

outcome = Watch(part, settings, tally).follow(group)       # "ended", "stalled" or "memory"
"""

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from data_prep.errors import DataError
from data_prep.laion.finished import SUCCESS, UnfinishedError, discard, read_reasons
from data_prep.laion.group import Group
from data_prep.laion.layout import Part
from data_prep.laion.tally import Tally

Outcome = Literal["ended", "stalled", "memory"]
POLL = 0.25  # seconds
START = 900.0  # seconds to the first byte, or --stall where that is more: Spark and Ray start slowly, as do busy disks
NEWEST = 3  # shards whose success rate is looked at
ENOUGH = 100  # rows that say something about it
FULL = 1 << 16  # bytes; with fewer, img2dataset's workers fail at any write, and where their log is full too they hang


class NothingComesError(DataError):
    """Hardly any picture comes: the network or a name server is broken, most likely."""


class DiskFullError(DataError):
    """The disk is nearly full; `download` adds what to do."""


@dataclass(frozen=True)
class Bounds:
    """What a run may not exceed: bytes and seconds; `min_success` is a share of rows."""

    stall: float
    memory_limit: int
    disk_floor: int
    min_success: float


@dataclass
class Watch:
    """One run on one part; shards that were finished before it began are left alone."""

    part: Part
    bounds: Bounds
    tally: Tally
    _seen: set[int] = field(default_factory=set)
    _newest: list[tuple[int, Counter[str]]] = field(default_factory=list)

    def follow(self, group: Group) -> Outcome:
        """Return when the run has ended or must be ended (which leaving the group's block does).

        Raises:
            DiskFullError: the disk is nearly full.
            NothingComesError: hardly any picture comes; `forget` is to be called when the group has ended.
        """
        self._seen = {shard for shard in range(self.part.shards) if self._stats(shard).exists()}
        written, changed = _bytes_below(self.part.folder), time.monotonic()
        patience = max(START, self.bounds.stall)
        while not group.wait(POLL):
            check_disk(self.part.output, self.bounds.disk_floor)
            if group.resident_bytes() > self.bounds.memory_limit:
                return "memory"
            now = time.monotonic()
            if (size := _bytes_below(self.part.folder)) != written:
                written, changed, patience = size, now, self.bounds.stall
            elif now - changed > patience:
                return "stalled"
            self.look()
        self.look()
        check_disk(self.part.output, self.bounds.disk_floor)
        return "ended"

    def look(self) -> None:
        """Count the shards finished since the last look."""
        for shard in range(self.part.shards):
            if shard not in self._seen:
                try:
                    reasons = read_reasons(self._stats(shard))
                except UnfinishedError:
                    continue
                self._seen.add(shard)
                self._newest = [*self._newest, (shard, reasons)][-NEWEST:]
                self.tally.running[shard] = reasons
                self._check_success()
        self.tally.show()

    def _check_success(self) -> None:
        """Stop where hardly anything comes; `forget` then leaves those shards to be downloaded again.

        Of what failed before most may fail again: a retry stops where nothing comes at all.
        """
        total = Counter[str]()
        for _, reasons in self._newest:
            total += reasons
        least = self.bounds.min_success * total.total()
        if total.total() < ENOUGH or total[SUCCESS] >= (min(least, 1) if self.part.generation else least):
            return
        named = ", ".join(f"{reason} {count}" for reason, count in total.most_common(3))
        raise NothingComesError(
            f"of the newest {total.total()} pictures of part {self.part.name} only {total[SUCCESS]} came ({named}): is "
            "the network there, and a name server? These shards will be made again: run the same command, or give a "
            "lower --min-success where so few are to be expected"
        )

    def forget(self) -> None:
        """Remove the newest shards, and those finished since the last look; the run has ended."""
        newest = {shard for shard, _ in self._newest}
        for shard in range(self.part.shards):
            if shard in newest or shard not in self._seen:
                discard(self.part, shard)

    def _stats(self, shard: int) -> Path:
        return self.part.file_of(shard, "_stats.json")


def check_disk(folder: Path, floor: int) -> None:
    """That the disk has room.

    Raises:
        DiskFullError: less than `floor` bytes are free, or so few that nothing can be written.
    """
    free = shutil.disk_usage(folder).free
    if free < max(floor, FULL):
        least = f"fewer than --disk-floor {floor:,}" if free < floor else "so it is full"
        raise DiskFullError(f"{folder}: {free:,} bytes are free on this disk, {least}")


def _bytes_below(folder: Path) -> int:
    """The size of all files in a folder and the folders in it; files may vanish meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return size
