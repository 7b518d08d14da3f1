"""The fit against exact laws, its interval against Student's, and its coverage on drawn data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluate.power_law import PowerLaw, fit_power_law

SIZES = np.array([2e7, 6e7, 1.5e8, 4e8, 1e9])
NOTHING = np.zeros(5)


@given(st.floats(0.1, 1e4), st.floats(-0.5, 1.5))
def test_an_exact_law_is_found_exactly(a: float, alpha: float) -> None:
    fit = fit_power_law(SIZES, PowerLaw(a, alpha)(SIZES), NOTHING, offset=False)
    assert fit.law.alpha == pytest.approx(alpha, abs=1e-9)
    assert fit.law.a == pytest.approx(a, rel=1e-6)
    assert fit.law.c == 0


@pytest.mark.parametrize(("a", "alpha", "c"), [(30.0, 0.2, 0.8), (200.0, 0.35, 1.5), (5.0, 0.1, 0.05), (9e3, 0.6, 2.0)])
def test_an_exact_law_with_c_is_found(a: float, alpha: float, c: float) -> None:
    fit = fit_power_law(SIZES, PowerLaw(a, alpha, c)(SIZES), NOTHING, offset=True)
    assert (fit.law.a, fit.law.alpha, fit.law.c) == pytest.approx((a, alpha, c), rel=2e-3)


def test_c_is_never_negative() -> None:
    losses = PowerLaw(30.0, 0.2)(SIZES) * np.array([0.99, 1.01, 1.01, 1.0, 0.98])  # falls faster than a power law
    fit = fit_power_law(SIZES, losses, NOTHING, offset=True)
    assert fit.law.c == 0
    assert fit.c_draws.min() == 0


def test_the_unit_of_size_does_not_matter() -> None:
    losses = np.array([3.1, 2.6, 2.2, 1.9, 1.75])
    for offset in (False, True):
        small, large = (fit_power_law(SIZES * k, losses, NOTHING, offset=offset) for k in (1e-6, 1e9))
        assert small.law.alpha == pytest.approx(large.law.alpha, rel=1e-6)
        assert small.interval("alpha") == pytest.approx(large.interval("alpha"), rel=1e-6)
        assert small.law(SIZES * 1e-6) == pytest.approx(large.law(SIZES * 1e9))


def test_the_interval_is_least_squares_own() -> None:
    """Without c: alpha ± t · s / √Sxx, with t(3) = 3.182."""
    losses = PowerLaw(30.0, 0.2)(SIZES) * np.exp([0.01, -0.02, 0.005, 0.015, -0.01])
    fit = fit_power_law(SIZES, losses, NOTHING, offset=False)
    x = np.log(SIZES)
    slope, level = np.polyfit(x, np.log(losses), 1)
    s = np.sqrt(((np.log(losses) - slope * x - level) ** 2).sum() / 3)
    half = 3.182 * s / np.sqrt(((x - x.mean()) ** 2).sum())
    assert fit.scatter == pytest.approx(s)
    assert fit.interval("alpha") == pytest.approx((-slope - half, -slope + half), abs=0.1 * half)


def test_known_noise_is_a_floor() -> None:
    losses = PowerLaw(30.0, 0.2)(SIZES)
    noisy = fit_power_law(SIZES, losses, 0.02 * losses, offset=False).interval("alpha")
    assert noisy is not None
    x = np.log(SIZES)
    assert np.subtract(*noisy[::-1]) == pytest.approx(2 * 1.96 * 0.02 / np.sqrt(((x - x.mean()) ** 2).sum()), rel=0.1)


def test_as_many_runs_as_parameters() -> None:
    two = fit_power_law(SIZES[:2], np.array([3.0, 2.5]), np.zeros(2), offset=False)
    assert (two.scatter, two.interval("alpha")) == (None, None)
    known = fit_power_law(SIZES[:2], np.array([3.0, 2.5]), np.full(2, 0.01), offset=False)
    assert known.scatter is None
    assert known.interval("alpha") is not None


@pytest.mark.parametrize(("offset", "times", "least"), [(False, 200, 0.9), (True, 12, 0.75)])
def test_intervals_hold_the_truth(offset: bool, times: int, least: float) -> None:
    """Two seeds a size, 1 % apart: the interval of α holds the true one about as often as it says."""
    random = np.random.default_rng(0)
    law, sizes = PowerLaw(300.0, 0.35, 1.0 if offset else 0.0), np.repeat(SIZES, 2)
    hits = 0
    for _ in range(times):
        losses = law(sizes) * np.exp(0.01 * random.standard_normal(10))
        found = fit_power_law(sizes, losses, np.zeros(10), offset=offset).interval("alpha")
        hits += found is not None and found[0] <= law.alpha <= found[1]
    assert hits >= least * times


def test_repeating_gives_the_same() -> None:
    losses = np.array([3.1, 2.6, 2.2, 1.9, 1.75])
    one, other = (fit_power_law(SIZES, losses, NOTHING, offset=False) for _ in range(2))
    assert (one.alpha_draws == other.alpha_draws).all()


@pytest.mark.parametrize(
    ("sizes", "losses", "offset", "message"),
    [
        ([1e6, 1e6], [2.0, 1.9], False, "needs 2 sizes, found 1"),
        ([1e6, 2e6, 3e6], [2.0, 1.9, 1.8], True, "needs 4 sizes, found 3"),
        ([1e6, 2e6], [2.0, 0.0], False, "positive and finite"),
        ([1e6, np.nan], [2.0, 1.0], False, "positive and finite"),
    ],
)
def test_what_cannot_be_fitted_raises(sizes: list[float], losses: list[float], offset: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_power_law(np.array(sizes), np.array(losses), np.zeros(len(sizes)), offset=offset)
