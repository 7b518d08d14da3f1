"""Builds the emoji set: packages -> concepts -> drawings -> pictures -> three shard folders and a README.

    DIR/train/  DIR/heldout-vendor/  DIR/heldout-concepts/    each: 00000.tar … manifest.jsonl classes.json
    DIR/README.md  DIR/stats.json

About a minute on two cores and 80 MB of disk at 96 px, after 32 MB of packages. DIR appears when it is whole; the same
settings give the same shards, byte for byte, with the same versions of Pillow and resvg (named in stats.json).
"""

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.emoji import npm
from data_prep.emoji.concepts import Concept, held_out, read_concepts
from data_prep.emoji.mapping import Artwork, artworks
from data_prep.emoji.readme import readme
from data_prep.emoji.render import Picture
from data_prep.emoji.sets import SETS, Part, split, write_set
from data_prep.emoji.settings import Catalogue, Settings, differences
from data_prep.errors import DataError
from data_prep.manifest import read_manifest

STATS = "stats.json"
_HELD_OUT_SHARE = 0.08  # of the concepts
_MOST_FAILED = 0.01  # of the pictures


def build(output: Path, cache: Path, settings: Settings, workers: int, catalogue: Catalogue) -> dict[str, Any]:
    """Build the set in `output`, or find it already built with the same settings.

    Returns:
        The content of stats.json, and under "built" whether this call built it.

    Raises:
        DataError: says what to do; no half-built folder is left, and packages already in `cache` stay there.
    """
    settings.check(catalogue)
    if output.exists():
        return {"built": False, **_check_built(output, settings.identity(catalogue))}
    with atomic.building(output) as folder:
        concepts, drawings = _draw(cache, settings, catalogue)
        parts = split(drawings, settings.heldout_vendor, held_out(concepts, _HELD_OUT_SHARE, settings.seed))
        for part in parts:
            write_set(folder / part.name, part, settings.image_size, workers)
        problems = [problem for part in parts for problem in part.problems]
        _check_problems(problems, len(drawings))
        command = settings.command(str(output))
        stats = {"command": command, **_stats(settings, catalogue, parts, problems)}
        atomic.write_text(folder / STATS, json.dumps(stats, indent=1) + "\n")
        page = readme(command, settings.vendors(catalogue), catalogue.concepts, stats)
        atomic.write_text(folder / "README.md", page)
    return {"built": True, **stats}


def _draw(cache: Path, settings: Settings, catalogue: Catalogue) -> tuple[list[Concept], list[Artwork]]:
    """Fetch the packages; returns the concepts and every vendor's drawings of them."""
    vendors = settings.vendors(catalogue)
    tarballs = npm.fetch([catalogue.concepts, *(vendor.package for vendor in vendors)], cache)
    concepts = read_concepts(npm.read(tarballs[catalogue.concepts.name]))
    drawings: list[Artwork] = []
    for vendor in vendors:
        drawings += artworks(vendor, npm.read(tarballs[vendor.package.name]), concepts)
    return concepts, drawings


def _stats(
    settings: Settings, catalogue: Catalogue, parts: Sequence[Part], problems: Sequence[Picture]
) -> dict[str, Any]:
    """The record of the build that is kept beside the set."""
    return {
        "settings": settings.identity(catalogue),
        "sets": {part.name: part.counts() for part in parts},
        "failed": {problem.key: problem.problem for problem in problems},
        "made_with": {
            "python": platform.python_version(),
            "pillow": version("pillow"),
            "resvg-py": version("resvg-py"),
        },
    }


def _check_built(output: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The stats of a set that is already there.

    Raises:
        DataError: what is there is no emoji set, was made with other settings, or lacks something.
    """
    try:
        stats: dict[str, Any] = json.loads((output / STATS).read_text(encoding="utf-8"))
        found = dict(stats["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{output} exists and is no emoji set; give another --output, or remove it") from None
    differing = differences(found, identity)
    if differing:
        raise DataError(
            f"{output} was made with other settings ({'; '.join(differing)}); give another --output, or remove it"
        )
    for name in SETS:
        try:
            read_manifest(output / name)
        except DataError as error:
            raise DataError(f"{output} is damaged ({error}); remove it and run again") from None
    return stats


def _check_problems(problems: Sequence[Picture], total: int) -> None:
    """A few pictures may fail, and are named; many mean that something else is wrong."""
    for problem in problems:
        print(f"left out {problem.key}: {problem.problem}", file=sys.stderr)
    if len(problems) > _MOST_FAILED * total:
        raise DataError(
            f"{len(problems)} of {total} pictures failed to render, more than {_MOST_FAILED:.0%}; "
            f"the first is {problems[0].key}: {problems[0].problem}"
        )
