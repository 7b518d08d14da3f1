"""Reads metadata of any size, a few thousand rows at a time: parquet, CSV (quoted), TSV (never quoted), JSON lines.

    sources = find_sources([Path("metadata")], parse_columns("auto"))
    for source in sources:
        for batch in read(source): batch.rows, batch.unreadable, batch.share

A damaged file, or one of another shape, is an error with its name. A row that cannot be read is counted: a CSV row of
another width, a line that is no JSON object. Text is kept as bytes or str, as valid or invalid as it came.
"""

import codecs
import csv
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import DataError
from data_prep.laion.columns import Columns, find_columns
from data_prep.laion.findings import printable
from data_prep.laion.parquet import column_names, read_parquet
from data_prep.laion.rows import NUMBERS, Rows, as_numbers

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")  # in small letters or large ones
# What may be metadata too, as it is or packed: a.csv.gz, a.parquet.part, a.json.
_LIKE = re.compile(r"\.(parquet|pq|csv|tsv|jsonl|json|ndjson|arrow|feather|orc|avro)(\.\w+)*$", re.IGNORECASE)
_BATCH = 1024  # rows; captions of 100 kB make 100 MB of them
_MOST_BYTES = 1 << 24  # of a line of JSON or a field of CSV: an unclosed quote would read the rest of the file as one
_MOST_LINES = 2000  # of one CSV row: as many captions beside a quote that nobody closed
_MOST_NAMES = 10_000  # of a file's columns


@dataclass(frozen=True)
class Source:
    """One metadata file: where it is, its name below the folder that was given, its columns by role."""

    path: Path
    name: str
    columns: dict[str, str]


@dataclass(frozen=True)
class Batch:
    """Some rows, how many between them could not be read, and what share of the file has been read, 0 to 1."""

    rows: Rows
    unreadable: int
    share: float


def find_sources(paths: Sequence[Path], columns: Columns) -> list[Source]:
    """The metadata files among `paths` (files, or folders with what is below them), in the order of their names.

    Files in the folders that look like metadata and are none that can be read are named on stderr.

    Raises:
        DataError: nothing there, columns that are not found, or a file without a column that another one has.
    """
    sources: list[Source] = []
    files = find_files(paths)
    if unread := [name for given in paths if given.is_dir() for name in _below(given) if _is_unread(name)]:
        print(f"not read: {_few(unread)}; only {', '.join(SUFFIXES)} are", file=sys.stderr)
    for path, name in files:
        sources.append(Source(path, name, find_columns(_names(path), columns, str(path))))
        here, first = set(sources[-1].columns), set(sources[0].columns)
        if here != first:
            role = sorted(here ^ first)[0]
            has, lacks = (sources[-1], sources[0]) if role in here else (sources[0], sources[-1])
            raise DataError(
                f"{has.path} has a column for {role} and {lacks.path} has none; plan them into two folders, or name "
                "the columns that all files have with --columns url=NAME,caption=NAME"
            )
    return sources


def find_files(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """The metadata files among `paths`, each with the name that the plan has for it, in the order of these names.

    Raises:
        DataError: a path without metadata, or two files of one name.
    """
    found: dict[str, Path] = {}
    for path, name in [file for given in paths for file in _files(given)]:
        if name in found:
            raise DataError(f"{found[name]} and {path} would both be {name} in the plan; put them into one folder")
        found[name] = path
    return sorted(((path, name) for name, path in found.items()), key=lambda file: file[1])


def read(source: Source) -> Iterator[Batch]:
    """All rows of the file, in order.

    Raises:
        DataError: the file is damaged; the message has its name.
    """
    if _kind(source.path) == ".parquet":
        for rows, share in read_parquet(source.path, source.columns):
            yield Batch(rows, 0, share)
        return
    lines = _json_objects(source.path) if _kind(source.path) == ".jsonl" else _csv_rows(source.path)
    size, values, unreadable = source.path.stat().st_size, [], 0
    position = 0
    for line, position in lines:
        if line is None:
            unreadable += 1
        else:
            values.append([line.get(name) for name in source.columns.values()])
        if len(values) + unreadable == _BATCH:
            yield Batch(_rows(values, source), unreadable, position / size)
            values, unreadable = [], 0
    if values or unreadable:
        yield Batch(_rows(values, source), unreadable, 1.0)


def _rows(values: list[list[Any]], source: Source) -> Rows:
    """Rows of values to columns."""
    columns: dict[str, Any] = {}
    for place, role in enumerate(source.columns):
        column = [row[place] for row in values]
        columns[role] = as_numbers(column) if role in NUMBERS else column
    return Rows(columns)


def _files(given: Path) -> list[tuple[Path, str]]:
    """The metadata files that a path of the command line means, each with the name the plan has for it."""
    if given.is_file():
        if _kind(given) not in SUFFIXES:
            raise DataError(f"{given} is no metadata that can be read; its name should end in {', '.join(SUFFIXES)}")
        return [(given, given.name)]
    if not given.is_dir():
        raise DataError(f"{given} does not exist; give the folder or the files of the metadata")
    names = _below(given)
    found = [(given / name, name) for name in names if _kind(Path(name)) in SUFFIXES]
    if not found:
        unread = [name for name in names if _is_unread(name)]
        there = f" (there is {_few(unread)})" if unread else ""
        raise DataError(
            f"{given} has no file that ends in {', '.join(SUFFIXES)}{there}; is it the metadata's folder, and unpacked?"
        )
    return found


def _below(folder: Path) -> list[str]:
    """The names of all files below the folder and the folders linked there, but hidden ones.

    Raises:
        DataError: a link to nothing.
        OSError: a folder that cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise error

    found, seen = [], set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        real = os.path.realpath(here)
        if real in seen:  # a link to what is above it, or another to the same
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for path in (Path(here, name) for name in files if not _is_hidden(name)):
            if not path.exists():
                raise DataError(f"{path} is a link to nothing; put back what it named, or remove it")
            if path.is_file():
                found.append(path.relative_to(folder).as_posix())
    return found


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))  # _SUCCESS, .cache: what tools leave


def _is_unread(name: str) -> bool:
    return _kind(Path(name)) not in SUFFIXES and bool(_LIKE.search(name))


def _few(names: Sequence[str]) -> str:
    """The first three of some names."""
    return ", ".join(map(printable, sorted(names)[:3])) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _kind(path: Path) -> str:
    return path.suffix.lower()


def _names(path: Path) -> list[str]:
    """The names of the file's columns."""
    if _kind(path) == ".parquet":
        return column_names(path)
    if _kind(path) == ".jsonl":
        return _json_names(path)
    return next(_csv_records(path), ([], 0))[0]


def _json_names(path: Path) -> list[str]:
    """Of all lines, as one may be the first with an NSFW tag after millions without; it takes a quarter of the plan."""
    names: dict[str, None] = {}
    for line, _ in _json_objects(path):
        if line and not names.keys() >= line.keys():
            names.update(dict.fromkeys(line))
        if len(names) > _MOST_NAMES:
            raise DataError(
                f"{path} has more than {_MOST_NAMES} names of columns; it should have the same in each line"
            )
    if not names:
        raise DataError(f"{path} has no JSON object; it should have one a line, as JSON lines have")
    return list(names)


def _csv_rows(path: Path) -> Iterator[tuple[dict[str, str] | None, int]]:
    """Each row by the names of the first one, None for a row of another width; and the bytes read so far."""
    records = _csv_records(path)
    header, _ = next(records, ([], 0))
    for record, position in records:
        yield (dict(zip(header, record, strict=True)) if len(record) == len(header) else None), position


def _csv_records(path: Path) -> Iterator[tuple[list[str], int]]:
    """The fields of each record, empty lines aside; bytes that are no UTF-8 become lone surrogates.

    A quote that nobody closed takes the rows after it for its text, up to the next quote or the end of the file. Only a
    strict reader says so: behind a quote that closes a field it takes nothing but a comma or the end of the line.
    """
    csv.field_size_limit(_MOST_BYTES)
    begins = 1  # the line on which the record begins that is being read
    with open(path, "rb") as data, io.TextIOWrapper(data, "utf-8-sig", "surrogateescape", newline="") as file:

        def lines() -> Iterator[str]:
            for number, line in enumerate(file, start=1):
                if number - begins >= _MOST_LINES:
                    raise csv.Error(f"it goes on for {_MOST_LINES} lines and more")
                yield line

        tabs = _kind(path) == ".tsv"
        reader = (
            csv.reader(lines(), delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines(), strict=True)
        )
        try:
            for record in reader:
                if record:
                    yield record, data.tell()
                begins = reader.line_num + 1
        except csv.Error as error:
            what = (
                "a quote in the row that begins there is not closed, or something follows one that is: a blank, or "
                'text after a quote that was written \\" and not ""'
            )
            advice = 'write quotes within a field as "" and nothing behind the closing one, or leave the file out'
            if "field limit" in str(error) and reader.line_num == begins:
                what = f"a field of more than {_MOST_BYTES >> 20} MB"
                advice = "correct it, or leave the file out"
            raise DataError(f"{path} line {begins}: {what} ({error}); {advice}") from None


def _json_objects(path: Path) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """The object of each line, None for a line that is none; and the bytes read so far."""
    position = 0
    with open(path, "rb") as file:
        while line := file.readline(_MOST_BYTES):
            if len(line) == _MOST_BYTES and not line.endswith(b"\n"):
                raise DataError(
                    f"{path} has a line of more than {_MOST_BYTES >> 20} MB; it should be a JSON object a line"
                )
            if position == 0:
                line = line.removeprefix(codecs.BOM_UTF8)
            position = file.tell()
            if not line.strip():
                continue
            try:
                found = json.loads(line.decode("utf-8", "surrogateescape"))
            except (ValueError, RecursionError):
                found = None
            yield (found if isinstance(found, dict) else None), position
