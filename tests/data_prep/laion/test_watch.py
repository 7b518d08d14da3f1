"""When a run of img2dataset is ended: a clock and a group of processes stand in for the real ones."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DataError
from data_prep.laion import watch
from data_prep.laion.layout import Part
from data_prep.laion.tally import Tally
from data_prep.laion.watch import START, Bounds, DiskFullError, Watch


class StandIn:
    """A group and the clock: each wait is a second, in which `acts` may write; it ends after `seconds`."""

    def __init__(self, seconds: int, acts: Callable[[int], object]) -> None:
        self.now, self._seconds, self._acts = 0, seconds, acts

    def wait(self, poll: float) -> bool:
        self.now += 1
        self._acts(self.now)
        return self.now >= self._seconds

    def resident_bytes(self) -> int:
        return 0

    def monotonic(self) -> float:
        return float(self.now)


@pytest.mark.parametrize(
    ("generation", "came", "stops"),
    [(0, 4, True), (0, 5, False), (1, 1, False), (1, 0, True)],
)
def test_hardly_anything_comes(tmp_path: Path, generation: int, came: int, stops: bool) -> None:
    part = Part(tmp_path, "00000", generation, "00000.parquet", 200, "", 100)
    part.folder.mkdir(parents=True)

    def acts(now: int) -> None:
        for shard in range(2):  # the second is not looked at any more where the first ends it
            text = json.dumps({"status_dict": {"success": came, "DNS": 100 - came}})
            part.file_of(shard, "_stats.json").write_text(text)

    watched = Watch(part, Bounds(stall=60, memory_limit=1, disk_floor=0, min_success=0.05), Tally(2, 200))
    if stops:
        with pytest.raises(DataError, match=rf"of the newest 100 pictures .* only {came} came \(DNS"):
            watched.follow(StandIn(3, acts))  # type: ignore[arg-type]
        watched.forget()
    else:
        assert watched.follow(StandIn(3, acts)) == "ended"  # type: ignore[arg-type]
    left = [part.file_of(shard, "_stats.json").exists() for shard in range(2)]
    assert left == [not stops] * 2  # to be made again


@pytest.mark.parametrize(
    ("first", "last", "ends", "outcome", "after"),
    [
        pytest.param(1, 5, 50, "ended", 50, id="quick"),
        pytest.param(800, 805, 850, "ended", 850, id="slow-to-start"),
        pytest.param(1, 5, 500, "stalled", 5 + 61, id="stalls"),
        pytest.param(800, 805, 5000, "stalled", 805 + 61, id="stalls-after-a-slow-start"),
        pytest.param(5000, 5000, 5000, "stalled", START + 1, id="never-starts"),
    ],
)
def test_the_start_has_a_limit_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int, ends: int, outcome: str, after: int
) -> None:
    """A run that writes in each second from `first` to `last`, and would end after `ends`."""
    part = Part(tmp_path, "00000", 0, "00000.parquet", 10, "", 10)
    part.folder.mkdir(parents=True)
    (part.folder / "00000.tar").write_bytes(b"of an earlier run")

    def acts(now: int) -> None:
        if first <= now <= last:
            (part.folder / "00001.tar").write_bytes(bytes(now))

    group = StandIn(ends, acts)
    monkeypatch.setattr(watch.time, "monotonic", group.monotonic)
    watched = Watch(part, Bounds(stall=60, memory_limit=1, disk_floor=0, min_success=0.0), Tally(1, 10))
    assert watched.follow(group) == outcome  # type: ignore[arg-type]
    assert group.now == after


def test_a_full_disk_ends_it_where_no_room_is_to_be_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers may hang for ever then."""
    part = Part(tmp_path, "00000", 0, "00000.parquet", 10, "", 10)
    part.folder.mkdir(parents=True)
    real, group = shutil.disk_usage, StandIn(50, lambda now: None)

    def filling(folder: Path) -> Any:
        return real(folder)._replace(free=0 if group.now >= 5 else 1 << 20)

    monkeypatch.setattr(watch.shutil, "disk_usage", filling)
    watched = Watch(part, Bounds(stall=60, memory_limit=1, disk_floor=0, min_success=0.0), Tally(1, 10))
    with pytest.raises(DiskFullError, match="0 bytes are free on this disk, so it is full"):
        watched.follow(group)  # type: ignore[arg-type]
    assert group.now == 5
