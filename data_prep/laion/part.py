"""Writes the rows of a plan as parts: 00000.parquet, 00001.parquet, … each of so many shards of so many rows."""

from pathlib import Path
from typing import Any

from data_prep.laion.rows import NUMBERS, Rows
from data_prep.laion.rules import as_text
from data_prep.manifest import sha256_file

_MOST_PIXELS = 2**31  # on a side; no format of pictures has more


class Parts:
    """The same rows give the same bytes with the same version of pyarrow. A row group is a shard."""

    def __init__(self, folder: Path, roles: list[str], shard_size: int, shards_per_part: int) -> None:
        import pyarrow as pa

        types = {"similarity": pa.float64(), "width": pa.int64(), "height": pa.int64()}
        self._schema = pa.schema([(role, types.get(role, pa.string())) for role in roles])
        self._folder, self._shard_size, self._shards_per_part = folder, shard_size, shards_per_part
        self._waiting: dict[str, list[Any]] = {role: [] for role in roles}
        self._writer: Any = None
        self._shards = 0
        self._written: list[dict[str, Any]] = []

    def add(self, rows: Rows) -> None:
        """Take rows that passed; whole shards are written."""
        for role, values in self._waiting.items():
            values.extend(_plain(role, rows.columns[role]))
        while len(self._waiting["url"]) >= self._shard_size:
            self._write_shard()

    def close(self) -> list[dict[str, Any]]:
        """Write what is left; returns file, rows and sha256 of each part."""
        if self._waiting["url"]:
            self._write_shard()
        self._close_part()
        return self._written

    def _write_shard(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        if self._writer is None:
            self._written.append({"file": f"{len(self._written):05d}.parquet", "rows": 0})
            self._writer = pyarrow.parquet.ParquetWriter(
                self._folder / self._written[-1]["file"], self._schema, store_schema=False, write_statistics=False
            )
        size = self._shard_size
        shard = pa.table({role: values[:size] for role, values in self._waiting.items()}, schema=self._schema)
        self._waiting = {role: values[size:] for role, values in self._waiting.items()}
        self._writer.write_table(shard)
        self._written[-1]["rows"] += shard.num_rows
        self._shards += 1
        if self._shards % self._shards_per_part == 0:
            self._close_part()

    def _close_part(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._written[-1]["sha256"] = sha256_file(self._folder / self._written[-1]["file"])


def _plain(role: str, column: Any) -> list[Any]:
    """Python's own values, None for what is missing."""
    if role in ("url", "caption"):
        return list(column)
    if role not in NUMBERS:
        return [as_text(value) for value in column]
    if role == "similarity":
        return [None if value != value else value for value in column.tolist()]
    return [int(value) if abs(value) < _MOST_PIXELS else None for value in column.tolist()]
