"""`softmax`: OpenCLIP's own attention, Σ_n softmax(q_i·k_n/√D) v_n. Cost per head: 4·N²·D FLOPs forward."""

import torch
from torch import Tensor
from torch.nn import functional as F

from open_clip_linear.attention.base import Attention
from open_clip_linear.attention.sums import hide


def softmax_attention(
    q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, causal: bool = False, valid_BN: Tensor | None = None
) -> Tensor:
    """Scaled dot-product attention; any float dtype, (B, H, N, D) → (B, H, N, D).

    Args:
        causal: row i sees keys n ≤ i.
        valid_BN: bool, false where a key is padding. A row that sees no key gets zero.
    """
    if valid_BN is None:
        return F.scaled_dot_product_attention(q_BHND, k_BHND, v_BHND, is_causal=causal)
    N = q_BHND.shape[-2]
    seen = valid_BN[:, None, None, :].expand(-1, -1, N, -1)
    if causal:
        seen = seen & torch.ones(N, N, dtype=torch.bool, device=seen.device).tril()
    # A row without keys would be NaN in some backends, and its gradient too: it gets all of them, then zero.
    blind = ~seen.any(-1, keepdim=True)
    o_BHND = F.scaled_dot_product_attention(q_BHND, k_BHND, hide(v_BHND, valid_BN), attn_mask=seen | blind)
    return o_BHND.masked_fill(blind, 0)


class Softmax(Attention):
    """The baseline; equals stock OpenCLIP from the same weights."""

    kind = "softmax"
    text = True

    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, valid_BN: Tensor | None) -> Tensor:
        return softmax_attention(q_BHND, k_BHND, v_BHND, self.layout.causal, valid_BN)
