"""Parquet files of strangers: read by a few thousand rows, whatever their row groups; written the same each time."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.errors import DataError
from data_prep.laion.rows import NUMBERS, Rows, as_numbers

_BATCH = 1024  # rows; captions of 100 kB make 100 MB of them
_BUFFER = 1 << 20  # bytes read at a time of a column, where pyarrow would read the whole row group


def column_names(path: Path) -> list[str]:
    """The names of a parquet file's columns.

    Raises:
        DataError: the file is damaged or no parquet file.
    """
    parquet = _pyarrow_parquet()
    with _naming(path), _opened(path) as data, parquet.ParquetFile(data) as file:
        return list(file.schema_arrow.names)


def read_parquet(path: Path, columns: Mapping[str, str]) -> Iterator[tuple[Rows, float]]:
    """The rows, text as bytes, and what share of the file has been read.

    Args:
        columns: role to the name of the column.

    Raises:
        DataError: the file is damaged, or a column holds neither text nor numbers, as its role asks.
    """
    parquet, read = _pyarrow_parquet(), 0
    with _naming(path), _opened(path) as data, parquet.ParquetFile(data, buffer_size=_BUFFER, pre_buffer=False) as file:
        for role, name in columns.items():
            _check_type(path, role, name, file.schema_arrow.field(name).type)
        for batch in file.iter_batches(_BATCH, columns=list(columns.values())):
            read += batch.num_rows
            found = {role: _values(role, batch.column(name)) for role, name in columns.items()}
            yield Rows(found), read / file.metadata.num_rows


def _values(role: str, array: Any) -> Any:
    """A column as `Rows` has it; text as bytes, as pyarrow refuses a whole column for one byte that is no UTF-8."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if role in NUMBERS:
        return _numbers(array)
    if pa.types.is_null(array.type):
        return [None] * len(array)
    if not _is_text(array.type):
        array = array.cast(pa.string())
    binary = pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary()
    return array.cast(binary).to_numpy(zero_copy_only=False).tolist()


def _numbers(array: Any) -> np.ndarray:
    """float64 (N,), NaN for null, for text that is no number and for what is not finite."""
    import pyarrow as pa

    if _is_text(array.type) or pa.types.is_null(array.type):
        return as_numbers(_values("text", array))
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _check_type(path: Path, role: str, name: str, kind: Any) -> None:
    """Refuse lists, structs, pictures and whatever else is no text or number."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (_is_text(kind) or pa.types.is_null(kind) or (number and role not in ("url", "caption"))):
        wanted = "numbers" if role in NUMBERS else "text"
        raise DataError(f"{path}: column {name!r} should hold {wanted} for the {role} and holds {kind}; see --columns")


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def _opened(path: Path) -> Any:
    """The file for pyarrow, which takes a name of any bytes only as bytes."""
    import pyarrow as pa

    return pa.OSFile(os.fsencode(path))


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into one that names the file; the operating system's own have it already."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(f"{path} is damaged or no parquet file ({reason}); copy it again or leave it out") from error


def _pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError("parquet files need pyarrow: pip install pyarrow") from None
    return pyarrow.parquet
