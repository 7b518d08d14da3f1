"""Scaling results: the fitted laws as a plot and a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from evaluate import scaling_chart
from evaluate.sections.values import (
    Subject,
    count,
    figure_image,
    interval,
    mapping,
    note,
    number,
    table,
    text,
    with_interval,
)

KIND, WRITER, FORMAT = "scaling results", "scaling", 1


@dataclass(frozen=True)
class Fit:
    """One kind's law in one of its two forms."""

    kind: str
    form: str
    a: float
    alpha: float
    c: float
    alpha_interval: tuple[float, float] | None
    runs: int


@dataclass(frozen=True)
class Scaling:
    """One result file."""

    path: Path
    over: str
    loss: str
    fits: list[Fit]
    svg: str
    notes: tuple[str, ...]
    command: str


def is_one(content: Mapping[str, Any]) -> bool:
    """Whether it is a scaling result."""
    return {"over", "fits", "points"} <= content.keys()


def read(path: Path, content: Mapping[str, Any]) -> Scaling:
    """The result as a record."""
    over = text(content["over"])
    fits = [
        Fit(
            text(fit["kind"]),
            text(fit["form"]),
            number(fit["a"]),
            number(fit["alpha"]),
            number(fit["c"]),
            interval(fit["alpha_interval"]),
            count(fit["runs"]),
        )
        for fit in map(mapping, content["fits"])
    ]
    rows = [mapping(point) for point in content["points"]]
    on_validation = all(row["validation_loss"] is not None for row in rows)
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        pair = number(row[over]), number(row["validation_loss" if on_validation else "training_loss"])
        if min(pair) <= 0:
            raise ValueError(f"a power law is positive, found N {pair[0]} and loss {pair[1]}")
        points.setdefault(text(row["kind"]), []).append(pair)
    if not fits or not points:
        raise ValueError("it has no fit")
    said = tuple(text(sentence) for sentence in content["notes"])
    loss = text(content["loss"])
    return Scaling(path, over, loss, fits, drawn(fits, points, over, loss), said, text(content["command"]))


def section(records: Sequence[Scaling], name_of: Callable[[Subject], tuple[str, str]]) -> str:
    """Each result's plot and table."""
    parts = []
    for record in records:
        rows = []
        for fit in record.fits:
            ends = tuple(f"{end:.3f}" for end in fit.alpha_interval) if fit.alpha_interval else None
            alpha = with_interval(f"{fit.alpha:.3f}", (ends[0], ends[1]) if ends else None)
            rows.append(
                f'<tr><td class="run">{escape(fit.kind)} <small>{escape(fit.form)}, {fit.runs} runs</small></td>'
                f'<td class="number">{alpha}</td><td class="number">{fit.a:.3g}</td>'
                f'<td class="number">{fit.c:.3g}</td></tr>'
            )
        parts.append(note(f"L: {record.loss}. N: {record.over}."))
        parts.append(figure_image(record.svg, f"Loss over {record.over}"))
        parts.append(f'<div class="wide">{table(("Kind", "α", "a", "c"), rows)}</div>')
        parts += [note(sentence) for sentence in record.notes]
    return "".join(parts)


def drawn(fits: Sequence[Fit], points: Mapping[str, list[tuple[float, float]]], over: str, loss: str) -> str:
    """The runs, (N, loss) of each kind, and each kind's plain law over all sizes, as SVG text."""
    sizes = [size for pairs in points.values() for size, _ in pairs]
    xs = np.geomspace(min(sizes), max(sizes), 60)
    series = [
        scaling_chart.Series(
            f"{fit.kind}: α = {fit.alpha:.3f}", points.get(fit.kind, []), xs, fit.a * xs**-fit.alpha, None
        )
        for fit in fits
        if fit.c == 0
    ]
    return scaling_chart.draw(series, x_label=over, y_label=loss)
