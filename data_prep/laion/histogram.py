"""Histograms with fixed edges, filled a batch at a time, so that any number of rows takes the same memory.

found = Histogram(MEASURES["aspect"].edges)
found.add(np.array([1.5, 0.7]))
found.record()          # {"edges": […], "counts": […], "below": 0, "above": 0, "unknown": 0, "mean": 1.1, …}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Measure:
    """What is measured of each picture that came, and the edges of its bins (ascending float64, B + 1)."""

    title: str
    edges: np.ndarray


MEASURES: Mapping[str, Measure] = {
    "side": Measure("Shorter side of the original, pixels", np.round(2.0 ** np.arange(4, 12.5, 0.5))),
    "aspect": Measure("Width over height of the original", 2.0 ** np.arange(-2, 2.25, 0.25)),
    "caption": Measure("Length of the caption, characters", np.arange(0.0, 321.0, 10.0)),
    "similarity": Measure("Similarity of picture and caption", np.arange(0, 33) / 50),
}


class Histogram:
    """Counts of values by bin; a bin holds its lower edge and not its upper one."""

    def __init__(self, edges: np.ndarray) -> None:
        self.edges = edges
        self._counts = np.zeros(len(edges) + 1, np.int64)  # first those below all edges, last those above
        self._unknown = 0
        self._sum, self._least, self._most = 0.0, np.inf, -np.inf

    def add(self, values: np.ndarray) -> None:
        """Count float64 `values` (N,); NaN is unknown."""
        known = values[~np.isnan(values)]
        self._unknown += len(values) - len(known)
        if len(known):
            places = np.searchsorted(self.edges, known, side="right")
            self._counts += np.bincount(places, minlength=len(self._counts))
            self._sum += float(known.sum())
            self._least, self._most = min(self._least, known.min()), max(self._most, known.max())

    def merge(self, other: "Histogram") -> None:
        """Add what another one of the same edges counted."""
        self._counts += other._counts
        self._unknown += other._unknown
        self._sum += other._sum
        self._least, self._most = min(self._least, other._least), max(self._most, other._most)

    def record(self) -> dict[str, Any]:
        """Everything as JSON has it; "mean", "least" and "most" are null where nothing is known."""
        known = int(self._counts.sum())
        return {
            "edges": self.edges.tolist(),
            "counts": self._counts[1:-1].tolist(),
            "below": int(self._counts[0]),
            "above": int(self._counts[-1]),
            "unknown": self._unknown,
            "mean": self._sum / known if known else None,
            "least": float(self._least) if known else None,
            "most": float(self._most) if known else None,
        }
