"""What a shard set is: a folder with `manifest.jsonl`, one JSON object a shard, and the shards it names.

    {"shard": "00000.tar", "bytes": 4382720, "sha256": "…", "samples": 1000}

Readers open only what the manifest names, so a stray or half-written tar is never read.
    entries = read_manifest("data/emoji/train"); total = sum(entry.samples for entry in entries)
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.errors import DataError

MANIFEST = "manifest.jsonl"


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the manifest describes it; `shard` is a plain file name in the manifest's folder."""

    shard: str
    bytes: int
    sha256: str
    samples: int


def read_manifest(folder: Path | str) -> list[ShardEntry]:
    """Read and check a folder's manifest; the size of each shard is compared, its hash is not (see `sha256_file`).

    Returns:
        The entries in the manifest's order, at least one.

    Raises:
        DataError: no manifest, a malformed line (with its number), a shard missing or of another size, or no shard.
    """
    path = Path(folder) / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: is {folder} a finished shard folder made by data_prep?") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}); make the set again") from None
    entries = parse_manifest(text, str(path))
    for entry in entries:
        _check_shard(Path(folder) / entry.shard, entry)
    return entries


def parse_manifest(text: str, name: str) -> list[ShardEntry]:
    """The entries of a manifest's text, at least one; the shards are not looked at. `name` starts error messages.

    Raises:
        DataError: a malformed line (with its number), a shard named twice, or no shard.
    """
    entries: list[ShardEntry] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            entries.append(_parse_line(line, f"{name} line {number}"))
    _check_unique(entries, name)
    if not entries:
        raise DataError(f"{name} names no shard; make the set again")
    return entries


def write_manifest(folder: Path | str, entries: Sequence[ShardEntry]) -> None:
    """Write the folder's manifest in one step.

    Raises:
        DataError: an entry that `read_manifest` would refuse, or no entry.
    """
    path = Path(folder) / MANIFEST
    if not entries:
        raise DataError(f"{path} would name no shard")
    lines = [json.dumps(asdict(entry)) for entry in entries]
    for line in lines:
        _parse_line(line, f"entry for {path}")
    _check_unique(entries, path)
    atomic.write_text(path, "".join(line + "\n" for line in lines))


def sha256_file(path: Path | str) -> str:
    """The SHA-256 of a file as 64 hexadecimal digits, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse_line(line: str, where: str) -> ShardEntry:
    """One manifest line to an entry; `where` starts the error message."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected an object, found {type(record).__name__}")
    shard = _field(record, "shard", str, where)
    if shard in ("", ".", "..") or re.search(r"[/\\\x00-\x1f]", shard):
        raise DataError(f"{where}: 'shard' must be a plain file name, found {shard!r}")
    sha256 = _field(record, "sha256", str, where)
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise DataError(f"{where}: 'sha256' must be 64 hexadecimal digits, found {sha256!r}")
    counts = {name: _field(record, name, int, where) for name in ("bytes", "samples")}
    for name, value in counts.items():
        if value < 0:
            raise DataError(f"{where}: '{name}' must not be negative, found {value}")
    return ShardEntry(shard=shard, sha256=sha256, **counts)


def _field(record: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """A field of the right type, or an error that names it."""
    if name not in record:
        raise DataError(f"{where}: '{name}' is missing")
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"{where}: '{name}' must be {kind.__name__}, found {value!r}")
    return value


def _check_unique(entries: Sequence[ShardEntry], path: Path | str) -> None:
    """A shard named twice would be read twice."""
    seen: set[str] = set()
    for entry in entries:
        if entry.shard in seen:
            raise DataError(f"{path} names {entry.shard} twice")
        seen.add(entry.shard)


def _check_shard(path: Path, entry: ShardEntry) -> None:
    """The shard is there and as long as the manifest says."""
    if not path.is_file():
        raise DataError(f"{path} is named in the manifest and missing; copy it again or make the set again")
    found = path.stat().st_size
    if found != entry.bytes:
        raise DataError(f"{path} has {found} bytes, the manifest says {entry.bytes}; copy it again or make it again")
