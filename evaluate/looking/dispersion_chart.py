"""The plot of `evaluate dispersion`: shares, effective number of keys and the largest weight over N, one SVG text.

A column for each source of features, both axes logarithmic, beside a dotted line of 1/N (or N). A dashed curve is of a
kind that the theorem does not speak of. The colours are inside, so that the file stands alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from evaluate.looking.kinds import KINDS
from evaluate.scaling_chart import scale

PANEL, HEIGHT, GAP = 330, 300, 62  # of the axes; the gap is what stands left of and below them
TOP, LEGEND = 40, 150
COLOURS = {
    "softmax": "#1261a6",
    "elu1": "#2a8f9c",
    "eq4": "#2b7a4b",
    "eq7": "#c05a11",
    "differential": "#6d4aa8",
    "adaptive": "#5b6470",
    "window": "#b3352f",
    "sema": "#d0709b",
    "inline": "#8a6d1c",
    "mila": "#20262e",
}
STYLE = (
    "text{font:13px sans-serif;fill:#3c434b}.grid{stroke:#dddfe0}.axis{stroke:#5b6470}"
    ".curve{fill:none;stroke-width:2}.ideal{fill:none;stroke:#5b6470;stroke-dasharray:1 4}.open{stroke-dasharray:6 4}"
)
ROWS = (
    ("largest_share", "largest share of one key"),
    ("median_share", "median share of one key"),
    ("entropy", "effective number of keys"),
    ("largest_weight", "largest weight itself"),
)


def draw(features: Mapping[str, Mapping[str, Any]]) -> str:
    """One ``<svg>`` of `features` as dispersion.json holds them, at least one."""
    width = len(features) * (PANEL + GAP) + LEGEND
    height = TOP + len(ROWS) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="Dispersion: the share of one key over the number of keys"><style>' + STYLE + "</style>"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    ]
    for column, (name, of_source) in enumerate(features.items()):
        left = GAP + column * (PANEL + GAP)
        for row, (quantity, title) in enumerate(ROWS):
            curves = {kind: values_of(quantity, of_kind) for kind, of_kind in of_source["kinds"].items()}
            parts.append(
                panel(
                    of_source["sizes"], curves, left, TOP + row * (HEIGHT + GAP), f"{name} features: {title}", quantity
                )
            )
    for number, kind in enumerate(KINDS):
        x, y = width - LEGEND + 16, TOP + 14 + 22 * number
        css = "curve" if kind.covered else "curve open"
        parts.append(f'<path class="{css}" stroke="{COLOURS[kind.name]}" d="M{x},{y - 4}h28"/>')
        parts.append(f'<text x="{x + 36}" y="{y}">{escape(kind.name)}</text>')
    return "".join([*parts, "</svg>\n"])


def values_of(quantity: str, of_kind: Mapping[str, Any]) -> list[float]:
    """A kind's curve; of the entropy its exponential."""
    values = of_kind[quantity]["values"]
    return [math.exp(value) for value in values] if quantity == "entropy" else values


def panel(
    sizes: Sequence[int], curves: Mapping[str, Sequence[float]], left: int, top: int, title: str, quantity: str
) -> str:
    """One set of axes with its curves and the line of a uniform row."""
    right, bottom = left + PANEL, top + HEIGHT
    ideal = [float(n) if quantity == "entropy" else 1 / n for n in sizes]
    everything = [*ideal, *(value for values in curves.values() for value in values if value > 0)]
    px = scale(sizes[0], sizes[-1], left, right)
    py = scale(min(everything) / 1.5, max(everything) * 1.5, bottom, top)
    parts = []
    for power in range(math.ceil(math.log10(min(everything) / 1.5)), math.floor(math.log10(max(everything) * 1.5)) + 1):
        y = py(10.0**power)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{power_of_ten(power)}</text>')
    for size in sizes[::3]:
        x, power = px(size), size.bit_length() - 1
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">2{raised(power)}</text>')
    parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text x="{left}" y="{top - 10}">{escape(title)}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 36}" text-anchor="end">N, keys</text>')
    parts.append(f'<path class="ideal" d="{path(sizes, ideal, px, py)}"/>')
    for kind in KINDS:
        css = "curve" if kind.covered else "curve open"
        parts.append(
            f'<path class="{css}" stroke="{COLOURS[kind.name]}" d="{path(sizes, curves[kind.name], px, py)}"/>'
        )
    return "".join(parts)


def path(xs: Sequence[float], ys: Sequence[float], px: Callable[[float], float], py: Callable[[float], float]) -> str:
    """A line through the points above zero, of which there is at least one."""
    return "M" + "L".join(f"{px(x):.1f},{py(y):.1f}" for x, y in zip(xs, ys, strict=True) if y > 0)


def power_of_ten(power: int) -> str:
    """1, 10, or ten with a raised power."""
    return str(10**power) if power in (0, 1) else f"10{raised(power)}"


def raised(power: int) -> str:
    """A whole number in raised digits."""
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
