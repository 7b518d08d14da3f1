"""The specification: every kind written out as a sum over keys with explicit weights, nothing clever.

Each function takes q, k, v (B, H, N, D) and returns (B, H, N, D); run in float64 it is what the fast forms and
their gradients are tested against. Cost and memory are N², and `sema` loops over windows in Python.
Sources: arXiv 2604.10064 (eq4, eq7), 2506.08297 (sema), 2412.06590 (inline).
"""

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


def eq4(q: Tensor, k: Tensor, v: Tensor, norm: str = "on", gain: str = "one") -> Tensor:
    if norm == "on":
        q, k = unit(q), unit(k)
    N = q.shape[-2]
    weights = 1 + q @ k.mT
    d = weights.sum(-1, keepdim=True) / N
    sign = torch.where(d < 0, -1.0, 1.0) if norm == "off" else 1.0
    size = d.abs() if norm == "off" else d
    o = (weights @ v / N) / (sign * size.clamp(min=1e-6))
    return o * N / 2 if gain == "half_n" else o


def eq7(q: Tensor, k: Tensor, v: Tensor, scale: str = "half", log_gain: Tensor | None = None) -> Tensor:
    """`log_gain` (H,) belongs to scale="learned"."""
    o = 0.5 * (1 + unit(q) @ unit(k).mT) @ v
    if scale == "half":
        return o
    o = o / q.shape[-2]
    return o if log_gain is None else o * log_gain.exp().view(-1, 1, 1)


def inline(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    centred = k - k.mean(-2, keepdim=True)
    weights = (1 + q @ centred.mT * q.shape[-1] ** -0.5) / q.shape[-2]
    return weights @ v


def sema(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: tuple[int, int],
    prefix: int = 1,
    window: int = 7,
    local: str = "softmax",
) -> Tensor:
    rows: list[Tensor] = [softmax(q[:, :, i : i + 1], k, v) for i in range(prefix)]
    for y in range(grid[0]):
        for x in range(grid[1]):
            keys = [
                prefix + ky * grid[1] + kx
                for ky in range(grid[0])
                for kx in range(grid[1])
                if (ky // window, kx // window) == (y // window, x // window)
            ]
            i = prefix + y * grid[1] + x
            qi, kw, vw = q[:, :, i : i + 1], k[:, :, keys], v[:, :, keys]
            if local == "softmax":
                rows.append(softmax(qi, kw, vw))
            else:
                # The window as the whole world of Eq. 4 or Eq. 7: weights over its own keys only.
                weights = 1 + unit(qi) @ unit(kw).mT
                if local == "eq4":
                    rows.append(weights @ vw / len(keys) / weights.mean(-1, keepdim=True).clamp(min=1e-6))
                else:
                    rows.append(weights @ vw / (2 * len(keys)))
    return torch.cat(rows, dim=2) + v.mean(-2, keepdim=True)
