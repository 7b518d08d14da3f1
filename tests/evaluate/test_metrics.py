"""Figures against brute force and published values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluate import metrics


@st.composite
def scored(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores without ties in a row, float32 (N, C), and labels (N,)."""
    n, c = draw(st.integers(1, 8)), draw(st.integers(1, 9))
    rows = [draw(st.permutations(range(c))) for _ in range(n)]
    labels = draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n))
    return torch.tensor(rows, dtype=torch.float32) * 0.37 - 1.1, torch.tensor(labels)


@settings(max_examples=60)
@given(scored(), st.integers(1, 7))
def test_top_k_equals_a_full_sort(case: tuple[torch.Tensor, torch.Tensor], k: int) -> None:
    logits, labels = case
    sorted_NC = np.argsort(-logits.numpy(), axis=1)[:, :k]
    guesses = metrics.top_k(logits, k)
    np.testing.assert_array_equal(guesses.numpy(), sorted_NC)
    expected = [label in row for label, row in zip(labels.tolist(), sorted_NC.tolist(), strict=True)]
    assert metrics.hits(guesses, labels, k).tolist() == expected


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30))
def test_mean_per_class_equals_a_loop_over_classes(rows: list[tuple[int, bool]]) -> None:
    labels, right = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])
    shares = []
    for label in {r[0] for r in rows}:
        of_class = [r[1] for r in rows if r[0] == label]
        shares.append(sum(of_class) / len(of_class))
    assert metrics.mean_per_class(right, labels) == pytest.approx(100 * sum(shares) / len(shares))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_not_finite_raise(value: float) -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = value
    with pytest.raises(ValueError, match=r"1 of 3 rows .*\[1\]"):
        metrics.top_k(logits, 2)


def test_ties_with_the_right_class_are_found() -> None:
    logits = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [2.0, 1.0, 1.0]])
    assert metrics.tied_at_top(logits, torch.tensor([0, 2, 1])).tolist() == [True, False, False]


# R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Statist. Med. 17 (1998), table I,
# method 3.
@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(81, 263, 25.53, 36.62), (15, 148, 6.24, 16.05), (0, 20, 0.0, 16.11), (1, 29, 0.61, 17.18)],
)
def test_wilson_interval_equals_published_values(right: int, n: int, low: float, high: float) -> None:
    assert metrics.wilson_interval(right, n) == pytest.approx((low, high), abs=0.005)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_holds_the_share_and_mirrors(case: tuple[int, int]) -> None:
    right, n = case
    low, high = metrics.wilson_interval(right, n)
    assert 0 <= low <= 100 * right / n <= high <= 100
    assert metrics.wilson_interval(n - right, n) == pytest.approx((100 - high, 100 - low))


def test_no_pictures_give_no_figure() -> None:
    nothing = torch.tensor([], dtype=torch.bool)
    for call in (
        lambda: metrics.percent(nothing),
        lambda: metrics.mean_per_class(nothing, torch.tensor([], dtype=torch.int64)),
        lambda: metrics.wilson_interval(0, 0),
    ):
        with pytest.raises(ValueError, match=r"no pictures|n > 0"):
            call()


def test_mean_per_class_interval_is_the_bootstraps() -> None:
    """The same as drawing pictures one by one; wider for fewer pictures; nothing where all are right."""
    generator = np.random.default_rng(1)
    labels = torch.from_numpy(generator.integers(0, 6, 300))
    hits = torch.from_numpy(generator.random(300) < 0.2 + 0.1 * labels.numpy())
    means = []
    for _ in range(2000):
        drawn = torch.from_numpy(generator.integers(0, 300, 300))
        means.append(metrics.mean_per_class(hits[drawn], labels[drawn]))
    low, high = metrics.mean_per_class_interval(hits, labels)
    assert (low, high) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=1.0)
    assert low < metrics.mean_per_class(hits, labels) < high
    assert metrics.mean_per_class_interval(hits, labels) == (low, high), "seeded"
    few = metrics.mean_per_class_interval(hits[:60], labels[:60])
    assert few[1] - few[0] > 1.5 * (high - low)
    assert metrics.mean_per_class_interval(torch.ones(5, dtype=torch.bool), torch.arange(5)) == (100.0, 100.0)
    with pytest.raises(ValueError, match="no pictures"):
        metrics.mean_per_class_interval(hits[:0], labels[:0])
