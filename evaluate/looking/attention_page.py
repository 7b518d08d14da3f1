"""The HTML of `evaluate attention`: one self-contained page, each layer's maps over each picture. Names are escaped.

Each picture stands in the page once, as a background. A map over it is a picture of one pixel a patch, which the
browser enlarges without smoothing: patches are what attention knows.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from PIL import Image

TEMPLATE = Path(__file__).with_name("attention_template.html")
POSITIVE, NEGATIVE = (255, 122, 0), (30, 110, 255)
MOST_OPAQUE = 0.85
SIDE = 400  # pixels of a shown picture: twice its size on the page
NOT_POOLED = "This tower pools by “{pool}”: the class token's row reaches its output by way of the other tokens alone."


@dataclass(frozen=True)
class Shown:
    """One picture as the model sees it, and its layers as attention.json has them."""

    name: str
    picture: Image.Image
    layers: Sequence[Mapping[str, Any]]


def page(about: str, pool: str, shown: Sequence[Shown]) -> str:
    """The whole page. `pool` is the tower's pooling: a note says so where it does not read the class token."""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        about=escape(about),
        aspect=f"{shown[0].picture.width} / {shown[0].picture.height}",
        pool="" if pool == "tok" else escape(NOT_POOLED.format(pool=pool)),
        pictures="\n".join(section(number, one) for number, one in enumerate(shown)),
    )


def section(number: int, shown: Shown) -> str:
    """A picture's heading and its layers."""
    picture = shown.picture.copy()
    picture.thumbnail((SIDE, SIDE))
    seen = f"p{number}"
    layers = "".join(
        f"<li><h3>Layer {layer['layer']}: {escape(layer['kind'])}</h3><div class='pair'>"
        f"{figure(seen, layer['class_token'], 'class token')}{figure(seen, layer['patches'], 'mean of patches')}"
        "</div></li>"
        for layer in shown.layers
    )
    style = f"<style>.{seen} {{ background-image: url({data_uri(picture, 'JPEG')}); }}</style>"
    return f"{style}<h2>{escape(shown.name)}</h2><ul class='layers'>{layers}</ul>"


def figure(seen: str, queries: Mapping[str, Any], title: str) -> str:
    """One map over the picture, and its figures."""
    values = np.array(queries["map"])
    keys = values.size + 1
    effective = np.mean(queries["effective_keys"])
    negative = np.mean(queries["negative"])
    lines = [
        f"<b>{escape(title)}</b>: {keys * values.min():.2f} to {keys * values.max():.2f} times 1/N",
        f"effective keys {effective:.1f} of {keys}; class token {100 * queries['class_token_share']:.1f} %",
    ]
    if negative > 0:
        lines.append(f"{100 * negative:.1f} % of Σ|w| negative")
    return (
        f"<figure><div class='map'><div class='seen {seen}'></div>"
        f"<img class='heat' src='{data_uri(heat(values), 'PNG')}' alt='{escape(title)}: weight of each patch'></div>"
        f"<figcaption>{'<br>'.join(lines)}<br>{heads(queries['effective_keys'], keys)}</figcaption></figure>"
    )


def heat(values: np.ndarray) -> Image.Image:
    """Signed weights (rows, columns) as colours, opaque in proportion to their size."""
    most = max(float(np.abs(values).max()), 1e-300)
    alpha = np.round(255 * MOST_OPAQUE * np.abs(values) / most)
    colour = np.where((values < 0)[..., None], NEGATIVE, POSITIVE)
    return Image.fromarray(np.concatenate([colour, alpha[..., None]], axis=-1).astype(np.uint8), "RGBA")


def heads(effective: Sequence[float], keys: int) -> str:
    """A bar a head, as high as its effective number of keys."""
    width, height, full = 200, 34, 30
    step = width / len(effective)
    bars = "".join(
        f"<rect x='{step * number:.1f}' width='{max(step - 2, 1):.1f}' y='{height - full * value / keys:.1f}' "
        f"height='{full * value / keys:.1f}'><title>head {number + 1}: {value:.4g}</title></rect>"
        for number, value in enumerate(effective)
    )
    return (
        f"<svg class='heads' width='{width}' height='{height}' role='img' aria-label='effective keys of each head'>"
        f"{bars}<line x1='0' x2='{width}' y1='{height - full}' y2='{height - full}'/></svg>"
    )


def data_uri(picture: Image.Image, form: str) -> str:
    """A picture inside the page."""
    buffer = io.BytesIO()
    picture.save(buffer, format=form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
