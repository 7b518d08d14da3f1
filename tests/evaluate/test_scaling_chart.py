"""The plot is well-formed, escapes names, keeps its points inside, and its PNG is a picture."""

import io
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from evaluate import scaling_chart
from evaluate.errors import RefusedError
from evaluate.scaling_chart import Series, check_format, draw, encode, log_ticks

XS = np.geomspace(1e7, 1e9, 20)
NAMED = Series("<eq7>: α = 0.1", [(1e7, 3.0), (1e8, 2.5), (1e9, 2.0)], XS, 3.0 * (XS / 1e7) ** -0.09, None)


def test_points_are_inside_and_names_escaped() -> None:
    band = (NAMED.ys * 0.0, NAMED.ys * np.inf)  # as wide as two runs make it
    other = Series("two", [(1e8, 2.2)], XS, NAMED.ys, band)
    root = ElementTree.fromstring(draw([NAMED, other], x_label="N & more", y_label="loss"))
    texts = [text.text for text in root.iterfind(".//{*}text")]
    assert {"<eq7>: α = 0.1", "two", "N & more", "loss", "10M", "100M", "1G"} <= set(texts)
    circles = [(float(c.get("cx") or "nan"), float(c.get("cy") or "nan")) for c in root.iterfind(".//{*}circle")]
    assert len(circles) == 4 + 2
    assert all(0 < x < scaling_chart.WIDTH and 0 < y < scaling_chart.HEIGHT for x, y in circles)
    assert len(list(root.iterfind(".//{*}polygon"))) == 1


def test_runs_of_one_loss_are_drawn() -> None:
    flat = Series("flat", [(1e7, 2.0), (1e9, 2.0)], XS, np.full(20, 2.0), None)
    assert "nan" not in draw([flat], x_label="N", y_label="L")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (8e6, 2.1e8, [1e7, 2e7, 5e7, 1e8, 2e8]),
        (1.9, 2.6, [2.0, 2.2, 2.4, 2.6]),
        (0.9, 1.1e6, [10.0**p for p in range(7)]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_png_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    try:
        check_format(tmp_path / "a.png")
    except RefusedError as error:
        pytest.skip(str(error))
    picture = Image.open(io.BytesIO(encode(draw([NAMED], x_label="N", y_label="L"), tmp_path / "a.png")))
    assert picture.size == (2 * scaling_chart.WIDTH, 2 * scaling_chart.HEIGHT)
    assert picture.convert("L").getextrema() != (255, 255)


def test_what_png_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(svg: str) -> bytes:
        raise ImportError

    def blank(svg: str) -> bytes:
        buffer = io.BytesIO()
        Image.new("RGB", (4, 4), "white").save(buffer, "PNG")
        return buffer.getvalue()

    for rasterise, message in ((missing, "PNG takes resvg-py"), (blank, "no fonts")):
        monkeypatch.setattr(scaling_chart, "rasterise", rasterise)
        with pytest.raises(RefusedError, match=message):
            check_format(Path("a.png"))
