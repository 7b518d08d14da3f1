"""What a shard set is: a folder with `manifest.jsonl`, one JSON object a shard, and the shards it names.

    {"shard": "00000.tar", "bytes": 4382720, "sha256": "…", "samples": 1000}

Readers open only what the manifest names, so a stray or half-written tar is never read. A downloaded set's lines also
have "failures": how many samples are missing, by reason.
    entries = read_manifest("data/emoji/train"); total = sum(entry.samples for entry in entries)
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_prep import atomic
from data_prep.errors import DataError

MANIFEST = "manifest.jsonl"
_PERHAPS_OTHER = (
    "is it a manifest of data_prep? Rename it if not; python -m data_prep manifest DIR --output FILE makes one"
)
_NO_NAME = re.compile(r"[\\\x00-\x1f\ud800-\udc7f\udd00-\udfff]")  # DC80 to DCFF stand for bytes of a name


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the manifest describes it; `shard` is its name in the manifest's folder or below: "a/00000.tar".

    `failures` counts by reason the samples that could not be downloaded.
    """

    shard: str
    bytes: int
    sha256: str
    samples: int
    failures: dict[str, int] = field(default_factory=dict, compare=False)


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


def write_manifest(folder: Path | str, entries: Sequence[ShardEntry], name: str = MANIFEST) -> None:
    """Write the folder's manifest in one step.

    Raises:
        DataError: an entry that `read_manifest` would refuse, or no entry.
    """
    path = Path(folder) / name
    if not entries:
        raise DataError(f"{path} would name no shard")
    lines = [_line(entry) for entry in entries]
    for line in lines:
        _parse_line(line, f"entry for {path}")
    _check_unique(entries, path)
    atomic.write_text(path, "".join(line + "\n" for line in lines))


def sha256_file(path: Path | str) -> str:
    """The SHA-256 of a file as 64 hexadecimal digits, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _line(entry: ShardEntry) -> str:
    """One entry as its line; without failures it has the four fields of old."""
    record = asdict(entry)
    return json.dumps(record if entry.failures else {key: record[key] for key in record if key != "failures"})


def _parse_line(line: str, where: str) -> ShardEntry:
    """One manifest line to an entry; `where` starts the error message."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); {_PERHAPS_OTHER}") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected an object, found {type(record).__name__}; {_PERHAPS_OTHER}")
    shard = _field(record, "shard", str, where)
    if _NO_NAME.search(shard) or not {"", ".", ".."}.isdisjoint(shard.split("/")):
        raise DataError(
            f"{where}: 'shard' must be a plain file name, or a path below the manifest's folder, found {shard!r}"
        )
    sha256 = _field(record, "sha256", str, where)
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise DataError(f"{where}: 'sha256' must be 64 hexadecimal digits, found {sha256!r}")
    counts = {name: _field(record, name, int, where) for name in ("bytes", "samples")}
    for name, value in counts.items():
        if value < 0:
            raise DataError(f"{where}: '{name}' must not be negative, found {value}")
    return ShardEntry(shard=shard, sha256=sha256, failures=_failures(record, where), **counts)


def _failures(record: dict[str, Any], where: str) -> dict[str, int]:
    """Counts by reason; a manifest may have none."""
    failures = record.get("failures", {})
    if not isinstance(failures, dict) or not all(type(count) is int and count >= 0 for count in failures.values()):
        raise DataError(f"{where}: 'failures' must be counts by reason, found {failures!r}")
    return failures


def _field(record: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """A field of the right type, or an error that names it."""
    if name not in record:
        raise DataError(f"{where}: '{name}' is missing; {_PERHAPS_OTHER}")
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
