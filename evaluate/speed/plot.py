"""The plot of `evaluate speed`: how many times faster than softmax, over the number of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluate import scaling_chart
from evaluate.result import PLOT


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """One ``<svg>`` of forward and backward together; a curve for each kind and dtype."""
    series = []
    for kind, dtype in dict.fromkeys((row["kind"], row["dtype"]) for row in rows):
        points = [
            (float(row["n"]), float(row["ratio_to_sdpa"]))
            for row in rows
            if (row["kind"], row["dtype"], row["pass"]) == (kind, dtype, "forward_backward")
            and row["ratio_to_sdpa"] is not None
        ]
        xs, ys = np.array(points, dtype=np.float64).reshape(-1, 2).T
        series.append(scaling_chart.Series(f"{kind}, {dtype}", points, xs, ys, None))
    drawn = scaling_chart.draw(series, x_label="tokens", y_label="times softmax's speed, forward and backward")
    return f"{drawn}\n{PLOT.decode()}\n"
