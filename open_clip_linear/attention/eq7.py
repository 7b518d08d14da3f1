"""`eq7`: the affine kernel without a denominator, ½ Σ_n (1+q_i·k_n) v_n with q and k L2-normalised per head.

Source: Eq. 7 of arXiv 2604.10064. The paper's form has no 1/N, so its output grows with the number of tokens;
`scale=mean` (divide by N) and `scale=learned` (divide by N, times one learned gain a head) are this project's.
Cost per head: 4·N·D² FLOPs forward.
"""

import math

import torch
from torch import Tensor, nn

from open_clip_linear.attention.base import Attention, Choice, TokenLayout, Value, unit, widen


def eq7_attention(
    q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, mean: bool = False, log_gain_H: Tensor | None = None
) -> Tensor:
    """Linear-cost Eq. 7: (B, H, N, D) → (B, H, N, D) in q's dtype.

    The token sum and q·(KᵀV) stay separate terms: 1+q·k would round to 1 in bf16.

    Args:
        mean: divide by N, so that the output does not depend on the number of tokens. Without it fp16 overflows
            where N/2·|mean v| exceeds 65,504.
        log_gain_H: logarithm of one factor a head, (H,).
    """
    half = 0.5 / q_BHND.shape[-2] if mean else 0.5
    v = widen(v_BHND)
    if log_gain_H is not None:
        v = v * widen(log_gain_H).exp()[:, None, None]
    state_BHDD = unit(k_BHND).transpose(-1, -2) @ v * half
    o_BHND = v.sum(-2, keepdim=True) * half + unit(q_BHND) @ state_BHDD
    return o_BHND.to(q_BHND.dtype)


class Eq7(Attention):
    """Affine-kernel linear attention without the denominator.

    With `scale=learned` the parameter is `log_gain` (H,): the logarithm, so that an optimizer moves a gain of N as
    easily as a gain of 1. `init=literal` starts it at log N, the paper's form at the tower's own number of tokens.
    """

    kind = "eq7"
    options = (
        Choice("scale", ("half", "mean", "learned")),
        Choice("init", ("mean", "literal"), only_init=True),
    )

    def __init__(self, dim: int, num_heads: int, layout: TokenLayout, scale: str, init: str) -> None:
        super().__init__(dim, num_heads, layout)
        self.mean = scale != "half"
        start = math.log(layout.tokens) if init == "literal" else 0.0
        self.log_gain = nn.Parameter(torch.full((num_heads,), start)) if scale == "learned" else None

    @classmethod
    def check(cls, layout: TokenLayout, **options: Value) -> None:
        if options["init"] != "mean" and options["scale"] != "learned":
            raise ValueError("init=literal sets where a learned gain starts; it needs scale=learned")

    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
        return eq7_attention(q_BHND, k_BHND, v_BHND, self.mean, self.log_gain)
