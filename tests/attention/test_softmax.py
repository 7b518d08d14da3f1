import pytest
from cases import SHAPES, assert_low_precision, assert_matches_specification

from open_clip_linear.attention import naive
from open_clip_linear.attention.softmax import softmax_attention


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_specification(shape):
    assert_matches_specification(softmax_attention, naive.softmax, shape)


def test_bf16_error_is_that_of_the_format():
    assert_low_precision(softmax_attention, naive.softmax, 4e-3)
