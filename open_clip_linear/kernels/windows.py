"""SEMA's full form on CPUs as one operator: softmax inside each window of the patch grid, and the mean of all values.

    o_BNHD = window_attention(q, k, v, grid=(14, 14), prefix=1, window=7)

A few rows of windows at a time are brought together, multiplied and put back, small enough for a core's cache, so that
neither tokens in another order nor weights are ever held whole; the backward pass computes the weights again. Windows
at the border are smaller: there is no padding. Saved are q, k and v. There is no second derivative.
Source: arXiv 2506.08297; the class token's row is this project's, see `attention/sema.py`.

Legend: B batch, H heads, N tokens (some before the patches), Y x X the grid, W windows, T tokens of one, D head
dimension.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from open_clip_linear.kernels.chunked import ROWS, add_product, widen


def window_attention(q: Tensor, k: Tensor, v: Tensor, *, grid: tuple[int, int], prefix: int, window: int) -> Tensor:
    """q, k, v (B, H, N, D) of one float dtype, N = prefix + the grid's patches → (B, N, H, D) in it.

    Raises:
        ValueError: a window, grid or prefix that cannot be, or that is of another number of tokens.
    """
    if window < 1 or prefix < 0 or min(grid) < 1 or q.shape[2] != prefix + grid[0] * grid[1]:
        raise ValueError(
            f"{q.shape[2]} tokens cannot be {prefix} and a grid of {grid[0]}x{grid[1]} patches in windows of {window}: "
            "give a window and a grid of at least 1, and their number of tokens"
        )
    return torch.ops.open_clip_linear.windows(q, k, v, *grid, prefix, window)


@dataclass(frozen=True)
class Windows:
    """Windows of one size that lie side by side: `rows` x `columns` of them from patch (y, x) on."""

    y: int
    x: int
    rows: int
    columns: int
    height: int
    width: int

    def of(self, x_HYXD: Tensor) -> Tensor:
        """Their patches as a view (H, rows, columns, height, width, D)."""
        part = x_HYXD[:, self.y : self.y + self.rows * self.height, self.x : self.x + self.columns * self.width]
        return part.unflatten(2, (self.columns, self.width)).unflatten(1, (self.rows, self.height)).transpose(2, 3)

    def read(self, x_HYXD: Tensor) -> Tensor:
        """Their patches together, in float32 or wider: (H·W, T, D)."""
        return widen(self.of(x_HYXD)).reshape(-1, self.height * self.width, x_HYXD.shape[-1])

    def put(self, x_HYXD: Tensor, values_WTD: Tensor, add: bool = False) -> None:
        """Write what `read` would give, or add to it."""
        place = self.of(x_HYXD)
        (place.add_ if add else place.copy_)(values_WTD.view(place.shape))


def spans(size: int, window: int) -> list[tuple[int, int, int]]:
    """(start, end, window) of the runs of equal windows along one side: the whole ones, then the shorter rest."""
    whole = size - size % window
    return [(a, b, w) for a, b, w in ((0, whole, window), (whole, size, size - whole)) if b > a]


def head_blocks(heads: int, columns: int, window: int) -> Iterator[slice]:
    """Runs of heads of which one row of windows is what a thread's cache wants."""
    most = max(1, ROWS // (window * columns))
    return (slice(start, start + most) for start in range(0, heads, most))


def tiles(grid: tuple[int, int], window: int, heads: int) -> Iterator[Windows]:
    """All windows of the grid, as many rows of windows at a time as a thread's cache wants."""
    for y0, y1, height in spans(grid[0], window):
        for x0, x1, width in spans(grid[1], window):
            step = max(1, ROWS // (heads * height * (x1 - x0))) * height
            for y in range(y0, y1, step):
                yield Windows(y, x0, (min(y + step, y1) - y) // height, (x1 - x0) // width, height, width)


def _patches(x_HND: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    return x_HND[:, prefix:].unflatten(1, grid)


@torch.library.custom_op("open_clip_linear::windows", mutates_args=())
def _windows(q: Tensor, k: Tensor, v: Tensor, height: int, width: int, prefix: int, window: int) -> Tensor:
    B, H, N, D = q.shape
    o_BNHD = q.new_empty(B, N, H, D)
    for b in range(B):
        for some in head_blocks(H, width, window):
            o = o_BNHD[b, :, some].transpose(0, 1)
            _forward(q[b, some], k[b, some], v[b, some], o, (height, width), prefix, window)
    return o_BNHD


def _forward(q: Tensor, k: Tensor, v: Tensor, o: Tensor, grid: tuple[int, int], prefix: int, window: int) -> None:
    H, N, D = q.shape
    mean_v = widen(v).sum(1, keepdim=True) / N
    if prefix:
        weights = _weights(widen(q[:, :prefix]), widen(k))
        o[:, :prefix] = torch.baddbmm(mean_v, weights, widen(v))
    of_patches = [_patches(t, grid, prefix) for t in (q, k, v, o)]
    for some in tiles(grid, window, H):
        queries, keys, values = (some.read(t) for t in of_patches[:3])
        found = torch.bmm(_weights(queries, keys), values)
        found.view(H, -1, D).add_(mean_v)
        some.put(of_patches[3], found)


def _weights(queries: Tensor, keys: Tensor) -> Tensor:
    """softmax(q·k/√D): (G, M, D) and (G, T, D) → (G, M, T)."""
    return torch.softmax(torch.bmm(queries * queries.shape[-1] ** -0.5, keys.mT), -1)


@torch.library.custom_op("open_clip_linear::windows_backward", mutates_args=())
def _windows_backward(
    do_BNHD: Tensor, q: Tensor, k: Tensor, v: Tensor, height: int, width: int, prefix: int, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    for b in range(len(q)):
        for some in head_blocks(q.shape[1], width, window):
            do = do_BNHD[b, :, some].transpose(0, 1)
            reads, writes = [t[b, some] for t in (q, k, v)], [t[b, some] for t in (dq, dk, dv)]
            _backward(do, reads, writes, (height, width), prefix, window)
    return dq, dk, dv


def _backward(
    do: Tensor, reads: list[Tensor], writes: list[Tensor], grid: tuple[int, int], prefix: int, window: int
) -> None:
    q, k, v = reads
    dq, dk, dv = writes
    H, N, D = q.shape
    dmean = widen(do).sum(1, keepdim=True) / N
    if prefix:
        first, keys, cotangents = widen(q[:, :prefix]), widen(k), widen(do[:, :prefix])
        weights = _weights(first, keys)
        add_product(dmean, weights.mT, cotangents, dv)
        dscores = _through_softmax(torch.bmm(cotangents, widen(v).mT), weights) * D**-0.5
        dq[:, :prefix] = torch.bmm(dscores, keys)
        add_product(torch.zeros_like(dmean), dscores.mT, first, dk)
    of_patches = [_patches(t, grid, prefix) for t in (do, q, k, v, dq, dk, dv)]
    for some in tiles(grid, window, H):
        cotangents, queries, keys, values = (some.read(t) for t in of_patches[:4])
        weights = _weights(queries, keys)
        dvalues = torch.bmm(weights.mT, cotangents)
        dscores = _through_softmax(torch.bmm(cotangents, values.mT), weights).mul_(D**-0.5)
        if not prefix:
            dvalues.view(H, -1, D).add_(dmean)
        some.put(of_patches[4], torch.bmm(dscores, keys))
        some.put(of_patches[5], torch.bmm(dscores.mT, queries), add=bool(prefix))
        some.put(of_patches[6], dvalues, add=bool(prefix))


def _through_softmax(dweights: Tensor, weights: Tensor) -> Tensor:
    """The gradient of what the softmax was of."""
    return torch._softmax_backward_data(dweights, weights, -1, weights.dtype)


@_windows.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    B, H, N, D = q.shape
    return q.new_empty(B, N, H, D)


@_windows_backward.register_fake
def _(do_BNHD: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.sizes = inputs[3:]


def _gradients(ctx: Any, do_BNHD: Tensor) -> tuple[Tensor | None, ...]:
    return (*torch.ops.open_clip_linear.windows_backward(do_BNHD, *ctx.saved_tensors, *ctx.sizes), *[None] * 4)


_windows.register_autograd(_gradients, setup_context=_keep)


def _pairs(height: int, width: int, prefix: int, window: int) -> int:
    """How many weights a head has."""
    down = sum(((b - a) // w) * w * w for a, b, w in spans(height, window))
    across = sum(((b - a) // w) * w * w for a, b, w in spans(width, window))
    return down * across + prefix * (prefix + height * width)


@register_flop_formula(torch.ops.open_clip_linear.windows)
def _(q_shape: list[int], _k: Any, _v: Any, *sizes: int, **__: Any) -> int:
    B, H, _, D = q_shape
    return 4 * B * H * D * _pairs(*sizes)


@register_flop_formula(torch.ops.open_clip_linear.windows_backward)
def _(_do: Any, q_shape: list[int], _k: Any, _v: Any, *sizes: int, **__: Any) -> int:
    B, H, _, D = q_shape
    return 10 * B * H * D * _pairs(*sizes)
