"""`inline`: (1/N) Σ_n (1 + s·q_i·(k_n − k̄)) v_n with s = D^-½ and k̄ the mean key.

Source: InLine attention, arXiv 2412.06590 (without its convolutional residual). The weights sum to 1 at every N
but may be negative: the repair of Eq. 4 and Eq. 7 that keeps a linear cost. Cost per head: 4·N·D² FLOPs forward.
"""

from torch import Tensor

from open_clip_linear.attention.base import Attention, widen


def inline_attention(q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
    """Linear-cost InLine attention: (B, H, N, D) → (B, H, N, D) in q's dtype."""
    N, D = q_BHND.shape[-2:]
    k, v = widen(k_BHND), widen(v_BHND)
    # Centring the keys first avoids the difference of two large sums that KᵀV − N·k̄v̄ᵀ would be.
    state_BHDD = (k - k.mean(-2, keepdim=True)).transpose(-1, -2) @ v * (D**-0.5 / N)
    o_BHND = v.mean(-2, keepdim=True) + widen(q_BHND) @ state_BHDD
    return o_BHND.to(q_BHND.dtype)


class Inline(Attention):
    """Injective linear attention; no options."""

    kind = "inline"

    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
        return inline_attention(q_BHND, k_BHND, v_BHND)
