"""Charts as inline SVG text: no plotting library, no script, colours from the page's style sheet (so dark mode works).

A curve's colour is its CSS class, ``s0`` to ``s7``. Sizes are in CSS pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MARGIN = {"left": 46, "right": 12, "top": 10, "bottom": 40}
MOST_POINTS = 600  # a curve: more than a screen has columns only makes the file larger


@dataclass(frozen=True)
class Curve:
    """One run's curve: finite points with ascending ``xs``."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    css: str = "s0"


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """At most ``most`` + 1 round values (1, 2 or 5 times a power of ten apart) that cover low..high from inside."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def smooth(ys: Sequence[float], window: int) -> list[float]:
    """Centred moving average; the window shrinks evenly towards both ends, so that the curve has no lag."""
    total = [0.0]
    for y in ys:
        total.append(total[-1] + y)
    out = []
    for i in range(len(ys)):
        half = min(window // 2, i, len(ys) - 1 - i)
        out.append((total[i + half + 1] - total[i - half]) / (2 * half + 1))
    return out


def thin(curve: Curve) -> Curve:
    """Every k-th point and the last, so that at most about ``MOST_POINTS`` remain; values are never averaged."""
    stride = math.ceil(len(curve.xs) / MOST_POINTS)
    if stride <= 1:
        return curve
    keep = [*range(0, len(curve.xs) - 1, stride), len(curve.xs) - 1]
    return Curve(curve.name, [curve.xs[i] for i in keep], [curve.ys[i] for i in keep], curve.css)


def label_of(value: float) -> str:
    """A tick's text: 0.5, 12, 1.5k, 2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:.6g}"


def line_chart(
    curves: Sequence[Curve], *, width: int, height: int, x_label: str, y_label: str, description: str, css: str = ""
) -> str:
    """Raw points (thin) and their moving average (bold) of each curve, with labelled axes. Returns one ``<svg>``.

    Raises ValueError when there is nothing to draw.
    """
    curves = [c for c in curves if len(c.xs) > 0]
    if not curves:
        raise ValueError("no curve has a finite point")
    x_low, x_high = min(min(c.xs) for c in curves), max(max(c.xs) for c in curves)
    y_low, y_high = min(min(c.ys) for c in curves), max(max(c.ys) for c in curves)
    pad = 0.04 * (y_high - y_low) or 0.5
    y_low, y_high = y_low - pad, y_high + pad
    left, right, top, bottom = MARGIN["left"], width - MARGIN["right"], MARGIN["top"], height - MARGIN["bottom"]

    def px(x: float) -> float:
        return left + (right - left) * ((x - x_low) / (x_high - x_low) if x_high > x_low else 0.5)

    def py(y: float) -> float:
        return bottom - (bottom - top) * (y - y_low) / (y_high - y_low)

    def path(xs: Sequence[float], ys: Sequence[float], css_class: str) -> str:
        points = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in zip(xs, ys, strict=True))
        return f'<polyline class="{css_class}" points="{points}"/>'

    parts = [
        f'<svg class="chart {css}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(description)}">'
    ]
    for y in nice_ticks(y_low, y_high, 6):
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{py(y):.1f}" y2="{py(y):.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{label_of(y)}</text>')
    for x in nice_ticks(x_low, x_high, max(2, width // 110)):
        anchor = "end" if px(x) > right - 14 else "middle"
        parts.append(
            f'<text class="tick" x="{px(x):.1f}" y="{bottom + 17}" text-anchor="{anchor}">{label_of(x)}</text>'
        )
    parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (top + bottom) / 2
    parts.append(
        f'<text class="axis-label" x="{(left + right) / 2:.0f}" y="{height - 4}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
        f'<text class="axis-label" x="12" y="{middle:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 12 {middle:.0f})">{escape(y_label)}</text>'
    )
    for curve in curves:
        shown = thin(curve)
        parts.append(path(shown.xs, shown.ys, f"raw {curve.css}"))
    for curve in curves:
        average = thin(Curve(curve.name, curve.xs, smooth(curve.ys, max(5, len(curve.ys) // 20))))
        parts.append(path(average.xs, average.ys, f"line {curve.css}"))
    return "".join([*parts, "</svg>"])


def bar(top1: float, top5: float, scale: float, *, css: str, description: str) -> str:
    """A horizontal bar as wide as its container: ``top1`` solid over ``top5`` pale, full at ``scale`` percent."""

    def share(value: float) -> float:
        return 100.0 * min(1.0, max(0.0, value / scale))

    return (
        f'<svg class="bar" width="100%" height="10" role="img" aria-label="{escape(description)}">'
        f'<rect class="track" width="100%" height="10" rx="2"/>'
        f'<rect class="fill pale {css}" width="{share(top5):.2f}%" height="10" rx="2"/>'
        f'<rect class="fill {css}" width="{share(top1):.2f}%" height="10" rx="2"/></svg>'
    )
