"""Shares of keys: |w|/Σ|w| of a row of attention weights, and what is said of them."""

import torch
from torch import Tensor


def shares_of(weights: Tensor) -> Tensor:
    """|w|/Σ|w| over the last dimension: non-negative, of sum 1; a row of zeros stays zeros."""
    sizes = weights.abs()
    return sizes / sizes.sum(-1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)


def entropy_of(shares: Tensor) -> Tensor:
    """-Σ p log p over the last dimension, in nats. Its exponential is the effective number of keys, from 1 to N."""
    return -torch.xlogy(shares, shares).sum(-1)
