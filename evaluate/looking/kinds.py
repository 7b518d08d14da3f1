"""The weights of ten kinds of attention, written out for a few queries over many keys, and what a theorem says of each.

Each function takes q (R, D) and k (N, D) in float64 and returns the weights (R, N): one head, R queries that stand at
the first token, cost R·N. The library's own forms never make these; ``tests/evaluate/looking/test_kinds.py`` holds
them to its specification.

The theorem (SEMA, arXiv 2506.08297): on a compact set of features, a continuous positive kernel that is divided by its
sum gives each of n keys a coefficient of Θ(1/n). Attention in a window of fixed size does not disperse.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from open_clip_linear.attention.base import unit

WINDOW = 7 * 7  # keys in a window: SEMA's 7 x 7 patches
LAMBDA = 0.8  # differential attention's: what its schedule 0.8 − 0.6·exp(−0.3·(layer−1)) starts deep layers with
# 1/temperature as a polynomial of the entropy, highest power first: the fit published in arXiv 2410.01104, which holds
# from an entropy of 0.5 on and is never below 1.
SHARPNESS = (-0.037, 0.481, -2.3, 4.917, -1.791)
ROPE_BASE = 10_000.0


def softmax(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q·k/√D)."""
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)


def elu1(q: Tensor, k: Tensor) -> Tensor:
    """φ(q)·φ(k)/Σ φ(q)·φ(k) with φ = ELU+1."""
    products = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    return products / products.sum(-1, keepdim=True)


def eq4(q: Tensor, k: Tensor) -> Tensor:
    """(1+q·k)/Σ(1+q·k) of unit vectors; the denominator is clamped as in the library."""
    affine = 1 + unit(q) @ unit(k).mT
    return affine / (affine.mean(-1, keepdim=True).clamp(min=1e-6) * len(k))


def eq7(q: Tensor, k: Tensor) -> Tensor:
    """(1+q·k)/2 of unit vectors, divided by nothing."""
    return (1 + unit(q) @ unit(k).mT) / 2


def differential(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q₁·k₁/√d) − λ·softmax(q₂·k₂/√d): each head's q and k are two halves of d = D/2."""
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    return softmax(q1, k1) - LAMBDA * softmax(q2, k2)


def adaptive(q: Tensor, k: Tensor) -> Tensor:
    """softmax(β·q·k/√D) with β = max(1, polynomial of the entropy that β = 1 gives)."""
    logits = q @ k.mT / q.shape[-1] ** 0.5
    shares = logits.softmax(-1)
    entropy = -torch.xlogy(shares, shares).sum(-1, keepdim=True)
    powers = torch.stack([entropy**power for power in range(len(SHARPNESS) - 1, -1, -1)])
    beta = (torch.tensor(SHARPNESS, dtype=q.dtype).view(-1, 1, 1) * powers).sum(0).clamp(min=1)
    return torch.where(entropy > 0.5, beta * logits, logits).softmax(-1)


def window(q: Tensor, k: Tensor) -> Tensor:
    """Softmax over the query's own window, the first `WINDOW` keys; nothing for the others."""
    return F.pad(softmax(q, k[:WINDOW]), (0, max(0, len(k) - WINDOW)))


def sema(q: Tensor, k: Tensor) -> Tensor:
    """The window's softmax and the mean of all, which sum to 2."""
    return window(q, k) + 1 / len(k)


def inline(q: Tensor, k: Tensor) -> Tensor:
    """(1 + q·(k − k̄)/√D)/N: of sum 1, may be negative."""
    return (1 + q @ (k - k.mean(0)).mT / q.shape[-1] ** 0.5) / len(k)


def mila(q: Tensor, k: Tensor) -> Tensor:
    """φ(q)·R(φ(k))/(Σ φ(q)·φ(k) + N·1e-6) with φ = ELU+1.

    R turns pairs of channels by the token's row (the first half of them) and its column (the second half) on a grid
    of about √N a side. The query stands at (0, 0), where nothing is turned.
    """
    N, D = k.shape
    columns = 2 ** math.ceil(math.log2(N) / 2)
    places = torch.stack([torch.arange(N) // columns, torch.arange(N) % columns], -1).to(k.dtype)
    frequencies = ROPE_BASE ** -(torch.arange(D // 4, dtype=k.dtype) / (D // 4))
    angles = (places[:, :, None] * frequencies).flatten(1)  # (N, D/2)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    pairs = torch.view_as_complex(k.view(N, D // 2, 2)) * torch.polar(torch.ones_like(angles), angles)
    products = q @ torch.view_as_real(pairs).flatten(1).mT
    return products / N / ((q @ k.mean(0))[:, None] + 1e-6)


@dataclass(frozen=True)
class Kind:
    """One kind: its weights, where they are from, and whether the theorem speaks of them."""

    name: str
    weights: Callable[[Tensor, Tensor], Tensor]
    source: str
    covered: bool  # by the theorem, on compact sets
    note: str


KINDS = (
    Kind("softmax", softmax, "arXiv 1706.03762", True, "covered"),
    Kind("elu1", elu1, "arXiv 2006.16236", True, "covered"),
    Kind(
        "eq4",
        eq4,
        "arXiv 2604.10064, Eq. 4",
        True,
        "covered; its features are unit vectors, a compact set, whatever goes in. Its kernel is zero for opposite "
        "vectors, so that the bound holds for keys that are spread out, and not for a few chosen ones",
    ),
    Kind(
        "eq7",
        eq7,
        "arXiv 2604.10064, Eq. 7",
        False,
        "not covered: without a denominator the coefficient of a key is (1+q·k)/2 at every N (exponent 0 of the "
        "largest weight); what falls is its share",
    ),
    Kind(
        "differential",
        differential,
        "arXiv 2410.05258",
        True,
        f"covered, both of its softmaxes are; λ = {LAMBDA}, and weights may be negative",
    ),
    Kind(
        "adaptive",
        adaptive,
        "arXiv 2410.01104",
        True,
        "covered: the sharpness is bounded. The published polynomial falls to 1 at an entropy of 5.9 nats, so that "
        "rows spread over more than about 380 keys are plain softmax",
    ),
    Kind("window", window, "arXiv 2506.08297", False, f"a fixed window of {WINDOW} keys, which does not disperse"),
    Kind(
        "sema",
        sema,
        "arXiv 2506.08297",
        False,
        f"the window of {WINDOW} keys does not disperse, and the mean gives every key 1/N beside it",
    ),
    Kind(
        "inline",
        inline,
        "arXiv 2412.06590",
        False,
        "not covered: the weights sum to 1 but may be negative, and Σ|w| may be larger than 1",
    ),
    Kind(
        "mila",
        mila,
        "arXiv 2405.16605",
        True,
        "the coefficient (the largest weight) is covered. The rotation is in the numerator alone, so that weights may "
        "be negative and their sum falls as the grid grows: a share falls more slowly than its coefficient",
    ),
)
