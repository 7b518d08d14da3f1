"""`eq4`: the affine kernel with its denominator, Σ_n (1+q_i·k_n) v_n / Σ_n (1+q_i·k_n).

Source: Eq. 4 of arXiv 2604.10064. q and k are L2-normalised per head unless `norm=off`; the clamp of the
denominator and `gain=half_n`, the control that turns Eq. 4 into Eq. 7's size, are this project's. With `norm=off` the
denominator crosses zero, and outputs and gradients of some rows are hundreds of times those of others: a control, not
for training in bf16 or in text towers.
Cost per head: 4·N·D² FLOPs forward; causal, see `sums`.
"""

from typing import Any

from torch import Tensor

from open_clip_linear.attention.affine import AffineAttention
from open_clip_linear.attention.base import Choice, Layout, Value, unit, widen
from open_clip_linear.attention.sums import count_seen, hide, product_seen, sum_seen
from open_clip_linear.kernels.chunked import clamp_denominator


def eq4_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    norm: bool = True,
    gain: str = "one",
    causal: bool = False,
    valid_BN: Tensor | None = None,
) -> Tensor:
    """Linear-cost Eq. 4: (B, H, N, D) → (B, H, N, D) in q's dtype.

    Numerator and denominator are both divided by the number of keys, which keeps them finite at any length.

    Args:
        norm: L2-normalise q and k per head and token; off, the denominator may be negative.
        gain: "one", or "half_n" to multiply by half the number of keys a row sees (the control for Eq. 7).
        causal: row i sees keys n ≤ i.
        valid_BN: bool, false where a key is padding.
    """
    q, k = (unit(q_BHND), unit(k_BHND)) if norm else (widen(q_BHND), widen(k_BHND))
    k, v = hide(k, valid_BN), hide(widen(v_BHND), valid_BN)
    count = count_seen(v, causal, valid_BN)
    numerator = (sum_seen(v, causal) + product_seen(q, k, v, causal)) / count
    denominator = 1 + (q * (sum_seen(k, causal) / count)).sum(-1, keepdim=True)
    o_BHND = numerator / clamp_denominator(denominator, signed=not norm)
    if gain == "half_n":
        o_BHND = o_BHND * (count / 2)
    return o_BHND.to(q_BHND.dtype)


class Eq4(AffineAttention):
    """Affine-kernel linear attention with the denominator."""

    kind = "eq4"
    options = (Choice("norm", ("on", "off")), Choice("gain", ("one", "half_n")))
    text = True

    def __init__(self, dim: int, num_heads: int, layout: Layout, norm: str, gain: str) -> None:
        super().__init__(dim, num_heads, layout)
        self.norm = norm == "on"
        self.gain = gain

    @classmethod
    def weight_sum(cls, keys: float, **options: Value) -> float:
        return keys / 2 if options["gain"] == "half_n" else 1.0

    @property
    def fast(self) -> dict[str, Any]:
        return {"kind": "eq4", "scale": self.gain, "norm": self.norm}

    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, valid_BN: Tensor | None) -> Tensor:
        return eq4_attention(q_BHND, k_BHND, v_BHND, self.norm, self.gain, self.layout.causal, valid_BN)
