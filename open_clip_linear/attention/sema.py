"""`sema`: attention inside the row's window plus the mean of all values.

Source: SEMA, arXiv 2506.08297: non-shifted w×w windows over the patch grid, softmax inside, and (1/N) Σ_j v_j with
coefficient 1. This project's choices where the paper is silent: a token that is no patch (the class token) attends
over all tokens and gets the mean as well, patches reach it through the mean; windows at the border of a grid that
is no multiple of w are smaller, so there is no padding and no mask; `local=eq4|eq7` are other window kernels
(eq7 divided by the window's own number of keys). Cost per head: 4·N·w²·D FLOPs forward with softmax windows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from open_clip_linear.attention.base import Attention, Choice, Integer, TokenLayout, Value, widen
from open_clip_linear.attention.eq4 import eq4_attention
from open_clip_linear.attention.eq7 import eq7_attention
from open_clip_linear.attention.softmax import softmax_attention

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]


def eq7_mean_attention(q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
    return eq7_attention(q_BHND, k_BHND, v_BHND, mean=True)


LOCAL_KERNELS: dict[str, Kernel] = {
    "softmax": softmax_attention,
    "eq4": eq4_attention,
    "eq7": eq7_mean_attention,
}


def spans(size: int, window: int) -> list[tuple[int, int, int]]:
    """(start, end, window) of the runs of equal windows along one side: the whole ones, then the shorter rest."""
    whole = size - size % window
    return [(a, b, w) for a, b, w in ((0, whole, window), (whole, size, size - whole)) if b > a]


def windows_attention(q: Tensor, k: Tensor, v: Tensor, window: int, kernel: Kernel) -> Tensor:
    """`kernel` inside each window of the grid: q, k, v (B, H, Y, X, D) → (B, H, Y, X, D).

    The grid falls into at most four regions whose windows are all of one size (whole ones, shorter ones at the
    right, at the bottom and in the corner); each region is one batched call.
    """
    B, H, Y, X, D = q.shape
    rows = []
    for y0, y1, wy in spans(Y, window):
        row = []
        for x0, x1, wx in spans(X, window):
            ny, nx = (y1 - y0) // wy, (x1 - x0) // wx
            windowed = [
                t[:, :, y0:y1, x0:x1]
                .reshape(B, H, ny, wy, nx, wx, D)
                .permute(0, 2, 4, 1, 3, 5, 6)
                .reshape(B * ny * nx, H, wy * wx, D)
                for t in (q, k, v)
            ]
            o = kernel(*windowed).reshape(B, ny, nx, H, wy, wx, D)
            row.append(o.permute(0, 3, 1, 4, 2, 5, 6).reshape(B, H, y1 - y0, x1 - x0, D))
        rows.append(torch.cat(row, dim=3))
    return torch.cat(rows, dim=2)


def sema_attention(
    q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, layout: TokenLayout, window: int = 7, local: str = "softmax"
) -> Tensor:
    """SEMA over a patch grid: (B, H, N, D) → (B, H, N, D) in q's dtype, N = layout.tokens.

    Args:
        window: side w of a window in patches; larger than the grid means one window.
        local: the kernel inside a window, a key of `LOCAL_KERNELS`.

    Raises:
        ValueError: the number of tokens is not the layout's.
    """
    B, H, N, D = q_BHND.shape
    if layout.tokens != N:
        raise ValueError(
            f"sema was built for {layout.tokens} tokens ({layout.prefix} + {layout.grid[0]}x{layout.grid[1]} patches) "
            f"but got {N}; build the model for this image size (force_image_size) and without patch dropout"
        )
    p = layout.prefix
    q, k, v = (t[:, :, p:].reshape(B, H, *layout.grid, D) for t in (q_BHND, k_BHND, v_BHND))
    o_BHND = windows_attention(q, k, v, window, LOCAL_KERNELS[local]).reshape(B, H, N - p, D)
    if p:
        o_BHND = torch.cat([softmax_attention(q_BHND[:, :, :p], k_BHND, v_BHND), o_BHND], dim=2)
    return (o_BHND + widen(v_BHND).mean(-2, keepdim=True)).to(q_BHND.dtype)


class Sema(Attention):
    """Window attention plus the mean of values."""

    kind = "sema"
    options = (Integer("window", 7), Choice("local", tuple(LOCAL_KERNELS)))

    def __init__(self, dim: int, num_heads: int, layout: TokenLayout, window: int, local: str) -> None:
        super().__init__(dim, num_heads, layout)
        self.window = window
        self.local = local

    @classmethod
    def check(cls, layout: TokenLayout, **options: Value) -> None:
        if layout.patch_dropout > 0:
            raise ValueError(
                f"windows need the whole patch grid, and patch_dropout={layout.patch_dropout} removes patches "
                "from it; set patch_dropout to 0 or choose another kind"
            )

    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
        return sema_attention(q_BHND, k_BHND, v_BHND, self.layout, self.window, self.local)
