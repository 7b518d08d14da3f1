"""What verify found, kept as it goes: `verify.jsonl`, a line a shard, and `verify.hashes`, 64 bits a picture.

    with Journal(folder) as journal:
        known = journal.find(name, size, mtime_ns, max_aspect)
        journal.add(report, hashes)

A line is written when its hashes are on the disk. A line that a kill cut short is passed over, and a later line of a
shard stands in place of an earlier one. A shard that was moved keeps its line, under its old name: see `find`.
"""

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.errors import DataError
from data_prep.laion.shard import Report

LINES, HASHES = "verify.jsonl", "verify.hashes"
_ITEM = 8  # bytes of a hash


class Journal:
    """The journal of a folder, made where there is none; use it in a `with` block.

    Raises:
        DataError: another process writes it now, or it cannot be written there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lines = open(folder / LINES, "a+b")  # noqa: SIM115  (__exit__ closes it)
        except OSError as error:
            why = f"{folder / LINES} cannot be written ({error.strerror or error})"
            raise DataError(f"{why}; give verify a --state elsewhere") from None
        try:
            fcntl.flock(self._lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lines.close()
            raise DataError(f"another process is verifying {folder} now; wait for it to end") from None
        self._hashes = open(folder / HASHES, "a+b")  # noqa: SIM115
        self._hashes.truncate(self._hashes.seek(0, os.SEEK_END) // _ITEM * _ITEM)
        self._known = self._read()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self._hashes.close()
        self._lines.close()

    def clear(self) -> None:
        """Forget everything."""
        self._lines.truncate(0)
        self._hashes.truncate(0)
        self._known = {}

    def add(self, report: Report, hashes: np.ndarray) -> None:
        """Keep a report and its shard's hashes (uint64); they are on the disk when this returns."""
        place = self._hashes.seek(0, os.SEEK_END) // _ITEM
        _put(self._hashes, hashes.astype("<u8").tobytes())
        line = {**asdict(report), "hashes": [place, len(hashes)]}
        _put(self._lines, json.dumps(line).encode() + b"\n")
        self._known[report.name] = line

    def find(self, names: Sequence[str], size: int, mtime_ns: int, max_aspect: float) -> Report | None:
        """The report of a shard by the names it may have had, None where the file is another now."""
        for name in names:
            line = self._known.get(name)
            if line and (line["bytes"], line["mtime_ns"], line["max_aspect"]) == (size, mtime_ns, max_aspect):
                self._known[names[0]] = {**line, "name": names[0]}
                return _report(self._known[names[0]])
        return None

    def hashes(self, names: Sequence[str]) -> list[np.ndarray]:
        """Each shard's hashes, as they stand in the file: they are read when they are used."""
        if not os.fstat(self._hashes.fileno()).st_size:
            return [np.zeros(0, np.uint64) for _ in names]
        every = np.memmap(self.folder / HASHES, "<u8", "r")
        places = (self._known[name]["hashes"] for name in names)
        return [every[place : place + count] for place, count in places]

    def _read(self) -> dict[str, dict[str, Any]]:
        """The last good line of each shard."""
        known: dict[str, dict[str, Any]] = {}
        stored = os.fstat(self._hashes.fileno()).st_size // _ITEM
        self._lines.seek(0)
        last = b"\n"
        for last in self._lines:
            try:
                line = json.loads(last)
                _report(line)
                if sum(line["hashes"]) <= stored:
                    known[line["name"]] = line
            except (ValueError, TypeError, KeyError):
                continue
        if not last.endswith(b"\n"):
            self._lines.write(b"\n")  # so that the next line is not taken for the rest of this one
        return known


def _report(line: dict[str, Any]) -> Report:
    return Report(**{key: value for key, value in line.items() if key != "hashes"})


def _put(file: Any, data: bytes) -> None:
    """Append, and wait for the disk."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
