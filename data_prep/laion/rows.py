"""A few thousand rows of metadata, a column each, as they come from any file and go through the rules."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

NUMBERS = ("similarity", "width", "height")  # the rest is text


@dataclass
class Rows:
    """`columns`: role to a list of N texts (bytes, str, None or whatever a line held), or float64 (N,) for NUMBERS."""

    columns: dict[str, Any]

    def __len__(self) -> int:
        return len(self.columns["url"])

    def kept(self, mask: np.ndarray) -> "Rows":
        """The rows where bool `mask` (N,) is true."""
        if mask.all():
            return self
        return Rows(
            {
                role: column[mask] if isinstance(column, np.ndarray) else list(compress(column, mask))
                for role, column in self.columns.items()
            }
        )


def as_numbers(values: Sequence[Any]) -> np.ndarray:
    """float64 (N,): each value as a number, NaN for what is none or not finite."""
    numbers = np.full(len(values), np.nan)
    for place, value in enumerate(values):
        if value is not None and not isinstance(value, bool):
            try:
                numbers[place] = float(value)
            except (TypeError, ValueError, OverflowError):
                continue
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers
