"""Whether the shards that a manifest names still have the bytes that it recorded.

result = check(Path("laion/shards/manifest.jsonl"), workers=8)
result["wrong"]                    # {"00000-00003.tar": "is missing"}
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.errors import DataError
from data_prep.manifest import MANIFEST, ShardEntry, parse_manifest, sha256_file
from data_prep.pool import unordered
from data_prep.progress import progress

_MB = 1_000_000


def check(manifest: Path, workers: int) -> dict[str, Any]:
    """Read every shard of a manifest (the file, or its folder) and compare its size and SHA-256.

    Returns:
        "shards", "samples", "bytes" by the manifest, "wrong" (a sentence by shard), "megabytes_per_second".

    Raises:
        DataError: no such manifest, or a malformed one.
    """
    path = manifest / MANIFEST if manifest.is_dir() else manifest
    try:
        entries = parse_manifest(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist; make it with: python -m data_prep manifest DIR --output FILE"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}); make it again") from None
    started = time.monotonic()
    wrong = _wrong(path.parent, entries, workers)
    seconds = max(time.monotonic() - started, 1e-9)
    size = sum(entry.bytes for entry in entries)
    return {
        "shards": len(entries),
        "samples": sum(entry.samples for entry in entries),
        "bytes": size,
        "wrong": wrong,
        "megabytes_per_second": round(size / _MB / seconds, 3),
    }


def _wrong(folder: Path, entries: Sequence[ShardEntry], workers: int) -> dict[str, str]:
    """What is wrong by shard, in the manifest's order."""
    found: dict[str, str] = {}
    jobs = ((folder, entry) for entry in entries)
    with progress(-(-sum(entry.bytes for entry in entries) // _MB), "check", "MB") as advance:
        done = told = 0
        for entry, problem in unordered(_compare, jobs, min(workers, len(entries))):
            if problem:
                found[entry.shard] = problem
            done += entry.bytes
            advance(-(-done // _MB) - told)
            told = -(-done // _MB)
    return {entry.shard: found[entry.shard] for entry in entries if entry.shard in found}


def _compare(job: tuple[Path, ShardEntry]) -> tuple[ShardEntry, str]:
    """The entry, and what is wrong with its shard; nothing when all is well."""
    folder, entry = job
    path = folder / entry.shard
    try:
        if not path.is_file():
            return entry, "is missing"
        if (size := path.stat().st_size) != entry.bytes:
            return entry, f"has {size} bytes, recorded are {entry.bytes}"
        found = sha256_file(path)
    except OSError as error:
        return entry, f"cannot be read: {error.strerror or error}"
    return entry, "" if found == entry.sha256 else f"has SHA-256 {found}, recorded is {entry.sha256}"
