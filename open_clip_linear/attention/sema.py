"""`sema`: attention inside the row's window plus the mean of all values.

Source: SEMA, arXiv 2506.08297: non-shifted w×w windows over the patch grid, softmax inside, and (1/N) Σ_j v_j with
coefficient 1. This project's choices where the paper is silent: a token that is no patch (the class token) attends
over all tokens and gets the mean as well, patches reach it through the mean; windows at the border of a grid that
is no multiple of w are smaller, so there is no padding and no mask; `local=eq4|eq7` are other window kernels
(eq7 divided by the number of keys it sees in the window). In text towers windows are runs of w tokens, causal inside
where the tower is, and row i gets the mean of the values it may see. Cost per head: 4·N·w²·D FLOPs forward with
softmax windows, 4·N·w·D in text.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from open_clip_linear.attention.base import Attention, Choice, Integer, Layout, Value, VisionLayout, widen
from open_clip_linear.attention.eq4 import eq4_attention
from open_clip_linear.attention.eq7 import eq7_attention
from open_clip_linear.attention.softmax import softmax_attention
from open_clip_linear.attention.sums import count_seen, hide, sum_seen
from open_clip_linear.kernels.ops import without_operators
from open_clip_linear.kernels.windows import spans, window_attention

LOCAL_KERNELS: dict[str, Callable[..., Tensor]] = {
    "softmax": softmax_attention,
    "eq4": eq4_attention,
    "eq7": partial(eq7_attention, mean=True),
}


def windows_attention(
    q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, window: int, kernel: Callable[..., Tensor]
) -> Tensor:
    """`kernel` inside each window of the grid: q, k, v (B, H, Y, X, D), valid (B, Y, X) → (B, H, Y, X, D).

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
            seen = None
            if valid is not None:
                seen = valid[:, y0:y1, x0:x1].reshape(B, ny, wy, nx, wx).transpose(2, 3).reshape(-1, wy * wx)
            o = kernel(*windowed, valid_BN=seen).reshape(B, ny, nx, H, wy, wx, D)
            row.append(o.permute(0, 3, 1, 4, 2, 5, 6).reshape(B, H, y1 - y0, x1 - x0, D))
        rows.append(torch.cat(row, dim=3))
    return torch.cat(rows, dim=2)


def sema_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    layout: Layout,
    window: int = 7,
    local: str = "softmax",
    valid_BN: Tensor | None = None,
) -> Tensor:
    """SEMA over a patch grid or a text: (B, H, N, D) → (B, H, N, D) in q's dtype.

    Args:
        window: side w of a window in patches, or its length in text tokens; one larger than the grid means one window.
        local: the kernel inside a window, a key of `LOCAL_KERNELS`.
        valid_BN: bool, false where a key is padding.

    Raises:
        ValueError: the number of tokens is not that of the layout's grid.
    """
    B, H, N, D = q_BHND.shape
    if isinstance(layout, VisionLayout):
        check_tokens(layout, N)
        first, last, grid = layout.prefix, N, layout.grid
    else:
        first, last = 0, N - int(layout.class_token)
        grid = (1, last)
    kernel = partial(LOCAL_KERNELS[local], causal=layout.causal)
    q, k, v = (t[:, :, first:last].reshape(B, H, *grid, D) for t in (q_BHND, k_BHND, v_BHND))
    valid = None if valid_BN is None else valid_BN[:, first:last].reshape(B, *grid)
    parts = []  # a growing text may start without a token
    if last > first:
        parts.append(windows_attention(q, k, v, valid, window, kernel).reshape(B, H, last - first, D))
    # A class token stands first in an image and last in a text: either way it may see every key.
    if first:
        parts.insert(0, softmax_attention(q_BHND[:, :, :first], k_BHND, v_BHND, valid_BN=valid_BN))
    if last < N:
        parts.append(softmax_attention(q_BHND[:, :, last:], k_BHND, v_BHND, valid_BN=valid_BN))
    v_BHND = hide(widen(v_BHND), valid_BN)
    mean_v = sum_seen(v_BHND, layout.causal) / count_seen(v_BHND, layout.causal, valid_BN)
    o_BHND = torch.cat(parts, dim=2) if parts else torch.zeros_like(v_BHND)
    return (o_BHND + mean_v).to(q_BHND.dtype)


def check_tokens(layout: VisionLayout, tokens: int) -> None:
    """Raise ValueError unless there are as many tokens as the grid has, and the ones before it."""
    if layout.tokens != tokens:
        raise ValueError(
            f"sema was built for {layout.tokens} tokens ({layout.prefix} + {layout.grid[0]}x{layout.grid[1]} "
            f"patches) but got {tokens}; build the model for this image size (force_image_size) and without patch "
            "dropout"
        )


class Sema(Attention):
    """Window attention plus the mean of values."""

    kind = "sema"
    options = (Integer("window", 7), Choice("local", tuple(LOCAL_KERNELS)))
    text = True

    def __init__(self, dim: int, num_heads: int, layout: Layout, window: int, local: str) -> None:
        super().__init__(dim, num_heads, layout)
        self.window = window
        self.local = local

    @classmethod
    def check(cls, layout: Layout, **options: Value) -> None:
        if isinstance(layout, VisionLayout) and layout.patch_dropout > 0:
            raise ValueError(
                f"windows need the whole patch grid, and patch_dropout={layout.patch_dropout} removes patches "
                "from it; set patch_dropout to 0 or choose another kind"
            )

    @classmethod
    def weight_sum(cls, keys: float, **options: Value) -> float:
        return 1.5 if options["local"] == "eq7" else 2.0

    def attend_packed(self, qkv_BN3HD: Tensor, valid_BN: Tensor | None) -> Tensor:
        layout = self.layout
        # Elsewhere PyTorch's fused kernels on whole windows are faster than many small products.
        here = qkv_BN3HD.device.type == "cpu" and not without_operators(qkv_BN3HD)
        if not here or not isinstance(layout, VisionLayout) or self.local != "softmax":
            return super().attend_packed(qkv_BN3HD, valid_BN)
        check_tokens(layout, qkv_BN3HD.shape[1])
        q, k, v = qkv_BN3HD.permute(2, 0, 3, 1, 4)
        return window_attention(q, k, v, grid=layout.grid, prefix=layout.prefix, window=self.window)

    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, valid_BN: Tensor | None) -> Tensor:
        return sema_attention(q_BHND, k_BHND, v_BHND, self.layout, self.window, self.local, valid_BN)
