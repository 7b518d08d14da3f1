from functools import partial
from itertools import pairwise

import pytest
import torch
from cases import assert_low_precision, assert_matches_specification, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from open_clip_linear.attention import VisionLayout, naive
from open_clip_linear.attention.sema import sema_attention, spans

# Grids that are a multiple of the window, that are not, that are not square, and that are smaller than it.
GRIDS = [((1, 1), 7), ((4, 4), 2), ((7, 9), 4), ((5, 3), 2), ((3, 11), 7), ((2, 3), 7)]


def pair(grid, window, local, prefix=1):
    layout = VisionLayout(grid, prefix)
    fast = partial(sema_attention, layout=layout, window=window, local=local)
    return fast, partial(naive.sema, grid=grid, prefix=prefix, window=window, local=local), layout.tokens


@pytest.mark.parametrize("local", ["softmax", "eq4", "eq7"])
@pytest.mark.parametrize(("grid", "window"), GRIDS)
def test_equals_the_specification(grid, window, local):
    fast, slow, tokens = pair(grid, window, local)
    for D in (32, 60):
        assert_matches_specification(fast, slow, (2, 2, tokens, D))


def test_without_a_class_token():
    fast, slow, tokens = pair((3, 5), 2, "softmax", prefix=0)
    assert_matches_specification(fast, slow, (1, 2, tokens, 32))


@pytest.mark.parametrize("local", ["softmax", "eq4", "eq7"])
def test_gradcheck(local):
    fast, _, tokens = pair((3, 2), 2, local)
    tensors = [torch.randn(1, 1, tokens, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(fast, tensors)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 8))
@settings(max_examples=40)
def test_a_patch_sees_its_window_and_only_the_mean_of_the_rest(rows, columns, window):
    """Moving a key outside a row's window changes nothing for that row."""
    fast, _, tokens = pair((rows, columns), window, "softmax")
    q, k, v = (t.detach() for t in inputs((1, 1, tokens, 4)))
    before = fast(q, k, v)
    moved = k.clone()
    moved[:, :, -1] += 3.0
    after = fast(q, moved, v)
    last = ((rows - 1) // window, (columns - 1) // window)
    for y in range(rows):
        for x in range(columns):
            i = 1 + y * columns + x
            if (y // window, x // window) != last:
                assert torch.equal(before[:, :, i], after[:, :, i])


@given(st.integers(1, 300), st.integers(1, 300))
def test_spans_cover_a_side_once_in_windows_of_one_size(size, window):
    runs = spans(size, window)
    assert runs[0][0] == 0
    assert runs[-1][1] == size
    assert all(a[1] == b[0] for a, b in pairwise(runs))
    assert all((end - start) % w == 0 and w <= window for start, end, w in runs)
    assert len(runs) <= 2


def test_another_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match=r"built for 17 tokens .* got 16"):
        sema_attention(*torch.randn(3, 1, 1, 16, 8), layout=VisionLayout((4, 4)))


def test_bf16_error_is_that_of_the_format():
    fast, slow, _ = pair((14, 14), 7, "softmax")
    assert_low_precision(fast, slow, 4e-3)
