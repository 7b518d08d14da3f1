"""`eq7`: the affine kernel without a denominator, ½ Σ_n (1+q_i·k_n) v_n with q and k L2-normalised per head.

Source: Eq. 7 of arXiv 2604.10064. The paper's form has no 1/N, so its output grows with the number of tokens;
`scale=mean` (divide by N) and `scale=learned` (divide by N, times one learned gain a head) are this project's.
Causal, row i divides by the i keys it sees. Cost per head: 4·N·D² FLOPs forward; causal, see `sums`.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from open_clip_linear.attention.affine import AffineAttention
from open_clip_linear.attention.base import Choice, Layout, Value, unit, widen
from open_clip_linear.attention.sums import count_seen, hide, product_seen, sum_seen


def eq7_attention(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    mean: bool = False,
    log_gain_H: Tensor | None = None,
    causal: bool = False,
    valid_BN: Tensor | None = None,
) -> Tensor:
    """Linear-cost Eq. 7: (B, H, N, D) → (B, H, N, D) in q's dtype.

    The token sum and q·(KᵀV) stay separate terms: 1+q·k would round to 1 in bf16.

    Args:
        mean: divide by the number of keys a row sees, so that the output does not depend on it. Without it fp16
            overflows where N/2·|mean v| exceeds 65,504.
        log_gain_H: logarithm of one factor a head, (H,).
        causal: row i sees keys n ≤ i.
        valid_BN: bool, false where a key is padding.
    """
    k, v = hide(unit(k_BHND), valid_BN), hide(widen(v_BHND), valid_BN)
    if log_gain_H is not None:
        v = v * widen(log_gain_H).exp()[:, None, None]
    o_BHND = sum_seen(v, causal) + product_seen(unit(q_BHND), k, v, causal)
    factor = 0.5 / count_seen(v, causal, valid_BN) if mean else 0.5
    return (o_BHND * factor).to(q_BHND.dtype)


class Eq7(AffineAttention):
    """Affine-kernel linear attention without the denominator.

    With `scale=learned` the parameter is `log_gain` (H,): the logarithm, so that an optimizer moves a gain of N as
    easily as a gain of 1. `init=literal` starts it at log N, the paper's form at the tower's own number of tokens.
    """

    kind = "eq7"
    options = (
        Choice("scale", ("half", "mean", "learned")),
        Choice("init", ("mean", "literal"), only_init=True),
    )
    text = True

    def __init__(self, dim: int, num_heads: int, layout: Layout, scale: str, init: str) -> None:
        super().__init__(dim, num_heads, layout)
        self.mean = scale != "half"
        start = math.log(layout.tokens) if init == "literal" else 0.0
        self.log_gain = nn.Parameter(torch.full((num_heads,), start)) if scale == "learned" else None

    @classmethod
    def check(cls, layout: Layout, **options: Value) -> None:
        if options["init"] != "mean" and options["scale"] != "learned":
            raise ValueError("init=literal sets where a learned gain starts; it needs scale=learned")

    @classmethod
    def weight_sum(cls, keys: float, **options: Value) -> float:
        return keys / 2 if options["scale"] == "half" else 0.5

    @property
    def fast(self) -> dict[str, Any]:
        return {"kind": "eq7", "scale": "mean" if self.mean else "half", "log_gain": self.log_gain}

    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, valid_BN: Tensor | None) -> Tensor:
        return eq7_attention(q_BHND, k_BHND, v_BHND, self.mean, self.log_gain, self.layout.causal, valid_BN)
