"""Fits L = a·N^-α and L = a·N^-α + c to a few losses, with bootstrap intervals; numpy alone, exact and deterministic.

    fit = fit_power_law(sizes, losses, errors, offset=False)
    fit.law.alpha, fit.interval("alpha")

Errors are relative (log L), as losses of different sizes deserve equal say. Without c that is a straight line in logs:
ordinary least squares. With c the curve is linear in a and c for each α, so α alone is searched, on a grid that is
narrowed until it no longer matters; c is at least 0.

Intervals (a parametric bootstrap): the fit is repeated on 2,000 sets of losses drawn around the fitted curve. They
scatter as the runs scatter about it (seeds, noise and the curve's own failure, which few runs cannot tell apart), with
Student's allowance for how few they are, and never less than the noise of the losses themselves. Without c this gives
least squares' own t interval.
Cost: about 1 ms without c, half a second with it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 2000
LEAST_SIZES_FOR_OFFSET = 4
ALPHAS = (0.001, 4.0)  # searched with c; exponents of losses that were ever published lie well inside
FAR = 5.0  # of log L: no drawn loss is farther off the curve than e^5 times
LEVELS = (0.025, 0.975)


@dataclass(frozen=True)
class PowerLaw:
    """L(N) = a·N^-α + c; the three are numbers, or arrays of as many laws."""

    a: float
    alpha: float
    c: float = 0.0

    def __call__(self, sizes: Floats) -> Floats:
        """The losses at ``sizes``."""
        return self.a * sizes**-self.alpha + self.c


@dataclass(frozen=True)
class Fit:
    """A fitted law, the laws of the drawn sets, and how well the runs are known."""

    law: PowerLaw
    offset: bool
    scatter: float | None  # relative, of runs about the curve; None where there are as many parameters as runs
    a_draws: Floats  # (DRAWS,) each; without any knowledge of noise all draws equal the law
    alpha_draws: Floats
    c_draws: Floats

    @property
    def has_interval(self) -> bool:
        """Whether anything is known of the noise."""
        return bool(np.ptp(self.alpha_draws) > 0)

    def interval(self, name: str) -> tuple[float, float] | None:
        """The 95 % interval of ``alpha`` or ``c``; None where nothing is known of the noise."""
        draws = {"alpha": self.alpha_draws, "c": self.c_draws}[name]
        return between(draws) if self.has_interval else None

    def band(self, sizes: Floats) -> tuple[Floats, Floats]:
        """The 95 % band of the curve at each of ``sizes``."""
        with np.errstate(over="ignore"):
            losses = self.a_draws[:, None] * sizes ** -self.alpha_draws[:, None] + self.c_draws[:, None]
        low, high = np.quantile(losses, LEVELS, axis=0)
        return low, high


def between(draws: Floats) -> tuple[float, float]:
    """The 95 % percentile interval of draws."""
    low, high = np.quantile(draws, LEVELS)
    return float(low), float(high)


def fit_power_law(sizes: Floats, losses: Floats, errors: Floats, *, offset: bool, seed: int = 0) -> Fit:
    """Fit one curve to runs.

    Args:
        sizes: (n,) positive, of at least two distinct values, four with ``offset``; equal sizes are runs of one size.
        losses: (n,) positive.
        errors: (n,) standard errors of the losses, 0 where unknown.
        offset: fit c too.
        seed: of the draws. Kinds that are to be compared get different ones.

    Raises ValueError: too few sizes, or a value that is not positive and finite.
    """
    sizes, losses, errors = (np.asarray(values, dtype=np.float64) for values in (sizes, losses, errors))
    positive = np.concatenate([sizes, losses])
    if not (np.isfinite(positive).all() and (positive > 0).all()):
        raise ValueError("sizes and losses must be positive and finite")
    least = LEAST_SIZES_FOR_OFFSET if offset else 2
    if len(np.unique(sizes)) < least:
        raise ValueError(f"needs {least} sizes, found {len(np.unique(sizes))}")
    middle = np.log(sizes).mean()  # N is counted from there, which keeps a's and α's errors apart
    x = np.log(sizes) - middle
    solve = _with_offset if offset else _straight
    a, alpha, c = (float(v[0]) for v in solve(x, np.log(losses)[None]))
    fitted = np.log(a * np.exp(-alpha * x) + c)
    freedom = len(x) - (3 if offset else 2)
    scatter = float(np.sqrt(((np.log(losses) - fitted) ** 2).sum() / freedom)) if freedom > 0 else None

    random = np.random.default_rng(seed)
    spread = np.broadcast_to(errors / losses, (DRAWS, len(x)))
    if scatter is not None:
        # The scatter of so few runs is itself uncertain: Student's allowance, as a chi-square draw a set.
        drawn = scatter / np.sqrt(random.chisquare(freedom, DRAWS) / freedom)
        spread = np.maximum(spread, drawn[:, None])
    noise = np.clip(spread * random.standard_normal((DRAWS, len(x))), -FAR, FAR)
    a_draws, alpha_draws, c_draws = solve(x, fitted + noise)
    with np.errstate(over="ignore"):
        law = PowerLaw(float(a * np.exp(alpha * middle)), alpha, c)
        return Fit(law, offset, scatter, a_draws * np.exp(alpha_draws * middle), alpha_draws, c_draws)


def _straight(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Least-squares lines y = log a − α·x for each row of y (m, n), with x (n,) of mean 0: a, α, c = 0, (m,) each."""
    alpha = -(y @ x) / (x @ x)
    return np.exp(y.mean(axis=1)), alpha, np.zeros(len(y))


def _with_offset(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """a, α, c (m,) that minimise Σ((a·e^(-αx) + c)/L − 1)² for each row of y = log L (m, n); a and c at least 0."""
    low, high = np.full(len(y), ALPHAS[0]), np.full(len(y), ALPHAS[1])
    points = np.linspace(0.0, 1.0, 41)
    weights = np.exp(-y)
    for _ in range(8):  # each round narrows the range twentyfold around the best point
        alphas = low[:, None] + (high - low)[:, None] * points
        squares, a, c = _for_alphas(x, weights, alphas)
        best = squares.argmin(axis=1)[:, None]
        found = tuple(np.take_along_axis(values, best, axis=1)[:, 0] for values in (a, alphas, c))
        step = (high - low) * (points[1] - points[0])
        low, high = np.maximum(found[1] - step, ALPHAS[0]), np.minimum(found[1] + step, ALPHAS[1])
    return found[0], found[1], found[2]


def _for_alphas(x: Floats, weights: Floats, alphas: Floats) -> tuple[Floats, Floats, Floats]:
    """For each row of weights 1/L (m, n) and each of its exponents (m, k): the least sum of squares, its a, its c."""
    curve = np.exp(-alphas[:, :, None] * x) * weights[:, None]  # (m, k, n)
    flat = weights[:, None]  # (m, 1, n)
    cc, ac, aa = (flat**2).sum(-1), (flat * curve).sum(-1), (curve**2).sum(-1)
    c1, a1 = flat.sum(-1), curve.sum(-1)
    determinant = cc * aa - ac**2
    a, c = (cc * a1 - ac * c1) / determinant, (aa * c1 - ac * a1) / determinant
    a, c = np.where(c < 0, a1 / aa, a), np.maximum(c, 0)  # the best point of the edge c = 0 ...
    a, c = np.maximum(a, 0), np.where(a < 0, c1 / cc, c)  # ... and of the edge a = 0
    squares = ((a[:, :, None] * curve + c[:, :, None] * flat - 1) ** 2).sum(-1)
    return squares, a, c
