"""The parts of a plan and where each one's files lie; `plan/plan.json` names them, `plan/retry.json` those of retries.

for part in read_parts(Path("laion")): part.rows, part.folder, part.collected(3)
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.errors import DataError
from data_prep.laion.names import PARTS, QUARANTINE, SHARDS, collected_as
from data_prep.laion.plan import read_plan
from data_prep.manifest import MANIFEST, ShardEntry, parse_manifest, sha256_file

RETRY = "plan/retry.json"


@dataclass(frozen=True)
class Part:
    """One run of img2dataset: the rows of one parquet file, in shards of `shard_size` (the last may have fewer).

    `generation` is 0 for a part of the plan, n for the n-th retry of what failed in it; `reasons` counts why a retry's
    rows failed before.
    """

    output: Path
    number: str
    generation: int
    file: str
    rows: int
    sha256: str
    shard_size: int
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.number}-retry{self.generation}" if self.generation else self.number

    @property
    def plan(self) -> Path:
        return self.output / "plan" / self.file

    @property
    def folder(self) -> Path:
        """Where img2dataset writes."""
        return self.output / PARTS / self.name

    @property
    def shards(self) -> int:
        return -(-self.rows // self.shard_size)

    def rows_of(self, shard: int) -> range:
        """The rows of the part's file that a shard is of."""
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.rows))

    def file_of(self, shard: int, suffix: str) -> Path:
        """A file that img2dataset writes for a shard: suffix ".tar", ".parquet" or "_stats.json"."""
        return self.folder / f"{shard:05d}{suffix}"

    def collected(self, shard: int) -> Path:
        """Where the shard's tar lies once it is verified."""
        return self.output / collected_as(f"{PARTS}/{self.name}/{shard:05d}.tar")

    @property
    def collected_pattern(self) -> Path:
        """The names of all its collected shards, for a shell."""
        return self.output / collected_as(f"{PARTS}/{self.name}/*.tar")


def read_parts(output: Path) -> list[Part]:
    """The parts of the plan under `output`, then those of retries.

    Raises:
        DataError: there is no plan, or it is damaged.
    """
    plan = read_plan(output)
    size = plan["shard_size"]
    parts = [
        Part(output, Path(part["file"]).stem, 0, part["file"], part["rows"], part["sha256"], size)
        for part in plan["parts"]
        if part["rows"]
    ]
    path = output / RETRY
    try:
        return parts + [Part(output, shard_size=size, **record) for record in _retries(path)]
    except TypeError as error:
        raise DataError(f"{path} is damaged ({error}); copy it again") from None


def later_files(parts: Sequence[Part]) -> dict[str, list[Path]]:
    """By the name of each part, the files of the retries after it of what failed in it, the earliest first."""
    later: dict[str, list[Path]] = {}
    coming: dict[str, list[Path]] = defaultdict(list)
    for part in sorted(parts, key=lambda part: part.generation, reverse=True):
        later[part.name] = coming[part.number][::-1]
        coming[part.number].append(part.plan)
    return later


def check_plan(part: Part) -> None:
    """That the part's file is the one that was planned.

    Raises:
        DataError: it is missing or has other bytes.
    """
    if not part.plan.is_file():
        raise DataError(f"{part.plan} is missing; copy it again or make the plan again")
    if sha256_file(part.plan) != part.sha256:
        raise DataError(f"{part.plan} is not the file that was planned (its SHA-256 differs); copy it again")


def read_collected(output: Path) -> dict[str, ShardEntry]:
    """The manifest of collected shards, by name; empty where there is none.

    Raises:
        DataError: it is damaged; the sentence says that it can be made again, without its checksums.
    """
    path = output / SHARDS / MANIFEST
    try:
        return {entry.shard: entry for entry in parse_manifest(path.read_text(encoding="utf-8"), MANIFEST)}
    except FileNotFoundError:
        return {}
    except (DataError, UnicodeDecodeError) as error:
        what = str(error).partition(";")[0]  # and not what it advises about files of others
        raise DataError(
            f"{path} is damaged ({what}); put back a copy, or remove it: then python -m data_prep run writes it anew, "
            "of the shards as they are"
        ) from None


def check_disks(output: Path) -> None:
    """That all folders are on one disk: shards move between them by a rename, which no kill can leave half done.

    Raises:
        DataError: one is linked, or mounted, from another disk.
    """
    folders = [output / PARTS, output / SHARDS, output / QUARANTINE, *(output / PARTS).glob("*/")]
    for folder in folders:
        if folder.is_dir() and folder.stat().st_dev != output.stat().st_dev:
            raise DataError(
                f"{folder} is on another disk than {output}, and shards are moved between their folders by renaming "
                f"them; put all of {output} on one disk"
            )


def _retries(path: Path) -> Any:
    """What `plan/retry.json` names, nothing where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["parts"]
    except FileNotFoundError:
        return []
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error!r}); copy it again") from None
