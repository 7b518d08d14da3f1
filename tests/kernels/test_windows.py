"""SEMA's operator against the float64 specification, at grids that windows do not divide."""

from functools import partial

import pytest
import torch
from cases import assert_equal, assert_low_precision, inputs

from open_clip_linear.attention import VisionLayout, naive
from open_clip_linear.attention.sema import sema_attention
from open_clip_linear.kernels import windows
from open_clip_linear.kernels.windows import window_attention

CASES = [((5, 8), 1, 3), ((4, 4), 0, 7), ((14, 14), 1, 7), ((1, 9), 2, 4), ((3, 1), 1, 1), ((7, 7), 1, 7)]


def operator(q, k, v, **sizes):
    return window_attention(q, k, v, **sizes).transpose(1, 2)


@pytest.mark.parametrize(("grid", "prefix", "window"), CASES)
def test_equals_the_specification(grid, prefix, window):
    fast = partial(operator, grid=grid, prefix=prefix, window=window)
    slow = partial(naive.sema, grid=grid, prefix=prefix, window=window)
    shape = (2, 3, prefix + grid[0] * grid[1], 20)
    assert_equal(fast, slow, inputs(shape), 1e-9)
    assert_equal(fast, slow, inputs(shape, torch.float32), 1e-5)
    strided = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in inputs(shape)]
    assert_equal(fast, slow, strided, 1e-9)


@pytest.mark.parametrize("rows", [1, 60, 400])
def test_how_many_windows_at_a_time_changes_nothing(rows, monkeypatch):
    monkeypatch.setattr(windows, "ROWS", rows)
    sizes = {"grid": (10, 11), "prefix": 1, "window": 3}
    assert_equal(partial(operator, **sizes), partial(naive.sema, **sizes), inputs((1, 2, 111, 8)), 1e-9)


def test_low_precision():
    sizes = {"grid": (14, 14), "prefix": 1, "window": 7}
    assert_low_precision(partial(operator, **sizes), partial(naive.sema, **sizes), 4e-3)


@pytest.mark.parametrize("prefix", [0, 1])
def test_gradcheck_and_opcheck(prefix):
    tensors = [t.requires_grad_() for t in torch.randn(3, 2, 2, prefix + 12, 4, dtype=torch.float64)]
    assert torch.autograd.gradcheck(partial(window_attention, grid=(3, 4), prefix=prefix, window=2), tensors)
    torch.library.opcheck(torch.ops.open_clip_linear.windows.default, (*tensors, 3, 4, prefix, 2))


def test_no_other_windows_patch_weighs_in():
    """But for the mean: with values of mean zero the others change nothing."""
    q, k, v = (t.detach() for t in inputs((1, 1, 17, 8)))
    v -= v.mean(2, keepdim=True)
    sizes = {"grid": (4, 4), "prefix": 1, "window": 2}
    before = window_attention(q, k, v, **sizes)
    k[:, :, 1 + 2] += 100  # patch (0, 2), of the window beside the first
    after = window_attention(q, k, v, **sizes)
    first = [1 + y * 4 + x for y in range(2) for x in range(2)]
    assert torch.equal(before[:, first], after[:, first])
    assert not torch.equal(before[:, 1 + 2], after[:, 1 + 2])


def test_flops_are_those_of_the_windows():
    """Of a 7 x 9 grid in windows of 4: each patch has its own window's patches for keys, the class token has all."""
    from torch.utils.flop_counter import FlopCounterMode

    sides = {y: 4 if y < 4 else 3 for y in range(7)}, {x: 4 if x < 8 else 1 for x in range(9)}
    pairs = sum(sides[0][y] * sides[1][x] for y in range(7) for x in range(9)) + 64
    tensors = [t.requires_grad_() for t in torch.randn(3, 2, 3, 64, 8)]
    with FlopCounterMode(display=False) as counted:
        window_attention(*tensors, grid=(7, 9), prefix=1, window=4).sum().backward()
    assert counted.get_total_flops() == 14 * 2 * 3 * 8 * pairs


def test_the_module_takes_it_and_equals_the_composed_form():
    from open_clip_linear.attention import KINDS

    layout = VisionLayout((6, 5), 1)
    module = KINDS["sema"](32, 4, layout, window=4, local="softmax").double()
    qkv = torch.randn(2, 31, 3, 4, 8, dtype=torch.float64)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    composed = sema_attention(q, k, v, layout, 4).transpose(1, 2)
    assert torch.allclose(module.attend_packed(qkv, None), composed)
    with pytest.raises(ValueError, match=r"built for 31 tokens \(1 \+ 6x5 patches\) but got 30"):
        module.attend_packed(qkv[:, :30], None)


@pytest.mark.parametrize(
    "sizes",
    [
        {"grid": (3, 3), "prefix": 1, "window": 0},
        {"grid": (3, 3), "prefix": 0, "window": 2},
        {"grid": (9, 0), "prefix": 10, "window": 2},
        {"grid": (11, 1), "prefix": -1, "window": 2},
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes):
    q, k, v = inputs((1, 1, 10, 4))
    with pytest.raises(ValueError, match="10 tokens cannot be"):
        window_attention(q, k, v, **sizes)
