"""`softmax`: OpenCLIP's own attention, Σ_n softmax(q_i·k_n/√D) v_n. Cost per head: 4·N²·D FLOPs forward."""

from torch import Tensor
from torch.nn import functional as F

from open_clip_linear.attention.base import Attention


def softmax_attention(q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
    """Scaled dot-product attention over all tokens; any float dtype, (B, H, N, D) → (B, H, N, D)."""
    return F.scaled_dot_product_attention(q_BHND, k_BHND, v_BHND)


class Softmax(Attention):
    """The baseline; equals stock OpenCLIP from the same weights."""

    kind = "softmax"

    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
        return softmax_attention(q_BHND, k_BHND, v_BHND)
