"""Sends metadata through the rules and counts what each of them takes out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from data_prep.laion.metadata import Source, read
from data_prep.laion.rows import Rows
from data_prep.laion.rules import Rule, Settings, rules_for

EXAMPLES = 10  # for each rule
_SHOWN = 200  # characters of an example


class Funnel:
    """`counts` has rows_read, unreadable, then each rule; rows_read is their sum and `rows`, those that passed."""

    def __init__(self, settings: Settings, roles: Sequence[str]) -> None:
        """
        Args:
            roles: the columns that the metadata has.
        """
        self._most = settings.max_rows
        self.rules: list[Rule] = []
        self.off: dict[str, str] = {}  # rule to why it is off
        for rule in rules_for(settings):
            missing = [role for role in rule.needs if role not in roles]
            if missing:
                self.off[rule.name] = f"no column for {' and '.join(missing)}"
            else:
                self.rules.append(rule)
        self.rows = 0
        self.counts = {"rows_read": 0, "unreadable": 0, **{rule.name: 0 for rule in self.rules}}
        self.examples: dict[str, list[str]] = {rule.name: [] for rule in self.rules}

    def passing(self, sources: Sequence[Source], advance: Callable[[float], object]) -> Iterator[Rows]:
        """The rows that pass every rule, in order, until there are as many as were asked for.

        Args:
            advance: told how many bytes of the sources have been read so far.
        """
        before = 0
        for source in sources:
            size = source.path.stat().st_size
            for batch in read(source):
                self.counts["rows_read"] += len(batch.rows) + batch.unreadable
                self.counts["unreadable"] += batch.unreadable
                rows = self._passed(batch.rows)
                self.rows += len(rows)
                advance(before + batch.share * size)
                yield rows
                if self.rows == self._most:
                    return
            before += size

    def _passed(self, rows: Rows) -> Rows:
        """The rows of one batch that pass every rule."""
        for rule in self.rules:
            if not len(rows):
                break
            shown = rows.columns[rule.shows]
            mask = rule.test(rows)
            self._note(rule.name, shown, ~mask)
            rows = rows.kept(mask)
        return rows

    def _note(self, name: str, shown: Any, failed: np.ndarray) -> None:
        """Count rows that failed and keep a few as examples."""
        self.counts[name] += int(failed.sum())
        wanted = EXAMPLES - len(self.examples[name])
        if wanted > 0:
            self.examples[name] += [_shown(shown[place]) for place in np.flatnonzero(failed)[:wanted]]


def _shown(value: Any) -> str:
    """A value for a person, on one line and never long; nothing a terminal would obey."""
    text = value[: 4 * _SHOWN].decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:_SHOWN])
