"""Values out of a result's JSON, checked as they are taken, and as text on the page."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any


@dataclass(frozen=True, order=True)
class Subject:
    """What a result is of: a model's weights, known by where their files are, the model's name and the hash."""

    folder: str
    model: str
    sha256: str  # empty for a run whose checkpoint no result is of

    @staticmethod
    def of(path: Path, content: Mapping[str, Any]) -> "Subject":
        """The subject of a result file."""
        return Subject(str(path.parent.resolve()), text(content["model"]), text(content["checkpoint"]["sha256"]))


def number(value: Any) -> float:
    """A finite number, else TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, found {str(value)[:40]!r}")
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, found {value}")
    return float(value)


def percent(value: Any) -> float:
    """A number from 0 to 100, else TypeError or ValueError."""
    found = number(value)
    if not 0 <= found <= 100:
        raise ValueError(f"expected a percentage, found {found}")
    return found


def count(value: Any) -> int:
    """A whole number from 0, else TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected a whole number, found {str(value)[:40]!r}")
    if value < 0:
        raise ValueError(f"expected a count, found {value}")
    return value


def text(value: Any) -> str:
    """A string, else TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {str(value)[:40]!r}")
    return value


def interval(value: Any) -> tuple[float, float] | None:
    """Two numbers in order, or None where there are none; else TypeError or ValueError."""
    if value is None:
        return None
    low, high = (number(end) for end in value)
    if low > high:
        raise ValueError(f"expected an interval, found {low} to {high}")
    return low, high


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object, else TypeError."""
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {str(value)[:40]!r}")
    return value


def figure(value: float) -> str:
    """A percentage's digits, two decimals where they matter: 0.06, 4.31, 22.6, 100."""
    if value in (0, 100):
        return f"{value:.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def with_interval(shown: str, ends: tuple[str, str] | None) -> str:
    """A table cell's content: the figure over its interval."""
    below = f"<small>{escape(ends[0])}–{escape(ends[1])}</small>" if ends else ""
    return f"{escape(shown)}{below}"


def figure_cell(value: float, ends: tuple[float, float] | None) -> str:
    """A percentage with its interval as a table cell."""
    shown = with_interval(figure(value), (figure(ends[0]), figure(ends[1])) if ends else None)
    return f'<td class="number">{shown}</td>'


def table(head: Sequence[str], rows: Sequence[str], css: str = "accuracy") -> str:
    """A table whose first column is text and whose others are numbers; ``rows`` are HTML."""
    first, *others = head
    columns = f'<th scope="col">{escape(first)}</th>' + "".join(
        f'<th scope="col" class="number">{escape(name)}</th>' for name in others
    )
    return f'<table class="{css}"><thead><tr>{columns}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def note(sentence: str) -> str:
    """A paragraph beside the figures."""
    return f'<p class="note">{escape(sentence)}</p>'


def figure_image(svg: str, description: str) -> str:
    """A chart that brings its own style sheet, as a picture: so its rules reach nothing else on the page."""
    data = base64.b64encode(svg.encode()).decode("ascii")
    return f'<img class="figure" src="data:image/svg+xml;base64,{data}" alt="{escape(description)}">'
