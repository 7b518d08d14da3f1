"""``python -m evaluate scaling RUN…``: how the loss falls with size, for each attention kind: L = a·N^-α (+ c).

RUN is a folder of a finished `python -m training`; a size may have several runs (seeds). N is the model's parameters
(all of them, as train.json has them), the samples seen, or the compute. c is fitted beside the plain law from four
sizes on; with fewer it could not be told from α. What the runs do not show is said below the table.

Read ``scaling_runs.py`` for what L and N are and which runs are refused, ``power_law.py`` for the fit and its
intervals, ``scaling_chart.py`` for the plot. Cost: seconds.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.atomic import write_bytes, write_text
from evaluate import scaling_chart
from evaluate.errors import RefusedError
from evaluate.power_law import ALPHAS, LEAST_SIZES_FOR_OFFSET, Fit, between, fit_power_law
from evaluate.result import command_line, versions
from evaluate.scaling_runs import (
    ALIKE,
    Point,
    has_validation,
    kinds_of,
    loss_of,
    measured,
    read_point,
    refuse_what_differs,
)

FORMAT = 1  # raised when a name changes its meaning
OVER = {"parameters": "parameters", "samples": "samples seen", "compute": "training compute, FLOPs"}


@dataclass(frozen=True)
class Curve:
    """A kind's fit in one of its two forms, and the runs it is of."""

    kind: str
    fit: Fit
    sizes: tuple[float, ...]  # a run each, as are the losses
    losses: tuple[float, ...]
    distinct: int  # sizes

    @property
    def form(self) -> str:
        """The law in symbols."""
        return "a·N^-α + c" if self.fit.offset else "a·N^-α"


def write_scaling(
    folders: Sequence[Path], over: str, output: Path | None, plot: Path | None, argv: Sequence[str] = ()
) -> str:
    """Fit the runs in ``folders``, write what is asked for, and return the table and its notes.

    Raises RefusedError: a run that cannot be read, runs that do not belong on one curve, a kind with one size, or a
    file that cannot be written.
    """
    for path in filter(None, (output, plot)):
        if path.is_dir():
            raise RefusedError(f"{path} is a folder. Give a file name.")
    if plot:
        scaling_chart.check_format(plot)
    points = [read_point(folder, over) for folder in folders]
    refuse_what_differs(points, over)
    curves = fit_kinds(points, over)
    differences = compare(curves)
    said = [note for curve in curves for note in notes_on(curve)] + notes_between(differences)
    if output:
        found = result(points, over, curves, differences, said, argv)
        write_text(output, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    if plot:
        drawn = scaling_chart.draw(shown(curves), x_label=OVER[over], y_label=measured(points))
        write_bytes(plot, scaling_chart.encode(drawn, plot))
    return "\n".join([table(curves), f"N: {OVER[over]}. L: {measured(points)}.", *said])


def size_of(point: Point, over: str) -> float:
    """N of a run."""
    return float(getattr(point, over))


def count_sizes(values: Sequence[float]) -> int:
    """Distinct values, those that differ by less than 2 % counted once."""
    ordered = sorted(values)
    return 1 + sum(b > (1 + ALIKE) * a for a, b in pairwise(ordered))


def fit_kinds(points: Sequence[Point], over: str) -> list[Curve]:
    """Each kind's plain law, and that with c where there are sizes enough. Raises RefusedError: a kind of one size."""
    curves = []
    for number, kind in enumerate(kinds_of(points)):
        own = [point for point in points if point.kind == kind]
        sizes = np.array([size_of(point, over) for point in own])
        losses, errors = np.array([loss_of(point, has_validation(points)) for point in own]).T
        distinct = count_sizes(sizes.tolist())
        if distinct < 2:
            raise RefusedError(
                f"{kind} has runs of one size alone ({sizes[0]:,.0f} {OVER[over]}); a fit takes two and means "
                "something from three on. Give runs of more sizes."
            )
        if min(losses) <= 0:
            raise RefusedError(f"{own[int(losses.argmin())].run}: its loss is {min(losses)}; a power law is positive.")
        for offset in (False, True):
            if not offset or distinct >= LEAST_SIZES_FOR_OFFSET:
                fit = fit_power_law(sizes, losses, errors, offset=offset, seed=number)
                curves.append(Curve(kind, fit, tuple(sizes.tolist()), tuple(losses.tolist()), distinct))
    return curves


def compare(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The difference in α of each two kinds, of the same form, with its interval where both noises are known."""
    return [
        {
            "kinds": [one.kind, other.kind],
            "form": one.form,
            "alpha_difference": one.fit.law.alpha - other.fit.law.alpha,
            "interval": between(one.fit.alpha_draws - other.fit.alpha_draws),
        }
        for one, other in combinations(curves, 2)
        if one.fit.offset == other.fit.offset and one.fit.has_interval and other.fit.has_interval
    ]


def notes_on(curve: Curve) -> list[str]:
    """What one curve does not show, as sentences."""
    fit, head, said = curve.fit, f"{curve.kind}, {curve.form}:", []
    if curve.distinct == 2:
        said.append(f"{head} any two sizes lie on a power law; that one holds is not shown.")
    if fit.law.a <= 0:
        said.append(f"{head} the loss does not fall with N: there is no law to read off.")
    elif not fit.has_interval:
        said.append(f"{head} as many runs as parameters, and the noise of the loss is not known: no interval.")
    elif fit.scatter is None:
        said.append(f"{head} as many runs as parameters: the interval knows the noise of the steps, not that of seeds.")
    alpha, c = fit.interval("alpha"), fit.interval("c")
    if alpha and alpha[0] <= 0 <= alpha[1]:
        said.append(f"{head} α = 0 is within its interval: that the loss depends on N is not shown.")
    if fit.offset and alpha and (alpha[0] <= ALPHAS[0] * 1.01 or alpha[1] >= ALPHAS[1] * 0.99):
        said.append(
            f"{head} α reaches the end of the range that is searched ({ALPHAS[0]:g} … {ALPHAS[1]:g}): not fixed."
        )
    if fit.offset and c and c[0] <= 0:
        said.append(f"{head} c = 0 is within its interval: that the loss levels off is not shown.")
    return said


def notes_between(differences: Sequence[dict[str, Any]]) -> list[str]:
    """Which exponents of different kinds can be told apart, and which cannot."""
    said = []
    for difference in differences:
        (one, other), (low, high) = difference["kinds"], difference["interval"]
        head = f"α of {one} minus α of {other}, {difference['form']}: {low:+.3f} … {high:+.3f}"
        apart = not low <= 0 <= high
        said.append(f"{head}: {'they differ' if apart else 'that they differ is not shown'}.")
    return said


def table(curves: Sequence[Curve]) -> str:
    """The fits for a terminal, a line each."""
    wide = max(len("kind"), *(len(curve.kind) for curve in curves))
    head = f"{'kind':<{wide}}  {'L(N)':<10}{'a':>11}{'α':>8}{'95 % interval':>18}{'c':>8}{'95 % interval':>18}"
    head += f"{'scatter':>9}{'runs':>6}{'sizes':>7}"
    lines = [head, "-" * len(head)]
    for curve in curves:
        fit = curve.fit
        level = f"{fit.law.c:>8.3f}{spelled(fit.interval('c')):>18}" if fit.offset else f"{'':>26}"
        scatter = "–" if fit.scatter is None else f"{fit.scatter:.2%}"
        lines.append(
            f"{curve.kind:<{wide}}  {curve.form:<10}{fit.law.a:>11.4g}{fit.law.alpha:>8.4f}"
            f"{spelled(fit.interval('alpha')):>18}{level}{scatter:>9}{len(curve.sizes):>6}{curve.distinct:>7}"
        )
    return "\n".join(lines)


def spelled(interval: tuple[float, float] | None) -> str:
    """An interval's ends, or a dash."""
    return "–" if interval is None else f"{interval[0]:.4f}…{interval[1]:.4f}"


def shown(curves: Sequence[Curve]) -> list[scaling_chart.Series]:
    """What is drawn: each kind's runs and its plain law, over all sizes of any kind."""
    plain = [curve for curve in curves if not curve.fit.offset]
    low, high = min(min(curve.sizes) for curve in plain), max(max(curve.sizes) for curve in plain)
    xs = np.geomspace(low, high, 60)
    return [
        scaling_chart.Series(
            name=f"{curve.kind}: α = {curve.fit.law.alpha:.3f}",
            points=list(zip(curve.sizes, curve.losses, strict=True)),
            xs=xs,
            ys=curve.fit.law(xs),
            band=curve.fit.band(xs) if curve.fit.has_interval else None,
        )
        for curve in plain
    ]


def result(
    points: Sequence[Point],
    over: str,
    curves: Sequence[Curve],
    differences: Sequence[dict[str, Any]],
    said: Sequence[str],
    argv: Sequence[str],
) -> dict[str, Any]:
    """All that was found, as JSON values."""
    return {
        "format": FORMAT,
        "over": over,
        "loss": measured(points),
        "fits": [
            {
                "kind": curve.kind,
                "form": curve.form,
                **asdict(curve.fit.law),
                "alpha_interval": curve.fit.interval("alpha"),
                "c_interval": curve.fit.interval("c") if curve.fit.offset else None,
                "scatter": curve.fit.scatter,
                "runs": len(curve.sizes),
                "sizes": curve.distinct,
            }
            for curve in curves
        ],
        "differences": list(differences),
        "points": [asdict(point) for point in points],
        "notes": list(said),
        "versions": versions(),
        "command": command_line(argv),
    }
