"""Each kind's weights: against the library's specification where it has the kind, else against sums written out."""

import cmath
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from evaluate.looking import kinds
from evaluate.looking.kinds import KINDS, WINDOW
from open_clip_linear.attention import naive

R, N, D = 3, 98, 16  # N is two windows of 7 x 7


def drawn(scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return tuple(scale * torch.randn(n, D, generator=generator, dtype=torch.float64) for n in (N, N))  # type: ignore[return-value]


SPECIFIED: dict[str, Callable[..., Tensor]] = {
    "softmax": naive.softmax,
    "eq4": naive.eq4,
    "eq7": naive.eq7,
    "inline": naive.inline,
    "sema": lambda q, k, v: naive.sema(q, k, v, grid=(14, 7), prefix=0, window=7),
}


@pytest.mark.parametrize("name", SPECIFIED)
def test_equals_the_specification_given_unit_vectors_as_values(name: str) -> None:
    q, k = drawn()
    expected = SPECIFIED[name](q[None, None], k[None, None], torch.eye(N, dtype=torch.float64)[None, None])
    torch.testing.assert_close(getattr(kinds, name)(q[:R], k), expected[0, 0, :R], atol=1e-14, rtol=1e-12)


def test_window_is_semas_without_the_mean() -> None:
    q, k = drawn()
    weights = kinds.window(q[:R], k)
    torch.testing.assert_close(weights, kinds.sema(q[:R], k) - 1 / N, atol=1e-15, rtol=1e-12)
    assert (weights[:, WINDOW:] == 0).all()


def softmax_of(logits: list[float]) -> list[float]:
    exponentials = [math.exp(logit) for logit in logits]
    return [e / sum(exponentials) for e in exponentials]


def test_differential() -> None:
    q, k = drawn()
    for row, found in zip(q[:R].numpy(), kinds.differential(q[:R], k).numpy(), strict=True):
        one = softmax_of([float(row[:8] @ key[:8]) / math.sqrt(8) for key in k.numpy()])
        two = softmax_of([float(row[8:] @ key[8:]) / math.sqrt(8) for key in k.numpy()])
        np.testing.assert_allclose(found, np.array(one) - 0.8 * np.array(two), atol=1e-14)


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_adaptive(scale: float) -> None:
    q, k = drawn(scale)
    sharpened = 0
    for row, found in zip(q.numpy(), kinds.adaptive(q, k).numpy(), strict=True):
        logits = k.numpy() @ row / 4.0
        first = softmax_of(logits.tolist())
        entropy = -sum(p * math.log(p) for p in first)
        polynomial = -0.037 * entropy**4 + 0.481 * entropy**3 - 2.3 * entropy**2 + 4.917 * entropy - 1.791
        beta = max(polynomial, 1.0) if entropy > 0.5 else 1.0
        sharpened += beta > 1
        np.testing.assert_allclose(found, softmax_of((beta * logits).tolist()), atol=1e-12)
    assert 0 < sharpened <= N


def phi(x: float) -> float:
    return x + 1 if x > 0 else math.exp(x)


def test_elu1_and_mila() -> None:
    """64 keys lie on a grid of 8 x 8; of 16 channels 4 pairs turn with the row and 4 with the column."""
    q, k = (t[:64] for t in drawn())
    row = [phi(x) for x in q[0].tolist()]
    keys = [[phi(x) for x in key] for key in k.tolist()]
    products = [sum(a * b for a, b in zip(row, key, strict=True)) for key in keys]
    np.testing.assert_allclose(kinds.elu1(q[:1], k)[0].numpy(), np.array(products) / sum(products), rtol=1e-12)

    expected = []
    for n, key in enumerate(keys):
        turned = []
        for pair in range(8):
            place = n // 8 if pair < 4 else n % 8
            turn = cmath.exp(1j * place * 10_000 ** (-(pair % 4) / 4))
            both = complex(key[2 * pair], key[2 * pair + 1]) * turn
            turned += [both.real, both.imag]
        expected.append(sum(a * b for a, b in zip(row, turned, strict=True)) / (sum(products) + 64e-6))
    np.testing.assert_allclose(kinds.mila(q[:1], k)[0].numpy(), expected, atol=1e-14)


def test_what_the_weights_sum_to() -> None:
    q, k = drawn()
    sums = {kind.name: kind.weights(q[:R], k[:64]).sum(-1) for kind in KINDS}
    expected = {"sema": 2.0, "differential": 0.2} | dict.fromkeys(
        ("softmax", "elu1", "eq4", "adaptive", "window", "inline"), 1.0
    )
    for name, value in expected.items():
        torch.testing.assert_close(sums[name], torch.full_like(sums[name], value))
    assert set(sums) - set(expected) == {"eq7", "mila"}
