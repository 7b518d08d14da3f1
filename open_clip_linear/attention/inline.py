"""`inline`: (1/N) Σ_n (1 + s·q_i·(k_n − k̄)) v_n with s = D^-½ and k̄ the mean key.

Source: InLine attention, arXiv 2412.06590 (without its convolutional residual). The weights sum to 1 at every N
but may be negative: the repair of Eq. 4 and Eq. 7 that keeps a linear cost. Causal, row i has the i keys it sees and
their mean in place of N and k̄. Cost per head: 4·N·D² FLOPs forward; causal, see `sums`.
"""

from typing import Any

from torch import Tensor

from open_clip_linear.attention.affine import AffineAttention
from open_clip_linear.attention.base import widen
from open_clip_linear.attention.sums import count_seen, hide, product_seen, sum_seen


def inline_attention(
    q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, causal: bool = False, valid_BN: Tensor | None = None
) -> Tensor:
    """Linear-cost InLine attention: (B, H, N, D) → (B, H, N, D) in q's dtype.

    Args:
        causal: row i sees keys n ≤ i.
        valid_BN: bool, false where a key is padding.
    """
    D = q_BHND.shape[-1]
    q, k, v = widen(q_BHND), hide(widen(k_BHND), valid_BN), hide(widen(v_BHND), valid_BN)
    count = count_seen(v, causal, valid_BN)
    # Σ (k_n − k̄) v_n is a difference of two large sums where keys share an offset. Any shift of all keys leaves it
    # the same, so they are brought near zero first: by their mean, or by the first key, which every row may see.
    shift = k[..., :1, :] if causal else sum_seen(k, False) / count
    k = hide(k - shift, valid_BN)
    mean_v = sum_seen(v, causal) / count
    product = product_seen(q, k, v, causal) / count
    # The rest of the mean: causal, what rows see beside the first key; full, what rounding left in it.
    product = product - (q * (sum_seen(k, causal) / count)).sum(-1, keepdim=True) * mean_v
    return (mean_v + product * D**-0.5).to(q_BHND.dtype)


class Inline(AffineAttention):
    """Injective linear attention; no options."""

    kind = "inline"
    text = True

    @property
    def fast(self) -> dict[str, Any]:
        return {"kind": "inline", "scale": "mean"}

    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, valid_BN: Tensor | None) -> Tensor:
        return inline_attention(q_BHND, k_BHND, v_BHND, self.layout.causal, valid_BN)
