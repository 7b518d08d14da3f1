"""Charts: well-formed SVG, round ticks inside the range, honest smoothing."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluate import charts
from evaluate.charts import Curve, bar, line_chart, nice_ticks, smooth, thin

SIZE = {"width": 400, "height": 200, "x_label": "step", "y_label": "loss"}


@given(
    st.floats(-1e6, 1e6).flatmap(lambda low: st.tuples(st.just(low), st.floats(1e-3, 1e6).map(lambda d: low + d))),
    st.integers(2, 9),
)
def test_ticks_are_inside_round_and_few(span: tuple[float, float], most: int) -> None:
    low, high = span
    ticks = nice_ticks(low, high, most)
    slack = 1e-6 * (high - low)
    assert len(ticks) <= most + 1
    assert all(low - slack <= t <= high + slack for t in ticks)
    if len(ticks) > 1:
        step = ticks[1] - ticks[0]
        digit = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert min(abs(digit - d) for d in (1, 2, 5, 10)) < 1e-3


def test_ticks_of_a_point() -> None:
    assert nice_ticks(3.0, 3.0, 5) == [3.0]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.integers(1, 15))
def test_smoothing_keeps_length_ends_and_range(ys: list[float], window: int) -> None:
    out = smooth(ys, window)
    assert len(out) == len(ys)
    assert (out[0], out[-1]) == pytest.approx((ys[0], ys[-1]), abs=1e-6)
    assert min(ys) - 1e-6 <= min(out)
    assert max(out) <= max(ys) + 1e-6


def test_smoothing_leaves_a_straight_line() -> None:
    line = [2.0 * i for i in range(20)]
    assert smooth(line, 7) == pytest.approx(line)


def test_thinning_keeps_values_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "MOST_POINTS", 10)
    curve = Curve("a", list(range(95)), [float(-i) for i in range(95)])
    out = thin(curve)
    assert len(out.xs) <= 12
    assert out.xs[-1] == 94
    assert all(y == -x for x, y in zip(out.xs, out.ys, strict=True))


def test_line_chart_is_svg_with_a_raw_and_a_smooth_line_a_curve() -> None:
    curves = [Curve("<one>", [1, 2, 3], [3.0, 2.0, 1.0]), Curve("two", [1, 5], [2.0, 0.5], "s1")]
    svg = line_chart(curves, description='loss of "<one>" & two', **SIZE)  # type: ignore[arg-type]
    root = ElementTree.fromstring(svg)
    assert [line.get("class") for line in root.iter("polyline")] == ["raw s0", "raw s1", "line s0", "line s1"]
    assert root.get("aria-label") == 'loss of "<one>" & two'
    texts = [text.text for text in root.iter("text")]
    assert {"step", "loss", "2"} <= set(texts)
    for line in root.iter("polyline"):
        for point in (line.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 400
            assert 0 <= y <= 200


@pytest.mark.parametrize("points", [([1.0], [2.0]), ([1.0, 2.0], [2.0, 2.0])])
def test_flat_and_single_point_curves_are_drawn(points: tuple[list[float], list[float]]) -> None:
    svg = line_chart([Curve("a", *points)], description="d", **SIZE)  # type: ignore[arg-type]
    assert "nan" not in svg
    ElementTree.fromstring(svg)


def test_nothing_to_draw_raises() -> None:
    with pytest.raises(ValueError, match="no curve"):
        line_chart([Curve("a", [], [])], description="d", **SIZE)  # type: ignore[arg-type]


def test_bar_widths_are_shares_of_the_scale() -> None:
    root = ElementTree.fromstring(bar(10.0, 30.0, 50.0, css="s1", description="x"))
    assert [r.get("width") for r in root.iter("rect")] == ["100%", "60.00%", "20.00%"]
    over = ElementTree.fromstring(bar(10.0, 90.0, 50.0, css="s1", description="x"))
    assert [r.get("width") for r in over.iter("rect")][1] == "100.00%"


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5"), (1500, "1.5k"), (2e6, "2M"), (0, "0"), (120, "120")])
def test_tick_labels(value: float, text: str) -> None:
    assert charts.label_of(value) == text
