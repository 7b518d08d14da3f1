"""Puts unsound shards aside: `quarantine/NAME.tar`, and `NAME.json` beside it with what is wrong.

    set_aside(Path("laion"), result.unsound)

A part's shard goes with the table and the statistics of its download; `download` finds it missing and makes it again.
Nothing is removed. A kill before the tar moved leaves it for the next run, one after it leaves a table without a tar.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from data_prep import atomic
from data_prep.laion.names import QUARANTINE, downloaded_as
from data_prep.laion.verify import Verdict
from data_prep.manifest import MANIFEST, ShardEntry, parse_manifest, write_manifest

RECORDS = (".parquet", "_stats.json")  # what img2dataset leaves beside a tar


def set_aside(root: Path, verdicts: Sequence[Verdict]) -> None:
    """Move these shards of `root` to its quarantine; a manifest beside them no longer names them."""
    leave_out(root, [verdict.report.name for verdict in verdicts])
    for verdict in verdicts:
        _move(root, verdict)


def _move(root: Path, verdict: Verdict) -> None:
    name = verdict.report.name
    folder = root / QUARANTINE
    folder.mkdir(exist_ok=True)
    stem = _free(folder, name.removesuffix(".tar").replace("/", "-"))
    record = {
        "shard": name,
        "bytes": verdict.report.bytes,
        "sha256": verdict.report.sha256,
        "samples": verdict.report.samples,
        "against": verdict.against,
        "findings": verdict.report.counts,
    }
    atomic.write_text(folder / f"{stem}.json", json.dumps(record, indent=4) + "\n")
    if os.path.lexists(root / name):  # it may be one that a manifest names and that is not there
        os.rename(root / name, folder / f"{stem}.tar")
        atomic.fsync((root / name).parent)
    beside = root / (downloaded_as(name) or name)
    for suffix in RECORDS:
        source = beside.with_name(beside.stem + suffix)
        if source.exists():
            os.rename(source, folder / f"{stem}{suffix}")
            atomic.fsync(source.parent)
    atomic.fsync(folder)


def _free(folder: Path, stem: str) -> str:
    """The stem, with a number where a shard of this name was put aside before."""
    taken, number = stem, 1
    while os.path.lexists(folder / f"{taken}.tar"):
        number += 1
        taken = f"{stem}.{number}"
    return taken


def manifests_of(root: Path, names: Sequence[str]) -> dict[Path, list[ShardEntry]]:
    """The entries of the manifests beside or above shards that name one of them, by folder below `root`."""
    found: dict[Path, list[ShardEntry]] = {}
    for folder in {parent for name in names for parent in Path(name).parents}:
        path = root / folder / MANIFEST
        entries = parse_manifest(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else []
        if any(str(folder / entry.shard) in names for entry in entries):
            found[folder] = entries
    return found


def leave_out(root: Path, names: Sequence[str]) -> None:
    """Write the manifests that name these shards without them; one that would name none goes."""
    for folder, entries in manifests_of(root, names).items():
        left = [entry for entry in entries if str(folder / entry.shard) not in names]
        if left:
            write_manifest(root / folder, left)
        else:
            (root / folder / MANIFEST).unlink()
