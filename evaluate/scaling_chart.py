"""The plot of `evaluate scaling`: losses over N on logarithmic axes, with each kind's law and its 95 % band.

SVG text that stands alone (its colours are inside); PNG goes through resvg, which the extra `quickstart` brings.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from evaluate.charts import label_of, nice_ticks
from evaluate.errors import RefusedError

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 52
COLOURS = ("#1261a6", "#c05a11", "#6d4aa8", "#2b7a4b", "#b3352f", "#2a8f9c", "#8a6d1c", "#5b6470")
STYLE = (
    "text{font:13px sans-serif;fill:#3c434b}.grid{stroke:#dddfe0}.axis{stroke:#5b6470}"
    ".law{fill:none;stroke-width:2}.band{opacity:.14}"
)


@dataclass(frozen=True)
class Series:
    """One kind: its runs and its curve."""

    name: str
    points: Sequence[tuple[float, float]]  # (N, loss) of each run
    xs: NDArray[np.float64]  # ascending; where the curve is drawn
    ys: NDArray[np.float64]
    band: tuple[NDArray[np.float64], NDArray[np.float64]] | None  # low and high at each of xs


def check_format(path: Path) -> None:
    """Raise RefusedError for a file type that cannot be written here."""
    if path.suffix not in (".svg", ".png"):
        raise RefusedError(f"--plot {path}: the name must end in .svg or .png.")
    if path.suffix == ".png":
        try:
            probe = rasterise(
                '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><text y="16">N</text></svg>'
            )
        except ImportError:
            raise RefusedError(f"--plot {path}: PNG takes resvg-py (pip install resvg-py). Or give a .svg.") from None
        if Image.open(io.BytesIO(probe)).convert("L").getextrema() == (255, 255):
            raise RefusedError(f"--plot {path}: this machine has no fonts to draw the labels with. Give a .svg.")


def encode(svg: str, path: Path) -> bytes:
    """The chart as the bytes of a file of that name."""
    return rasterise(svg) if path.suffix == ".png" else svg.encode()


def rasterise(svg: str) -> bytes:
    """PNG on white, at twice the size. Raises ImportError where resvg-py is not installed."""
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, background="#ffffff", zoom=2))


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from low to high; where these are fewer than three, evenly spaced round values."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    if len(ticks) > 12:
        ticks = [10.0**p for p in powers if low <= 10.0**p <= high]
    return ticks if len(ticks) >= 3 else nice_ticks(low, high, 5)


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From a value to pixels on a logarithmic axis; what is far outside stays near, so that any band can be drawn."""

    def pixels(value: float) -> float:
        share = math.log(max(value, 1e-300) / low) / math.log(high / low)
        return start + (end - start) * min(max(share, -0.5), 1.5)

    return pixels


def draw(series: Sequence[Series], *, x_label: str, y_label: str) -> str:
    """One ``<svg>`` with at least one series; positive values alone."""
    sizes = [x for one in series for x, _ in one.points]
    losses = [y for one in series for _, y in one.points]
    (x_low, x_high), (y_low, y_high) = padded(sizes, 0.08), padded(losses, 0.25)
    px = scale(x_low, x_high, LEFT, WIDTH - RIGHT)
    py = scale(y_low, y_high, HEIGHT - BOTTOM, TOP)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(f"{y_label} over {x_label}")}"><style>{STYLE}</style>'
        f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/></clipPath>'
    ]
    for y in log_ticks(y_low, y_high):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{py(y):.1f}" y2="{py(y):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{label_of(y)}</text>')
    for x in log_ticks(x_low, x_high):
        parts.append(f'<line class="grid" x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{px(x):.1f}" y="{bottom + 18}" text-anchor="middle">{label(x)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">'
        f"{escape(y_label)}</text>"
    )
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<g clip-path="url(#inside)">{curve(one, colour, px, py)}</g>')
        parts += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="4" fill="{colour}"/>' for x, y in one.points]
        y = TOP + 18 + 19 * number
        parts.append(f'<circle cx="{right - 12}" cy="{y - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{right - 22}" y="{y}" text-anchor="end">{escape(one.name)}</text>')
    return "".join([*parts, "</svg>\n"])


def curve(one: Series, colour: str, px: Callable[[float], float], py: Callable[[float], float]) -> str:
    """A law's line over its band."""

    def line(xs: Sequence[float], ys: Sequence[float]) -> str:
        return " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in zip(xs, ys, strict=True))

    xs, ys = one.xs.tolist(), one.ys.tolist()
    band = ""
    if one.band:
        around = line(xs + xs[::-1], one.band[0].tolist() + one.band[1].tolist()[::-1])
        band = f'<polygon class="band" fill="{colour}" points="{around}"/>'
    return f'{band}<polyline class="law" stroke="{colour}" points="{line(xs, ys)}"/>'


def padded(values: Sequence[float], share: float) -> tuple[float, float]:
    """The least and the largest value with a share of their distance more at both ends, in logs; never one point."""
    low, high = min(values), max(values)
    more = math.exp(share * math.log(high / low)) if high > low else 1.1
    return low / more, high * more


def label(value: float) -> str:
    """A tick's text, in powers of ten where units end."""
    return label_of(value) if value < 1e12 else f"{value:.0e}".replace("e+", "e")
