"""Whether a file may be written over: one that data_prep wrote, known by its content, or an empty one.

refuse_foreign(Path("laion/stats.json"))      # DataError where it is someone's own
"""

import json
from pathlib import Path

from data_prep.errors import DataError

_MOST_BYTES = 1 << 20  # of a manifest's line; names are shorter
_FIELDS = {"shard", "bytes", "sha256", "samples"}


def refuse_foreign(path: Path) -> None:
    """Refuse to replace a file that data_prep did not write: sizes.json, stats.json, stats.html, or else a manifest.

    Raises:
        DataError: such a file stands at `path`. None, or an empty one, is fine.
    """
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    known = {"sizes.json": _is_sizes, "stats.json": _is_stats, "stats.html": _is_page}.get(path.name, is_manifest)
    if not known(path):
        raise DataError(
            f"{path} was not written by data_prep and would be replaced; rename it, or give --output in another folder"
        )


def is_manifest(path: Path) -> bool:
    """Whether the first line is that of a manifest; an empty file is none."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        found = _parsed(file.readline(_MOST_BYTES))
    return isinstance(found, dict) and found.keys() >= _FIELDS


def _is_sizes(path: Path) -> bool:
    """As collect.write_lists spells it: others have the same names and numbers on one line."""
    data = path.read_bytes()
    found = _parsed(data)
    return isinstance(found, dict) and (json.dumps(found, indent=0) + "\n").encode() == data


def _is_stats(path: Path) -> bool:
    found = _parsed(path.read_bytes())
    return isinstance(found, dict) and found.keys() >= {"format", "plan", "rows", "reasons", "histograms", "pairs"}


def _is_page(path: Path) -> bool:
    """As stats_template.html begins, with stats_page's title."""
    with open(path, "rb") as file:
        head = file.read(1000)
    return head.startswith(b"<!doctype html>") and b"default-src 'none'" in head and b"<title>The data set " in head


def _parsed(data: bytes) -> object:
    """What is there as JSON; None where that is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
