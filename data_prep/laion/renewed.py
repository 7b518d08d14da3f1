"""Which shards were re-encoded, so that a kill in between leaves no manifest that names other bytes than are there.

    with renewed.alone(root):
        renewed.log(root, "00000.tar", temporary)      # before each shard is replaced
        renewed.record(root)                           # at the end, or `finish` where it was killed

A manifest of many lines is not written anew for each shard: the log is a line a shard, and goes with `record`.
"""

import contextlib
import json
import os
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.manifest import MANIFEST, manifests_of, sha256_file, write_manifest

LOG = ".data_prep.renewed.jsonl"


def alone(root: Path) -> AbstractContextManager[None]:
    """Hold the lock of re-encoding below `root`; DataError where another process does."""
    return atomic.locked(root, f"re-encoding shards of {root}")


def log(root: Path, name: str, written: Path) -> None:
    """Append that the shard `name` is about to be replaced by the file `written`, and wait for the disk."""
    line = {"shard": name, "sha256": sha256_file(written), "state": _state(written)}
    with open(root / LOG, "ab") as file:  # a short line in one write: those of other workers do not mix with it
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    atomic.fsync(root)


def finish(root: Path) -> None:
    """Have the manifests name the shards that a killed process re-encoded as they are now; nothing where none was.

    Raises:
        DataError: another process is re-encoding there now.
    """
    if (root / LOG).exists():
        with alone(root):
            record(root)


def record(root: Path) -> None:
    """Have the manifests name the bytes of every logged shard that is in place, and remove the log."""
    new: dict[str, dict[str, Any]] = {}
    for text in (root / LOG).read_bytes().splitlines() if (root / LOG).exists() else ():
        with contextlib.suppress(ValueError, LookupError, TypeError, OSError):  # cut by a kill: it was not replaced
            line = json.loads(text)
            if line["state"] == _state(root / line["shard"]):
                new[line["shard"]] = {"bytes": line["state"][0], "sha256": line["sha256"]}
    for folder, entries in manifests_of(root, new).items():
        atomic.remove_left(root / folder / MANIFEST)
        write_manifest(root / folder, [replace(entry, **new.get(str(folder / entry.shard), {})) for entry in entries])
    (root / LOG).unlink(missing_ok=True)


def _state(file: Path) -> list[int]:
    """What stays of a file when it is renamed."""
    stat = os.stat(file)
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]
