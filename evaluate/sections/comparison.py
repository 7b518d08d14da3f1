"""Comparisons of two zero-shot results: differences with McNemar's test, as ``evaluate compare --json`` prints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from evaluate.sections.values import Subject, count, figure, mapping, note, number, percent, table, text

KIND, WRITER, FORMAT = "comparisons", "compare --json", 1
NAMES = {"top1": "Top-1", "top5": "Top-5", "mean_per_class": "Per class"}


@dataclass(frozen=True)
class Row:
    """One figure of both results."""

    name: str
    a: float
    b: float
    only: tuple[int, int] | None  # pictures that only one got right; none for the mean per class
    p: float | None


@dataclass(frozen=True)
class Comparison:
    """One comparison file."""

    path: Path
    a: str
    b: str
    sets: dict[str, tuple[int, list[Row]]]  # pictures, and a row a figure
    command: str


def is_one(content: Mapping[str, Any]) -> bool:
    """Whether it is a comparison."""
    return {"a", "b", "sets"} <= content.keys()


def read(path: Path, content: Mapping[str, Any]) -> Comparison:
    """The comparison as a record."""
    sets = {name: (count(of["n"]), read_rows(of)) for name, of in mapping(content["sets"]).items()}
    a, b = text(content["a"]), text(content["b"])
    return Comparison(path, a, b, sets, f"python -m evaluate compare {a} {b} --json")


def read_rows(of_set: Mapping[str, Any]) -> list[Row]:
    """One set's rows."""
    rows = []
    for name in NAMES:
        row = mapping(of_set[name])
        tested = "p" in row
        only = (count(row["only_a"]), count(row["only_b"])) if tested else None
        rows.append(Row(name, percent(row["a"]), percent(row["b"]), only, number(row["p"]) if tested else None))
    return rows


def section(records: Sequence[Comparison], name_of: Callable[[Subject], tuple[str, str]]) -> str:
    """Each comparison's table."""
    parts = [note("b beside a in percent, on the pictures that both could read. p: McNemar's test, exact, two-sided.")]
    for record in records:
        rows = []
        for name, (pictures, of_set) in record.sets.items():
            title = f"{escape(name)} <span>{pictures:,} pictures</span>"
            rows.append(f'<tr><th scope="rowgroup" colspan="7">{title}</th></tr>')
            rows += [line(row) for row in of_set]
        parts.append(note(f"a: {record.a}. b: {record.b}."))
        head = ("Figure", "b − a", "a", "b", "only a right", "only b right", "p")
        parts.append(f'<div class="wide">{table(head, rows)}</div>')
    return "".join(parts)


def line(row: Row) -> str:
    """One figure's row."""
    only = [f"{pictures:,}" for pictures in row.only] if row.only else ["–", "–"]
    p = "–" if row.p is None else f"{row.p:.2g}"
    cells = [f"{row.b - row.a:+.2f}", figure(row.a), figure(row.b), *only, p]
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f'<tr><td class="run">{NAMES[row.name]}</td>{numbers}</tr>'
