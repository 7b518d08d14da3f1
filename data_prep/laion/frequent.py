"""Counts of names that may be millions: exact up to `MOST` names, and beyond that of the frequent ones within a bound.

hosts = Frequent()
hosts.add({"example.com": 7}, {"example.com": 5})
hosts.rows.most_common(50), hosts.undercount
"""

from collections import Counter
from collections.abc import Mapping

MOST = 200_000  # about 40 MB


class Frequent:
    """`rows` and `good` of them by name; each count is low by at most `undercount`."""

    def __init__(self, most: int = MOST) -> None:
        self.rows, self.good = Counter[str](), Counter[str]()
        self.undercount = 0
        self._most = most

    def add(self, rows: Mapping[str, int], good: Mapping[str, int]) -> None:
        """Count; where there are too many names the rarer half is forgotten."""
        self.rows.update(rows)
        self.good.update(good)
        if len(self.rows) > self._most:
            ranked = self.rows.most_common(self._most // 2 + 1)
            self.undercount += ranked[-1][1]
            self.rows = Counter(dict(ranked[:-1]))
            self.good = Counter({name: self.good[name] for name in self.rows})

    def merge(self, other: "Frequent") -> None:
        """Add what another one counted."""
        self.undercount += other.undercount
        self.add(other.rows, other.good)
