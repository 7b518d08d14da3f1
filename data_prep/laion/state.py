"""What is finished of a download: `DIR/download.json`. Nothing depends on it but time: it can be made from the shards.

state = State.read(Path("laion"), image_size=256)
state.of(part)["00003"]      # {"bytes": …, "rows": 10000, "reasons": {"success": 8123, …}}
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.errors import DataError
from data_prep.laion.layout import Part

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
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
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
