import math
from functools import partial

import pytest
import torch
from cases import SHAPES, assert_equal, assert_low_precision, assert_matches_specification, inputs

from open_clip_linear.attention import VisionLayout, naive
from open_clip_linear.attention.eq7 import Eq7, eq7_attention


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", ["half", "mean"])
def test_equals_the_specification(scale, shape):
    fast = partial(eq7_attention, mean=scale == "mean")
    assert_matches_specification(fast, partial(naive.eq7, scale=scale), shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_learned_gain_equals_the_specification_with_its_gradient(shape):
    def fast(q, k, v, log_gain):
        return eq7_attention(q, k, v, mean=True, log_gain_H=log_gain)

    def slow(q, k, v, log_gain):
        return naive.eq7(q, k, v, "learned", log_gain)

    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        log_gain = torch.linspace(-1, 2, shape[1], dtype=dtype).requires_grad_()
        assert_equal(fast, slow, [*inputs(shape, dtype), log_gain], tolerance)


def test_gradcheck():
    tensors = [torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(eq7_attention, tensors)
    log_gain = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(partial(eq7_attention, mean=True), tensors)
    assert torch.autograd.gradcheck(lambda *t: eq7_attention(*t[:3], mean=True, log_gain_H=t[3]), [*tensors, log_gain])


def test_identity_with_eq4():
    """eq7_i = (N/2)·(1 + q_i·k̄)·eq4_i, exactly."""
    q, k, v = torch.randn(3, 2, 3, 197, 32, dtype=torch.float64)
    mean_key = naive.unit(k).mean(-2, keepdim=True)
    factor = 197 / 2 * (1 + (naive.unit(q) * mean_key).sum(-1, keepdim=True))
    assert torch.allclose(eq7_attention(q, k, v), factor * naive.eq4(q, k, v), rtol=1e-10)


def test_zero_rows_get_the_plain_sum():
    q, k, v = torch.zeros(1, 1, 4, 8), torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    assert torch.allclose(eq7_attention(q, k, v), 0.5 * v.sum(-2, keepdim=True).expand_as(v))


def test_mean_is_length_independent_and_half_is_not():
    q, k, v = torch.randn(3, 1, 1, 16, 8, dtype=torch.float64)
    twice = [t.repeat(1, 1, 2, 1) for t in (q, k, v)]
    assert torch.allclose(eq7_attention(*twice, mean=True)[:, :, :16], eq7_attention(q, k, v, mean=True))
    assert torch.allclose(eq7_attention(*twice)[:, :, :16], 2 * eq7_attention(q, k, v))


def test_learned_gain_starts_at_the_mean_or_at_the_literal_form():
    layout = VisionLayout((4, 5))
    assert Eq7(16, 2, layout, scale="learned", init="mean").log_gain.tolist() == [0.0, 0.0]
    literal = Eq7(16, 2, layout, scale="learned", init="literal").log_gain
    assert literal.tolist() == pytest.approx([math.log(21)] * 2)


def test_bf16_error_is_that_of_the_format():
    assert_low_precision(eq7_attention, naive.eq7, 4e-3)


def test_fp16_mean_is_finite_where_the_literal_form_overflows():
    q, k = torch.randn(2, 1, 1, 70_000, 8, dtype=torch.float16)
    v = torch.full_like(q, 8.0)
    assert eq7_attention(q, k, v, mean=True).isfinite().all()
    assert not eq7_attention(q, k, v).isfinite().all()
