"""The specification: every kind written out as a sum over keys with explicit weights, nothing clever.

Each function takes q, k, v (B, H, N, D) and returns (B, H, N, D); run in float64 it is what the fast forms and
their gradients are tested against. `causal` lets row i see keys n ≤ i, `valid` (B, N) bool is false where a key is
padding; a row that sees no key gets zero. Cost and memory are N², and `sema` loops over rows in Python.
Sources: arXiv 2604.10064 (eq4, eq7), 2506.08297 (sema), 2412.06590 (inline).
"""

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def seen_by(k: Tensor, causal: bool, valid: Tensor | None) -> Tensor:
    """1 where row i sees key n, else 0: (B, 1, N, N)."""
    B, _, N, _ = k.shape
    seen = torch.ones(B, 1, N, N, dtype=k.dtype)
    for i in range(N if causal else 0):
        seen[:, :, i, i + 1 :] = 0
    return seen if valid is None else seen * valid[:, None, None, :]


def softmax(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, valid: Tensor | None = None) -> Tensor:
    seen = seen_by(k, causal, valid)
    exponentials = (q @ k.mT / q.shape[-1] ** 0.5).exp() * seen
    return exponentials @ v / exponentials.sum(-1, keepdim=True).clamp(min=1e-300)


def eq4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm: str = "on",
    gain: str = "one",
    causal: bool = False,
    valid: Tensor | None = None,
) -> Tensor:
    if norm == "on":
        q, k = unit(q), unit(k)
    seen = seen_by(k, causal, valid)
    count = seen.sum(-1, keepdim=True).clamp(min=1)
    weights = (1 + q @ k.mT) * seen
    d = weights.sum(-1, keepdim=True) / count
    sign = torch.where(d < 0, -1.0, 1.0) if norm == "off" else 1.0
    size = d.abs() if norm == "off" else d
    o = (weights @ v / count) / (sign * size.clamp(min=1e-6))
    return o * count / 2 if gain == "half_n" else o


def eq7(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: str = "half",
    log_gain: Tensor | None = None,
    causal: bool = False,
    valid: Tensor | None = None,
) -> Tensor:
    """`log_gain` (H,) belongs to scale="learned"."""
    seen = seen_by(k, causal, valid)
    o = 0.5 * ((1 + unit(q) @ unit(k).mT) * seen) @ v
    if scale == "half":
        return o
    o = o / seen.sum(-1, keepdim=True).clamp(min=1)
    return o if log_gain is None else o * log_gain.exp().view(-1, 1, 1)


def inline(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, valid: Tensor | None = None) -> Tensor:
    seen = seen_by(k, causal, valid)
    count = seen.sum(-1, keepdim=True).clamp(min=1)
    mean_key = seen @ k / count  # one for each row: the mean of the keys it sees
    products = q @ k.mT - (q * mean_key).sum(-1, keepdim=True)
    weights = (1 + products * q.shape[-1] ** -0.5) * seen / count
    return weights @ v


def sema(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: tuple[int, int],
    prefix: int = 1,
    window: int = 7,
    local: str = "softmax",
    suffix: int = 0,
    causal: bool = False,
    valid: Tensor | None = None,
) -> Tensor:
    """`prefix` and `suffix` tokens stand outside the grid and attend to every key. A text is a grid of one row."""
    N = q.shape[-2]
    seen = seen_by(k, causal, valid)
    rows: list[Tensor] = []
    for i in range(N):
        qi = q[:, :, i : i + 1]
        if not prefix <= i < N - suffix:
            keys = list(range(N))
        else:
            y, x = divmod(i - prefix, grid[1])
            keys = [
                prefix + ky * grid[1] + kx
                for ky in range(grid[0])
                for kx in range(grid[1])
                if (ky // window, kx // window) == (y // window, x // window)
            ]
        # The window as the whole world of its kernel: the keys of it that this row sees.
        si, kw, vw = seen[:, :, i : i + 1, keys], k[:, :, keys], v[:, :, keys]
        count = si.sum(-1, keepdim=True).clamp(min=1)
        if local == "softmax" or not prefix <= i < N - suffix:
            exponentials = (qi @ kw.mT / q.shape[-1] ** 0.5).exp() * si
            rows.append(exponentials @ vw / exponentials.sum(-1, keepdim=True).clamp(min=1e-300))
            continue
        weights = (1 + unit(qi) @ unit(kw).mT) * si
        if local == "eq4":
            rows.append(weights @ vw / count / (weights.sum(-1, keepdim=True) / count).clamp(min=1e-6))
        else:
            rows.append(weights @ vw / (2 * count))
    return torch.cat(rows, dim=2) + seen @ v / seen.sum(-1, keepdim=True).clamp(min=1)
