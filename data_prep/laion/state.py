"""What is finished of a download: `DIR/download.json`. Nothing depends on it but time: it can be made from the shards.

state = State.read(Path("laion"), image_size=256)
state.of(part)["00003"]      # {"bytes": …, "rows": 10000, "reasons": {"success": 8123, …}}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.errors import DataError
from data_prep.laion.layout import Part, read_collected
from data_prep.manifest import MANIFEST, ShardEntry

STATE = "download.json"


@dataclass
class State:
    """`parts`: by the name of a part and of its shard ("00003") what `finished.check` found."""

    path: Path
    image_size: int
    parts: dict[str, dict[str, dict[str, Any]]]

    @classmethod
    def read(cls, output: Path, image_size: int) -> "State":
        """The state of earlier calls, which must have made pictures of the same size."""
        path = output / STATE
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            made, parts = int(record["image_size"]), _whole(record["parts"])
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            made, parts = image_size, {}  # then the shards are compared again
        if made != image_size:
            raise DataError(
                f"{output} holds pictures made with --image-size {made}, asked for was {image_size}; "
                "give that, or another folder"
            )
        return cls(path, image_size, parts)

    def of(self, part: Part) -> dict[str, dict[str, Any]]:
        """The part's shards, as "00003" to what was found."""
        return self.parts.setdefault(part.name, {})

    def recall(self, parts: Sequence[Part]) -> None:
        """Take from the manifest what came of collected shards whose files in parts/ are gone, as is their record here.

        Raises:
            DataError: the manifest does not say it either, so that they would be downloaded once more.
        """
        lost = [
            (part, shard)
            for part in parts
            for shard in range(part.shards)
            if f"{shard:05d}" not in self.of(part)
            and part.collected(shard).is_file()
            and not all(part.file_of(shard, suffix).exists() for suffix in (".parquet", "_stats.json"))
        ]
        entries = read_collected(self.path.parent) if lost else {}
        for part, shard in lost:
            self.of(part)[f"{shard:05d}"] = self._recalled(part, shard, entries)

    def _recalled(self, part: Part, shard: int, entries: Mapping[str, ShardEntry]) -> dict[str, Any]:
        """A shard's record from its line in the manifest."""
        tar = part.collected(shard)
        if entry := entries.get(tar.name):
            reasons = {"success": entry.samples, **entry.failures}
            if sum(reasons.values()) == len(part.rows_of(shard)):
                return {"bytes": entry.bytes, "rows": sum(reasons.values()), "reasons": reasons}
        raise DataError(
            f"{tar} is there, but nothing says what came of its rows: its table in {part.folder}, {self.path} and its "
            f"line in {MANIFEST} are gone; put one of them back, or move the shard away to download it anew"
        )

    def write(self) -> None:
        atomic.write_text(self.path, json.dumps({"image_size": self.image_size, "parts": self.parts}))


def _whole(parts: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """The parts, if every record says what is asked of it.

    Raises:
        ValueError, or what Python raises where something of another shape is taken apart: one does not.
    """
    for found in (found for shards in parts.values() for found in shards.values()):
        if not all(type(number) is int for number in (found["bytes"], found["rows"], *found["reasons"].values())):
            raise ValueError("a record that holds no numbers")
    return dict(parts)
