import pytest
import torch
from cases import SHAPES, assert_low_precision, assert_matches_specification

from open_clip_linear.attention import naive
from open_clip_linear.attention.inline import inline_attention


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_specification(shape):
    assert_matches_specification(inline_attention, naive.inline, shape)


def test_gradcheck():
    tensors = [torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(inline_attention, tensors)


def test_weights_sum_to_one():
    """Constant values come back unchanged, whatever q and k."""
    q, k = torch.randn(2, 1, 2, 63, 32, dtype=torch.float64)
    v = torch.full_like(q, 3.0)
    assert torch.allclose(inline_attention(q, k, v), v)


def test_bf16_error_is_that_of_the_format():
    assert_low_precision(inline_attention, naive.inline, 4e-3)
