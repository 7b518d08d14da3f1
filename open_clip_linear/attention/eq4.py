"""`eq4`: the affine kernel with its denominator, Σ_n (1+q_i·k_n) v_n / Σ_n (1+q_i·k_n).

Source: Eq. 4 of arXiv 2604.10064. q and k are L2-normalised per head unless `norm=off`; the clamp of the
denominator and `gain=half_n`, the control that turns Eq. 4 into Eq. 7's size, are this project's.
Cost per head: 4·N·D² FLOPs forward.
"""

import torch
from torch import Tensor

from open_clip_linear.attention.base import Attention, Choice, TokenLayout, unit, widen

MIN_DENOMINATOR = 1e-6


def clamp_denominator(d: Tensor, signed: bool) -> Tensor:
    """max(d, 1e-6), or sign(d)·max(|d|, 1e-6) with sign(0) = 1 where the kernel may be negative."""
    if not signed:
        return d.clamp(min=MIN_DENOMINATOR)
    return torch.where(d < 0, d.clamp(max=-MIN_DENOMINATOR), d.clamp(min=MIN_DENOMINATOR))


def eq4_attention(q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, norm: bool = True, gain: str = "one") -> Tensor:
    """Linear-cost Eq. 4: (B, H, N, D) → (B, H, N, D) in q's dtype.

    Numerator and denominator are both divided by N, which keeps them finite at any length.

    Args:
        norm: L2-normalise q and k per head and token; off, the denominator may be negative.
        gain: "one", or "half_n" to multiply by N/2 (the control for Eq. 7).
    """
    N = q_BHND.shape[-2]
    q, k = (unit(q_BHND), unit(k_BHND)) if norm else (widen(q_BHND), widen(k_BHND))
    v = widen(v_BHND)
    state_BHDD = k.transpose(-1, -2) @ v / N
    numerator = v.mean(-2, keepdim=True) + q @ state_BHDD
    denominator = 1 + (q * k.mean(-2, keepdim=True)).sum(-1, keepdim=True)
    o_BHND = numerator / clamp_denominator(denominator, signed=not norm)
    if gain == "half_n":
        o_BHND = o_BHND * (N / 2)
    return o_BHND.to(q_BHND.dtype)


class Eq4(Attention):
    """Affine-kernel linear attention with the denominator."""

    kind = "eq4"
    options = (Choice("norm", ("on", "off")), Choice("gain", ("one", "half_n")))

    def __init__(self, dim: int, num_heads: int, layout: TokenLayout, norm: str, gain: str) -> None:
        super().__init__(dim, num_heads, layout)
        self.norm = norm == "on"
        self.gain = gain

    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
        return eq4_attention(q_BHND, k_BHND, v_BHND, self.norm, self.gain)
