"""Sums over the keys that a row sees: what eq4, eq7 and inline are made of, full or causal, with key padding.

All take float32 or wider. Padding is taken out of keys and values first (`hide`), so that a sum over the keys a row
sees needs no mask. Causal sums never touch a later token: an earlier row stays the same bit for bit whatever finite
values come after it. Cost per head: 4·N·D² FLOPs full; causal, about 4·N·D·min(N, CHUNK + D), linear in N beyond
two chunks.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

# Causal products are quadratic inside chunks of about this many rows, linear across them; two chunks are one product.
CHUNK = 64


def hide(x_BHND: Tensor, valid_BN: Tensor | None) -> Tensor:
    """`x` with zeros in place of padding."""
    return x_BHND if valid_BN is None else x_BHND.masked_fill(~valid_BN[:, None, :, None], 0)


def count_seen(x_BHND: Tensor, causal: bool, valid_BN: Tensor | None) -> Tensor | int:
    """How many keys each row sees, at least 1: N, or a tensor of x's dtype that broadcasts to (B, H, N, 1)."""
    N = x_BHND.shape[-2]
    if valid_BN is not None:
        valid = valid_BN[:, None, :, None].to(x_BHND.dtype)
        return (valid.cumsum(-2) if causal else valid.sum(-2, keepdim=True)).clamp(min=1)
    return torch.arange(1, N + 1, dtype=x_BHND.dtype, device=x_BHND.device)[:, None] if causal else N


def sum_seen(x_BHND: Tensor, causal: bool) -> Tensor:
    """Σ x_n over the keys each row sees: (B, H, N, D) causal, (B, H, 1, D) full."""
    return x_BHND.cumsum(-2) if causal else x_BHND.sum(-2, keepdim=True)


def product_seen(q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, causal: bool) -> Tensor:
    """Σ (q_i·k_n) v_n over the keys n that row i sees: (B, H, N, D)."""
    if not causal:
        return q_BHND @ (k_BHND.mT @ v_BHND)
    N = q_BHND.shape[-2]
    if N <= 2 * CHUNK:
        return (q_BHND @ k_BHND.mT).tril_() @ v_BHND
    # G chunks of C rows: keys of the own chunk one by one, keys of earlier chunks by their summed state.
    G = -(-N // CHUNK)
    C = -(-N // G)
    q, k, v = (_chunks(t, G, C) for t in (q_BHND, k_BHND, v_BHND))
    state_BHGDD = (k.mT @ v).cumsum(-3)
    earlier = F.pad(state_BHGDD[..., :-1, :, :], (0, 0, 0, 0, 1, 0))
    o = (q @ k.mT).tril_() @ v + q @ earlier
    return o.flatten(-3, -2)[..., :N, :]


def _chunks(x_BHND: Tensor, G: int, C: int) -> Tensor:
    """(B, H, G, C, D), with zeros after the last row; a copy, which autograd would save, only where there are such."""
    missing = G * C - x_BHND.shape[-2]
    return (F.pad(x_BHND, (0, 0, 0, missing)) if missing else x_BHND).unflatten(-2, (G, C))
