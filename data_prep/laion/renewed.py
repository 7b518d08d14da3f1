"""Which shards were re-encoded, so that a kill in between leaves no manifest that names other bytes than are there.

    with renewed.alone(root, folders):             # of the manifests that name them
        renewed.log([(folder, "00000.tar")], temporary)       # before a shard is replaced
        renewed.record(folder)                     # at the end, or in `steady` where it was killed

A manifest of many lines is not written anew for each shard: the log beside it is a line a shard, until `record`. It
goes with the manifest where that is copied, and every command that reads the manifest finds it.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.laion.manifests import entries_in, folders_over
from data_prep.manifest import MANIFEST, ShardEntry, sha256_file, write_manifest

LOG = ".data_prep.renewed.jsonl"
_PURPOSE = "re-encoding or verifying shards of {}"


@contextlib.contextmanager
def alone(root: Path, folders: Iterable[Path]) -> Iterator[None]:
    """Hold the locks for re-encoding shards below `root` that manifests in these folders name.

    Raises:
        DataError: another process re-encodes or verifies some of them.
    """
    with contextlib.ExitStack() as stack:
        for folder in sorted({root.resolve(), *(folder.resolve() for folder in folders)}):
            stack.enter_context(atomic.locked(folder, _PURPOSE.format(folder)))
        yield


@contextlib.contextmanager
def steady(root: Path, names: Collection[str]) -> Iterator[None]:
    """While the block runs nobody re-encodes what manifests say of these shards; what a kill left is recorded first.

    Raises:
        DataError: another process is re-encoding there now.
    """
    folders = sorted({folder.resolve() for folder in folders_over(root, names)})
    for folder in folders:
        if (folder / LOG).exists():
            with atomic.locked(folder, _PURPOSE.format(folder)):
                record(folder)
    with contextlib.ExitStack() as stack:
        for folder in folders:
            stack.enter_context(atomic.locked(folder, _PURPOSE.format(folder), shared=True))
        yield


def log(places: Sequence[tuple[Path, str]], written: Path) -> None:
    """Append that a shard is about to be replaced by the file `written`, and wait for the disk.

    Args:
        places: the folder of each manifest that names it, and its name there.
    """
    size, mtime = _state(written)
    digest = sha256_file(written) if places else ""
    for folder, shard in places:
        text = json.dumps({"shard": shard, "sha256": digest, "bytes": size, "mtime": mtime})
        with open(folder / LOG, "ab") as file:  # a short line in one write: those of other workers do not mix with it
            file.write(f"\n{zlib.crc32(text.encode()):08x} {text}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        atomic.fsync(folder)


def record(folder: Path) -> None:
    """Have a folder's manifest name the bytes of every logged shard that is in place, and remove the log."""
    if not (folder / LOG).exists():
        return
    new = {line["shard"]: line for line in _lines(folder / LOG) if _in_place(folder / line["shard"], line)}
    if new and (folder / MANIFEST).exists():
        atomic.remove_left(folder / MANIFEST)
        write_manifest(folder, [_renewed(entry, new.get(entry.shard)) for entry in entries_in(folder)])
    (folder / LOG).unlink()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """What the log says; a line that a kill cut, or that is damaged, is passed over: its shard was not replaced."""
    for line in path.read_bytes().splitlines():
        checksum, _, text = line.partition(b" ")
        if checksum == b"%08x" % zlib.crc32(text):
            yield json.loads(text)


def _in_place(shard: Path, line: dict[str, Any]) -> bool:
    """Whether a shard has the bytes that the log says; a copy need not keep the time, so its bytes are read."""
    try:
        size, mtime = _state(shard)
        return size == line["bytes"] and (mtime == line["mtime"] or sha256_file(shard) == line["sha256"])
    except OSError:
        return False


def _renewed(entry: ShardEntry, line: dict[str, Any] | None) -> ShardEntry:
    return entry if line is None else replace(entry, bytes=line["bytes"], sha256=line["sha256"])


def _state(file: Path) -> tuple[int, int]:
    """What stays of a file when it is renamed."""
    stat = os.stat(file)
    return stat.st_size, stat.st_mtime_ns
