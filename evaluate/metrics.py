"""Figures from scores: top-k, mean per class, Wilson's interval. Pure functions, no model, no files.

Legend: N pictures, C classes, K guesses a picture. Percentages are in 0..100.
"""

import math

import numpy as np
import torch
from torch import Tensor

Z_95 = 1.959963984540054  # the 97.5 % point of the normal distribution
RESAMPLES = 1000


def top_k(logits_NC: Tensor, k: int) -> Tensor:
    """The ``min(k, C)`` best classes a picture, best first: int64 (N, K).

    This is ``torch.topk``, as in ``open_clip_train.zero_shot.accuracy``, so that predictions agree one by one; which of
    several exactly equal scores comes first is torch's choice (see :func:`tied_at_top`).

    Raises ValueError where a score is not finite: NaN sorts as the largest number and would be a silent prediction.
    """
    if not torch.isfinite(logits_NC).all():
        rows = (~torch.isfinite(logits_NC)).any(dim=1).nonzero().flatten().tolist()
        raise ValueError(f"{len(rows)} of {len(logits_NC)} rows of scores hold NaN or infinity; first: {rows[:5]}")
    return logits_NC.topk(min(k, logits_NC.shape[1]), dim=1, largest=True, sorted=True).indices


def hits(guesses_NK: Tensor, labels_N: Tensor, k: int) -> Tensor:
    """Whether the label is among the first ``k`` guesses: bool (N,). With fewer than ``k`` classes, always."""
    return (guesses_NK[:, :k] == labels_N[:, None]).any(dim=1)


def tied_at_top(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Pictures whose true class has the best score but shares it exactly with another class: bool (N,).

    Their top-1 hit is a coin toss: classes of the same name give such ties, and so does a collapsed model.
    """
    best_N = logits_NC.max(dim=1).values
    shared_N = (logits_NC == best_N[:, None]).sum(dim=1) > 1
    return shared_N & (logits_NC.gather(1, labels_N[:, None]).squeeze(1) == best_N)


def percent(hit_N: Tensor) -> float:
    """Share of true entries in percent. Raises ValueError for none at all: there is no such figure."""
    if len(hit_N) == 0:
        raise ValueError("no pictures, so no percentage")
    return 100.0 * int(hit_N.sum()) / len(hit_N)


def mean_per_class(hit_N: Tensor, labels_N: Tensor) -> float:
    """Mean over the classes that have a picture of their share of hits, in percent (balanced accuracy)."""
    if len(hit_N) == 0:
        raise ValueError("no pictures, so no mean over classes")
    right_C, total_C = per_class(hit_N, labels_N, int(labels_N.max()) + 1)
    seen_C = total_C > 0
    return 100.0 * float((right_C[seen_C].double() / total_C[seen_C].double()).mean())


def per_class(hit_N: Tensor, labels_N: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Hits and pictures of each class: int64 (C,) each."""
    return torch.bincount(labels_N[hit_N], minlength=classes), torch.bincount(labels_N, minlength=classes)


def mean_per_class_interval(hit_N: Tensor, labels_N: Tensor, seed: int = 0) -> tuple[float, float]:
    """Bootstrap 95 % interval of the mean per class, in percent: the pictures are drawn again `RESAMPLES` times.

    How often each class was drawn, right and wrong, is one multinomial draw, so the cost does not grow with N. In a
    resample the mean is over the classes it holds, as the figure's is.
    """
    if len(hit_N) == 0:
        raise ValueError("no pictures, so no interval")
    right_C, total_C = (counts.numpy() for counts in per_class(hit_N, labels_N, int(labels_N.max()) + 1))
    cells = np.concatenate([right_C, total_C - right_C]).astype(np.float64)
    filled = cells > 0  # the generator's last category takes up what rounding leaves over
    generator, means = np.random.default_rng(seed), np.empty(RESAMPLES)
    drawn = np.zeros(len(cells))
    for turn in range(RESAMPLES):
        drawn[filled] = generator.multinomial(len(hit_N), cells[filled] / len(hit_N))
        right, wrong = np.split(drawn, 2)
        total = right + wrong
        means[turn] = (right[total > 0] / total[total > 0]).mean()
    low, high = np.percentile(means, [2.5, 97.5])
    return 100.0 * float(low), 100.0 * float(high)


def wilson_interval(right: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a share, in percent; ``z`` is the normal quantile (1.96 for 95 %).

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    Unlike the plain normal interval it stays inside 0..100 and is honest for 0 hits.
    """
    if n <= 0 or not 0 <= right <= n:
        raise ValueError(f"an interval needs 0 <= right <= n and n > 0, found right={right}, n={n}")
    p = right / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At the ends the exact value is 0 or 1; rounding must not push it past.
    low = 0.0 if right == 0 else max(0.0, middle - half)
    high = 1.0 if right == n else min(1.0, middle + half)
    return 100.0 * low, 100.0 * high
