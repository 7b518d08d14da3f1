"""Puts unsound shards aside: `quarantine/NAME.tar`, and `NAME.json` beside it with what is wrong.

    set_aside(Path("laion"), result.unsound)

A part's shard goes with the table and the statistics of its download; `download` finds it missing and makes it again.
A shard that is put aside again becomes NAME.2, NAME.3, …; every reason is kept, and of the shard itself the newest two.
A kill before the tar moved leaves it for the next run, one after it leaves a table without a tar.
"""

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.errors import DataError
from data_prep.laion.findings import printable
from data_prep.laion.manifests import manifests_over
from data_prep.laion.names import PARTS, QUARANTINE, SHARDS, downloaded_as
from data_prep.laion.shard import refuse_changed
from data_prep.laion.verify import Verdict
from data_prep.manifest import MANIFEST, write_manifest

RECORDS = (".parquet", "_stats.json")  # what img2dataset leaves beside a tar
COPIES = 2  # of a shard that stays unsound: what one download brings, and whether the next differs


def set_aside(root: Path, verdicts: Sequence[Verdict]) -> None:
    """Move these shards of `root` to its quarantine; a manifest beside them no longer names them.

    Raises:
        DataError: one lies elsewhere, in a folder that `root` links to, or was written to since; nothing is moved then.
    """
    for verdict in verdicts:
        _refuse_elsewhere(root, verdict.report.name)
        refuse_changed(root, verdict.report)
    leave_out(root, [verdict.report.name for verdict in verdicts])
    for verdict in verdicts:
        _move(root, verdict)


def _refuse_elsewhere(root: Path, name: str) -> None:
    """A data set's own parts/ and shards/ may be links, as a shard itself may."""
    folder = (root / name).parent
    if not name.startswith((f"{PARTS}/", f"{SHARDS}/")) and not folder.resolve().is_relative_to(root.resolve()):
        raise DataError(
            f"{printable(str(folder))} leads out of {root}, so its unsound shards are not moved; give verify "
            f"--quarantine {printable(str(folder.resolve()))}, or remove the link"
        )


def _move(root: Path, verdict: Verdict) -> None:
    name = verdict.report.name
    folder = root / QUARANTINE
    folder.mkdir(exist_ok=True)
    record = {
        "shard": name,
        "bytes": verdict.report.bytes,
        "sha256": verdict.report.sha256,
        "samples": verdict.report.samples,
        "against": verdict.against,
        "findings": verdict.report.counts,
    }
    stem, earlier = _free(folder, record)
    atomic.write_text(folder / f"{stem}.json", json.dumps(record, indent=4) + "\n")
    if os.path.lexists(root / name):  # it may be one that a manifest names and that is not there
        os.rename(root / name, folder / f"{stem}.tar")
        atomic.fsync((root / name).parent)
    beside = root / (downloaded_as(name) or name)
    for suffix in RECORDS if not beside.exists() else ():  # where it is, they are of a shard downloaded since
        source = beside.with_name(beside.stem + suffix)
        if source.exists():
            os.rename(source, folder / f"{stem}{suffix}")
            atomic.fsync(source.parent)
    kept = [old for old in [*earlier, stem] if os.path.lexists(folder / f"{old}.tar")]
    for old in kept[:-COPIES]:
        for suffix in (".tar", *RECORDS):
            (folder / f"{old}{suffix}").unlink(missing_ok=True)
    atomic.fsync(folder)


def _free(folder: Path, record: dict[str, Any]) -> tuple[str, list[str]]:
    """A name in the quarantine for a shard, and those that it was put aside under before, in order."""
    first = stem = record["shard"].removesuffix(".tar").replace("/", "-")
    earlier, number, last = [], 1, None
    while any(os.path.lexists(folder / f"{stem}{suffix}") for suffix in (".json", ".tar", *RECORDS)):
        found = _read(folder / f"{stem}.json")
        if found.get("shard") == record["shard"]:  # and not "a/b.tar" where this is "a-b.tar"
            earlier.append(stem)
            last = found
        number += 1
        stem = f"{first}.{number}"
    if last == record and not os.path.lexists(folder / f"{earlier[-1]}.tar"):  # a kill came before the tar moved
        stem = earlier.pop()
    return stem, earlier


def _read(reason: Path) -> dict[str, Any]:
    """Why a shard was put aside; nothing where the file is someone else's."""
    try:
        found = json.loads(reason.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def leave_out(root: Path, names: Collection[str]) -> None:
    """Write the manifests that name these shards without them; one that would name none goes."""
    for folder, entries in manifests_over(root, names).items():
        if left := [entry for entry, name in entries if name is None]:
            write_manifest(folder, left)
        else:
            (folder / MANIFEST).unlink()
