"""Dispersion results: the plot of each, and the exponents as a table."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from evaluate.looking.dispersion_chart import draw
from evaluate.sections.values import Subject, figure_image, interval, mapping, note, number, table, text, with_interval

KIND, WRITER, FORMAT = "dispersion results", "dispersion", 1


@dataclass(frozen=True)
class Row:
    """One kind of attention on one source of features."""

    kind: str
    exponent: float | None  # of the largest share of one key over N
    interval: tuple[float, float] | None
    largest_weight: float | None  # exponent
    effective_keys: float  # exp of the entropy at the largest N


@dataclass(frozen=True)
class Dispersion:
    """One result file."""

    path: Path
    theorem: str
    features: dict[str, tuple[str, int, list[Row]]]  # source -> what it is, the largest N, a row a kind
    notes: tuple[str, ...]
    svg: str
    command: str


def is_one(content: Mapping[str, Any]) -> bool:
    """Whether it is a dispersion result."""
    return {"theorem", "features", "kinds"} <= content.keys()


def read(path: Path, content: Mapping[str, Any]) -> Dispersion:
    """The result as a record."""
    features = mapping(content["features"])
    rows = {}
    for name, source in features.items():
        kinds = [read_row(kind, mapping(row)) for kind, row in mapping(source["kinds"]).items()]
        rows[name] = (text(source["about"]), int(number(source["sizes"][-1])), kinds)
    if not rows:
        raise ValueError("it has no features")
    return Dispersion(
        path,
        text(content["theorem"]),
        rows,
        tuple(
            f"{name}: {text(about['note'])}."
            for name, about in mapping(content["kinds"]).items()
            if not about["covered"] and about["note"]
        ),
        draw(features),
        text(content["command"]),
    )


def read_row(kind: str, row: Mapping[str, Any]) -> Row:
    """One kind's row."""
    largest, weight = row["largest_share"], row["largest_weight"]["exponent"]
    return Row(
        kind,
        None if largest["exponent"] is None else number(largest["exponent"]),
        interval(largest["interval"]),
        None if weight is None else number(weight),
        math.exp(number(row["entropy"]["values"][-1])),
    )


def section(records: Sequence[Dispersion], name_of: Callable[[Subject], tuple[str, str]]) -> str:
    """Each result's plot and tables."""
    parts = []
    for record in records:
        parts.append(note(record.theorem))
        parts.append(figure_image(record.svg, "Largest share of one key and effective number of keys over N"))
        for name, (about, largest, rows) in record.features.items():
            lines = [
                f'<tr><td class="run">{escape(row.kind)}</td>{exponent_cell(row)}'
                f'<td class="number">{"–" if row.largest_weight is None else f"{row.largest_weight:.2f}"}</td>'
                f'<td class="number">{row.effective_keys:,.0f}</td></tr>'
                for row in rows
            ]
            head = ("Attention", "Largest share: exponent", "Largest weight: exponent", "Effective keys")
            parts.append(f"<h3>{escape(name)} features, N up to {largest:,}</h3>{note(about)}")
            parts.append(f'<div class="wide">{table(head, lines)}</div>')
        parts += [note(sentence) for sentence in record.notes]
    return "".join(parts)


def exponent_cell(row: Row) -> str:
    """The exponent of the largest share with its interval."""
    if row.exponent is None:
        return '<td class="number">–</td>'
    ends = (f"{row.interval[0]:.2f}", f"{row.interval[1]:.2f}") if row.interval else None
    return f'<td class="number">{with_interval(f"{row.exponent:.2f}", ends)}</td>'
