"""Linear probe and nearest neighbours: what frozen picture features are worth to a plain classifier.

    train, test = labelled_features(model, preprocess, train_pictures, ...), labelled_features(..., pictures, ...)
    figures = {"linear": linear_probe(train, test, seed=0), "knn": nearest_neighbours(train, test)}

Features are the model's image embeddings, after the projection and of unit length, as CLIP_benchmark takes them.
The linear probe is scikit-learn's multinomial logistic regression with L-BFGS of up to 1000 iterations, as in the CLIP
paper (arXiv 2103.00020, appendix A.3). Its C is the one of `GRID`, one value a decade, that is best on a fifth of the
training pictures; with it, all of them are fitted anew. Neighbours are by cosine, one vote each.

Cost: one forward pass a picture. Each of the ten fits takes 2 x N x D x C multiply-adds an iteration and holds N x C
float32 a few times over.

Legend: N pictures, D embedding width, C classes.
"""

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from data_prep.shards import decode_image
from evaluate import metrics
from evaluate.data.pictures import Pictures, Place
from evaluate.encode import MOST_BAD, BadImage, Preprocess, picture_rows
from evaluate.errors import RefusedError

# A decade a step, rising; the CLIP paper's range, 1e-6 to 1e6, is for features some ten times as long.
GRID = tuple(10.0**exponent for exponent in range(-2, 7))
ITERATIONS = 1000
# Of the mean loss's gradient, which with thousands of classes is below scikit-learn's own 1e-4 before the first step.
TOLERANCE = 1e-8
VALIDATION = 0.2
NEIGHBOURS = (1, 5, 20)
MOST_SHARED = 0.1  # of the test pictures may be training pictures; some sets have a few per cent of their own making
TOP_K = 5


@dataclass(frozen=True)
class Features:
    """Readable pictures as unit features (N, D) float32 with class indices (N,) int64, and the unreadable ones."""

    rows: np.ndarray
    labels: np.ndarray
    bad: list[BadImage]


def labelled_features(
    model: nn.Module,
    preprocess: Preprocess,
    pictures: Pictures,
    *,
    batch_size: int,
    device: torch.device,
    threads: int,
    most_bad: float = MOST_BAD,
    advance: Callable[[int], object] = lambda count: None,
) -> Features:
    """Encode pictures. Call it on every rank at once, inside `encode.full_float32`; the same on every rank.

    Args:
        threads: how many decode pictures.
        most_bad: share of unreadable pictures above which there is no result.
        advance: told how many pictures were encoded by this rank.

    Raises:
        RefusedError: features that are not finite, or too many unreadable pictures.
    """
    rows_ND, bad, readable = picture_rows(
        lambda number: decode_image(pictures.places[number].read()),
        [(pictures.root, name) for name in pictures.names],
        preprocess,
        lambda _, pixels_BCHW: model.encode_image(pixels_BCHW.to(device), normalize=True),  # type: ignore[operator]
        batch_size=batch_size,
        threads=threads,
        most_bad=most_bad,
        advance=advance,
    )
    rows_ND = rows_ND[readable].float().cpu()
    if not rows_ND.isfinite().all():
        raise RefusedError(f"{pictures.root}: image features are NaN or infinite; the checkpoint is damaged")
    return Features(rows_ND.numpy(), np.array(pictures.labels)[readable], bad)


def shared_pictures(training: Pictures, test: Pictures) -> list[int]:
    """Numbers of the test pictures whose bytes are also a training picture of the same class.

    Only pictures of equal class and size are read: few, where they are not the same ones.
    """
    of_test: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (label, place) in enumerate(zip(test.labels, test.places, strict=True)):
        of_test[label, place.size].append(number)
    learnt: dict[tuple[int, int], set[bytes]] = defaultdict(set)
    for label, place in zip(training.labels, training.places, strict=True):
        if (label, place.size) in of_test:
            learnt[label, place.size].add(digest(place))
    return sorted(n for alike, seen in learnt.items() for n in of_test[alike] if digest(test.places[n]) in seen - {b""})


def digest(place: Place) -> bytes:
    """Hash of an encoded picture; nothing of one that cannot be read, which encoding then reports."""
    try:
        return hashlib.sha256(place.read()).digest()
    except (OSError, EOFError):
        return b""


def check_installed() -> None:
    """Raise RefusedError where scikit-learn is missing."""
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise RefusedError(
            f"the probe needs scikit-learn ({error}). Install it: pip install '.[evaluate]' in the checkout."
        ) from error


def linear_probe(train: Features, test: Features, *, seed: int) -> dict[str, Any]:
    """The figures of logistic regression and how it came about.

    Args:
        seed: of the draw of the validation pictures.

    Returns:
        what `figures_of` gives, and `c`; `grid`, top-1 in percent on the validation part by C; `validation`, how many
        pictures that part has; `iterations` of the last fit and whether it `converged`.

    Raises:
        RefusedError: too few training pictures to choose C on.
    """
    drawn = np.random.default_rng(seed).permutation(len(train.labels))
    held_out, rest = np.split(drawn, [round(VALIDATION * len(drawn))])
    if not len(held_out) or len(np.unique(train.labels[rest])) < 2:
        raise RefusedError(
            f"{len(train.labels)} training pictures of {len(np.unique(train.labels))} classes are too few for a linear "
            "probe, which sets a fifth of them aside. Give more, or a larger --limit."
        )
    grid = choose_c(train.rows[rest], train.labels[rest], train.rows[held_out], train.labels[held_out])
    best = max(grid, key=lambda c: grid[c])  # of equal ones the first, which is the smallest
    model = fitted(regression(best), train.rows, train.labels)
    scores_NC = model.decision_function(test.rows)
    if scores_NC.ndim == 1:  # of two classes it gives the second one's alone
        scores_NC = np.stack([-scores_NC, scores_NC], axis=1)
    guesses_NK = model.classes_[metrics.top_k(torch.from_numpy(scores_NC), TOP_K).numpy()]
    iterations = int(model.n_iter_.max())
    return {
        **figures_of(guesses_NK, test.labels),
        "c": best,
        "grid": {f"{c:g}": top1 for c, top1 in grid.items()},
        "validation": len(held_out),
        "iterations": iterations,
        "converged": iterations < ITERATIONS,
    }


def choose_c(
    train_ND: np.ndarray, train_N: np.ndarray, held_out_ND: np.ndarray, held_out_N: np.ndarray
) -> dict[float, float]:
    """Top-1 in percent on the pictures held out, by C; each fit begins where that of the smaller C ended."""
    model = regression(GRID[0]).set_params(warm_start=True)
    found = {}
    for c in GRID:
        fitted(model.set_params(C=c), train_ND, train_N)
        found[c] = 100.0 * float((model.predict(held_out_ND) == held_out_N).mean())
    return found


def regression(c: float) -> Any:
    """The classifier, unfitted."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=c, max_iter=ITERATIONS, tol=TOLERANCE)  # solver lbfgs, multinomial


def fitted(model: Any, rows_ND: np.ndarray, labels_N: np.ndarray) -> Any:
    """`model` after its fit, without warnings of what the result says: no convergence, few pictures a class."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The number of unique classes is greater", UserWarning)
        return model.fit(rows_ND, labels_N)


def nearest_neighbours(train: Features, test: Features) -> dict[str, dict[str, Any]]:
    """What `figures_of` gives for each k of `NEIGHBOURS` that there are training pictures for, by "k1", "k5", "k20"."""
    from sklearn.neighbors import KNeighborsClassifier

    found = {}
    for k in NEIGHBOURS:
        if k <= len(train.labels):
            # Euclidean distance sorts features of unit length as cosine does, and has scikit-learn's fast form.
            model = fitted(KNeighborsClassifier(k, algorithm="brute"), train.rows, train.labels)
            found[f"k{k}"] = figures_of(model.predict(test.rows)[:, None], test.labels)
    return found


def figures_of(guesses_NK: np.ndarray, labels_N: np.ndarray) -> dict[str, Any]:
    """`top1`, `top5` of five guesses, and `mean_per_class` in percent; `n`; Wilson's 95 % `interval` of top1."""
    guesses, labels = torch.from_numpy(guesses_NK), torch.from_numpy(labels_N)
    first_N = metrics.hits(guesses, labels, 1)
    figures: dict[str, Any] = {"top1": metrics.percent(first_N)}
    if guesses.shape[1] == TOP_K:
        figures["top5"] = metrics.percent(metrics.hits(guesses, labels, TOP_K))
    return figures | {
        "mean_per_class": metrics.mean_per_class(first_N, labels),
        "n": len(labels),
        "interval": list(metrics.wilson_interval(int(first_N.sum()), len(labels))),
    }
