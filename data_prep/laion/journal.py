"""What verify found, kept as it goes: `verify.jsonl`, a line a shard, and `verify.hashes`, 64 bits a picture.

    with Journal(folder) as journal:
        known = journal.find(name, look(root / name), max_aspect)
        journal.add(report, hashes)

A line is written when its hashes are on the disk. A line that is damaged, or whose hashes are, as CRC-32s say, is
passed over, and a later line of a shard stands in place of an earlier one.
"""

import contextlib
import fcntl
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.errors import DataError
from data_prep.laion.shard import Report

LINES, HASHES = "verify.jsonl", "verify.hashes"
_ITEM = 8  # bytes of a hash
_START = b'{"name": '  # of every line


class Journal:
    """The journal of a folder, made where there is none; use it in a `with` block.

    Raises:
        DataError: another process writes it now, it cannot be written there, or a verify.jsonl of someone's own is.
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
        try:
            self._refuse_foreign()
        except DataError:
            self._lines.close()
            raise
        self._hashes = open(folder / HASHES, "a+b")  # noqa: SIM115
        self._hashes.truncate(self._hashes.seek(0, os.SEEK_END) // _ITEM * _ITEM)
        self._known = self._read()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        for file in (self._hashes, self._lines):
            with contextlib.suppress(OSError):  # of what is still to be written `_put` told, with the file's name
                file.close()

    def clear(self) -> None:
        """Forget everything."""
        self._lines.truncate(0)
        self._hashes.truncate(0)
        self._known = {}

    def add(self, report: Report, hashes: np.ndarray) -> None:
        """Keep a report and its shard's hashes (uint64); they are on the disk when this returns."""
        place = self._hashes.seek(0, os.SEEK_END) // _ITEM
        data = hashes.astype("<u8").tobytes()
        _put(self._hashes, data)
        self._write([{**asdict(report), "hashes": [place, len(hashes), zlib.crc32(data)]}])

    def move(self, moved: Mapping[str, Report]) -> None:
        """Keep the reports of shards that were moved, by their names before, but for what was forgotten since."""
        known = {before: report for before, report in moved.items() if before in self._known}
        self._write([{**asdict(report), "hashes": self._known[before]["hashes"]} for before, report in known.items()])

    def find(self, name: str, seen: list[list[int]], max_aspect: float) -> Report | None:
        """The report of a shard, None where it or what is beside it is another now (`seen`, by shard.look).

        None, too, where its hashes are damaged: they are read here, and are 8 bytes a picture.
        """
        line = self._known.get(name)
        known = line and (line["seen"], line["max_aspect"]) == (seen, max_aspect) and self._whole(*line["hashes"])
        return _report(line) if line and known else None

    def hashes(self, names: Sequence[str]) -> list[np.ndarray]:
        """Each shard's hashes, as they stand in the file: they are read when they are used."""
        if not os.fstat(self._hashes.fileno()).st_size:
            return [np.zeros(0, np.uint64) for _ in names]
        every = np.memmap(self.folder / HASHES, "<u8", "r")
        places = (self._known[name]["hashes"] for name in names)
        return [every[place : place + count] for place, count, _ in places]

    def _refuse_foreign(self) -> None:
        """By how it begins; a kill or a power cut may leave less of it, or zeros."""
        self._lines.seek(0)
        start = self._lines.read(len(_START))
        if not _START.startswith(start.rstrip(b"\0")):
            raise DataError(
                f"{self.folder / LINES} was not written by data_prep and would be added to; rename it, or give verify "
                "a --state elsewhere"
            )

    def _whole(self, place: int, count: int, crc32: int) -> bool:
        """Whether the file has these hashes as they were written."""
        return zlib.crc32(os.pread(self._hashes.fileno(), count * _ITEM, place * _ITEM)) == crc32

    def _read(self) -> dict[str, dict[str, Any]]:
        """The last good line of each shard."""
        known: dict[str, dict[str, Any]] = {}
        stored = os.fstat(self._hashes.fileno()).st_size // _ITEM
        self._lines.seek(0)
        last = b"\n"
        for last in self._lines:
            try:
                line = json.loads(last)
                whole = line.pop("crc32") == _crc32(line)
                place, count, _ = line["hashes"]
                if whole and place + count <= stored:
                    known[line["name"]] = line
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                continue
        if not last.endswith(b"\n"):
            self._lines.write(b"\n")  # so that the next line is not taken for the rest of this one
        return known

    def _write(self, lines: Sequence[dict[str, Any]]) -> None:
        _put(self._lines, b"".join(json.dumps({**line, "crc32": _crc32(line)}).encode() + b"\n" for line in lines))
        self._known |= {line["name"]: line for line in lines}


def _crc32(line: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(line).encode())


def _report(line: dict[str, Any]) -> Report:
    return Report(**{key: value for key, value in line.items() if key != "hashes"})


def _put(file: Any, data: bytes) -> None:
    """Append, and wait for the disk."""
    try:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        error.filename = file.name  # writes do not say where the disk is full
        raise
