from functools import partial

import pytest
import torch
from cases import SHAPES, assert_low_precision, assert_matches_specification
from hypothesis import given
from hypothesis import strategies as st

from open_clip_linear.attention import naive
from open_clip_linear.attention.eq4 import clamp_denominator, eq4_attention


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gain", ["one", "half_n"])
def test_equals_the_specification(gain, shape):
    assert_matches_specification(partial(eq4_attention, gain=gain), partial(naive.eq4, gain=gain), shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gain", ["one", "half_n"])
def test_unnormalised_form_equals_the_specification(gain, shape):
    """Small queries keep the signed denominator away from zero, where any two roundings differ."""

    def small_q(attend):
        return lambda q, k, v: attend(q * 0.02, k, v)

    fast = small_q(partial(eq4_attention, norm=False, gain=gain))
    assert_matches_specification(fast, small_q(partial(naive.eq4, norm="off", gain=gain)), shape)


def test_gradcheck():
    tensors = [torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(eq4_attention, tensors)
    assert torch.autograd.gradcheck(partial(eq4_attention, norm=False, gain="half_n"), tensors)


def test_keys_opposite_to_the_query_hit_the_clamp_and_stay_finite():
    """All keys −q: the denominator is 0 and the numerator too."""
    q = torch.nn.functional.normalize(torch.randn(1, 1, 1, 8), dim=-1)
    k = -q.expand(1, 1, 6, 8)
    out = eq4_attention(q.expand(1, 1, 6, 8), k, torch.randn(1, 1, 6, 8))
    assert out.isfinite().all()


def test_the_papers_weight_bound_fails_as_documented():
    """Bound 2/i on a normalised weight: i=3, q=k₁, k₂=k₃=−q puts all the weight on the first key."""
    q = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64).expand(1, 1, 3, 2)
    k = torch.tensor([[[[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]]], dtype=torch.float64)
    weights = eq4_attention(q, k, torch.eye(3, dtype=torch.float64)[None, None])
    assert torch.allclose(weights[0, 0, 0], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))


@given(st.floats(-1e3, 1e3))
def test_signed_clamp_keeps_the_sign_and_the_distance(d):
    clamped = clamp_denominator(torch.tensor(d, dtype=torch.float64), signed=True).item()
    assert abs(clamped) == max(abs(d), 1e-6)
    assert (clamped < 0) == (d < 0)


def test_half_n_is_the_exact_control_of_eq7():
    """eq7_i = (N/2)·(1 + q_i·k̄)·eq4_i, so with zero-mean keys the control equals Eq. 7."""
    q, v = torch.randn(2, 1, 2, 10, 4, dtype=torch.float64)
    half = torch.nn.functional.normalize(torch.randn(1, 2, 5, 4, dtype=torch.float64), dim=-1)
    k = torch.cat([half, -half], dim=2)
    assert torch.allclose(eq4_attention(q, k, v, gain="half_n"), naive.eq7(q, k, v), rtol=1e-9)


def test_bf16_error_is_that_of_the_format():
    assert_low_precision(eq4_attention, naive.eq4, 5e-3)


def test_fp16_is_finite_at_a_length_that_overflows_the_denominator():
    q, k, v = torch.randn(3, 1, 1, 70_000, 8, dtype=torch.float16)
    assert eq4_attention(q, k, v).isfinite().all()
