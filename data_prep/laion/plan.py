"""From metadata to a list of what to download: DIR/plan/00000.parquet … and plan.json, which says how it came about.

    plan([Path("metadata")], Path("laion"), parse_columns("auto"), Settings(), Shape())

The metadata is read once for its checksum and once for its rows, in bounded memory (seen.py says how it grows).
DIR/plan appears when it is whole; a killed run leaves nothing and starts anew. The same metadata and rules give
the same bytes.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.errors import DataError, UsageError
from data_prep.laion.columns import Columns
from data_prep.laion.funnel import Funnel
from data_prep.laion.metadata import Source, find_files, find_sources
from data_prep.laion.part import Parts
from data_prep.laion.rules import Settings
from data_prep.manifest import sha256_file
from data_prep.progress import progress
from data_prep.words import many

FOLDER, PLAN = "plan", "plan.json"
FORMAT = 1
_IDENTITY = ("format", "inputs", "columns", "rules", "shard_size", "shards_per_part")


@dataclass(frozen=True)
class Shape:
    """How rows are grouped: rows of a shard, shards of a part (what one img2dataset process downloads)."""

    shard_size: int = 10_000
    shards_per_part: int = 10

    def check(self) -> None:
        """Raise UsageError, in the command line's words, for what cannot be."""
        if not 1 <= self.shard_size <= 1_000_000:
            raise UsageError(f"--shard-size must be 1 to 1000000, found {self.shard_size}")
        if not 1 <= self.shards_per_part <= 10_000:  # img2dataset numbers a part's shards with four digits
            raise UsageError(f"--shards-per-part must be 1 to 10000, found {self.shards_per_part}")


def plan(metadata: Sequence[Path], output: Path, columns: Columns, settings: Settings, shape: Shape) -> dict[str, Any]:
    """Make the plan of `metadata` in `output`/plan, or find it made.

    Returns:
        The content of plan.json, and under "planned" whether this call made it.

    Raises:
        DataError: damaged or unknown metadata, no row that passes, or a plan of other metadata or rules in `output`.
    """
    settings.check()
    shape.check()
    if re.search("[\ud800-\udfff]", str(output)):
        name = ascii(str(output))
        raise UsageError(f"--output must be a name in UTF-8, which pyarrow and img2dataset need, found {name}")
    sources = find_sources(metadata, columns)
    roles = list(sources[0].columns)
    folder = output / FOLDER
    before = _stamps(sources)
    identity = {
        "format": FORMAT,
        "inputs": _inputs(sources),
        "columns": roles,
        "rules": settings.identity(),
        **asdict(shape),
    }
    if folder.exists():
        found = read_plan(output)
        _check_same(found, identity, folder)
        return {"planned": False, **found}
    funnel = Funnel(settings, roles)
    with atomic.building(folder) as building:
        parts = Parts(building, roles, shape.shard_size, shape.shards_per_part)
        with _progress(sources) as advance:
            for rows in funnel.passing(sources, advance):
                parts.add(rows)
        _check_rows(funnel)
        if _stamps(sources) != before:
            raise DataError(f"the metadata in {metadata[0]} changed while it was read; run the same command again")
        content = {**identity, **_found(funnel), "parts": parts.close(), "pyarrow": version("pyarrow")}
        atomic.write_text(building / PLAN, json.dumps(content, indent=1) + "\n")
    return {"planned": True, **content}


def dry_run(metadata: Sequence[Path], columns: Columns, settings: Settings) -> dict[str, Any]:
    """What `plan` would find, nothing written: its counts, its `off`, and examples of what each rule takes out."""
    settings.check()
    sources = find_sources(metadata, columns)
    funnel = Funnel(settings, list(sources[0].columns))
    with _progress(sources) as advance:
        for _ in funnel.passing(sources, advance):
            pass
    says = {rule.name: rule.says for rule in funnel.rules}
    return {"columns": sources[0].columns, **_found(funnel), "says": says, "examples": funnel.examples}


def read_plan(output: Path) -> dict[str, Any]:
    """The content of `output`/plan/plan.json, whose parts are there.

    Raises:
        DataError: there is no plan, it is damaged, or it is of another version of this program.
    """
    path = output / FOLDER / PLAN
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise DataError(
                f"{path} has format {found['format']!r}, this program reads {FORMAT}; plan into another folder"
            )
        missing = [part["file"] for part in found["parts"] if not (output / FOLDER / part["file"]).is_file()]
        whole = all(name in found for name in (*_IDENTITY, "counts", "rows"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; run python -m data_prep plan with --output {output} first") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error!r}); remove {path.parent} and plan again") from None
    if missing or not whole:
        what = f"{missing[0]} is missing" if missing else f"{PLAN} is not whole"
        raise DataError(f"{path.parent} is damaged: {what}; remove it and plan again")
    return dict(found)


def check_metadata(metadata: Sequence[Path], output: Path) -> None:
    """Refuse metadata that the plan in `output` was not made of, by names and sizes: checksums would take minutes.

    Raises:
        DataError: it is other metadata, or there is no plan.
    """
    planned = {entry["path"]: entry["bytes"] for entry in read_plan(output)["inputs"]}
    given = {name: path.stat().st_size for path, name in find_files(metadata)}
    other = sorted(name for name in planned.keys() | given.keys() if planned.get(name) != given.get(name))
    if other:
        raise DataError(
            f"{output / FOLDER} was planned of other metadata ({other[0]} differs); give the same, or another --output"
        )


def _check_same(found: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on with a plan that was made from something else."""
    differs = []
    for name, value in wanted.items():
        if name == "inputs":
            old, new = ({entry["path"]: entry for entry in entries} for entries in (found[name], value))
            paths = sorted(old.keys() | new.keys())
            differs += [f"metadata {path}" for path in paths if old.get(path) != new.get(path)]
        elif name == "rules":
            changed = {key: new for key, new in value.items() if found[name].get(key) != new}
            differs += [f"{key} was {found[name].get(key)!r} and is {new!r}" for key, new in changed.items()]
        elif found[name] != value:
            differs.append(f"{name} was {found[name]!r} and is {value!r}")
    if differs:
        more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
        raise DataError(
            f"{folder} was planned otherwise: {', '.join(differs[:3])}{more}; give the same again, or another --output"
        )


def _check_rows(funnel: Funnel) -> None:
    """Refuse a plan of nothing."""
    if not funnel.rows:
        counts = {name: count for name, count in funnel.counts.items() if name != "rows_read" and count}
        most = sorted(counts.items(), key=lambda item: -item[1])[:3]
        reasons = ", ".join(f"{name} {count}" for name, count in most) or "there are none"
        raise DataError(
            f"of {many(funnel.counts['rows_read'], 'row')} none passes the rules ({reasons}); see --dry-run for more"
        )


def _found(funnel: Funnel) -> dict[str, Any]:
    return {"off": funnel.off, "counts": funnel.counts, "rows": funnel.rows}


def _inputs(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Name, size and checksum of each metadata file."""
    return [
        {"path": source.name, "bytes": source.path.stat().st_size, "sha256": sha256_file(source.path)}
        for source in sources
    ]


def _stamps(sources: Sequence[Source]) -> list[tuple[int, int]]:
    """Size and time of each file: what changes when someone writes to it."""
    stats = [source.path.stat() for source in sources]
    return [(stat.st_size, stat.st_mtime_ns) for stat in stats]


@contextmanager
def _progress(sources: Sequence[Source]) -> Iterator[Any]:
    """Give a function that takes the bytes read so far and shows megabytes."""
    shown = 0
    with progress(sum(source.path.stat().st_size for source in sources) >> 20, "plan", "MB") as advance:

        def reached(position: float) -> None:
            nonlocal shown
            megabytes = int(position) >> 20
            if megabytes > shown:
                advance(megabytes - shown)
                shown = megabytes

        yield reached
