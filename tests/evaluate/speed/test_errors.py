"""The errors that `evaluate speed` prints, held to their targets: those of SDPA, by what it computes with float64."""

import pytest
import torch

from evaluate.speed.errors import error_of
from evaluate.speed.operators import Case
from open_clip_linear import linear_attention

BOUNDS = {"eq7": 1.2, "inline": 1.2, "eq4": 2.0}  # times SDPA's
LENGTHS = [197, 1025, pytest.param(4097, marks=pytest.mark.slow)]


@pytest.mark.parametrize("step", ["forward", "forward_backward"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n", LENGTHS)
def test_errors_stay_below_their_bound(n: int, dtype: str, step: str) -> None:
    for seed in range(3):
        sdpa = error_of(Case("softmax", n, dtype, "cpu", 2), step, seed)
        assert sdpa is not None
        for kind, bound in BOUNDS.items():
            error = error_of(Case(kind, n, dtype, "cpu", 2), step, seed)
            assert error is not None
            assert error <= bound * sdpa, f"{kind}: {error:.2e}, SDPA {sdpa:.2e}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOUNDS)
def test_half_precision_is_finite_and_exact_at_four_million_tokens(kind: str) -> None:
    """With values far from zero, whose sum float16 cannot hold. The exact rows come from sums in float64, in parts."""
    N, D = 4_000_000, 64
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, N, D, generator=generator, dtype=torch.float16) for _ in range(3))
    v += 1
    o = linear_attention(q, k, v, kind=kind, scale="mean" if kind == "eq7" else None)
    assert o.isfinite().all()

    S, sum_k, sum_v = torch.zeros(D, D).double(), torch.zeros(D).double(), torch.zeros(D).double()
    for keys, values in zip(k[0, 0].split(100_000), v[0, 0].split(100_000), strict=True):
        keys, values = keys.double(), values.double()
        if kind != "inline":
            keys = keys / keys.norm(dim=-1, keepdim=True)
        S += keys.mT @ values
        sum_k += keys.sum(0)
        sum_v += values.sum(0)
    queries = q[0, 0, ::4001].double()
    if kind == "inline":
        expected = (sum_v + queries @ (S - sum_k[:, None] * sum_v / N) * D**-0.5) / N
    else:
        queries = queries / queries.norm(dim=-1, keepdim=True)
        expected = (sum_v + queries @ S) / (2 * N if kind == "eq7" else N)
        if kind == "eq4":
            expected = expected / (1 + queries @ sum_k / N)[:, None]
    error = (o[0, 0, ::4001].double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < 5e-4  # float16 rounds to 2.4e-4 at most
