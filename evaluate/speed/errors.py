"""Rounding errors beside float64: of outputs and of gradients, as rms over the rms of what is exact."""

from dataclasses import replace

import torch
from torch import Tensor

from evaluate.speed.operators import Attend, Case, attend, exact, inputs

LONGEST, LONGEST_SOFTMAX = 1_100_000, 16_385  # tokens: float64 takes many times the memory, and of softmax N² time


def error_of(case: Case, step: str, seed: int = 0) -> float | None:
    """The error of the output, or the largest of the three gradients'; None where float64 would take too much.

    The seed is that of the numbers drawn.
    """
    if case.n > (LONGEST_SOFTMAX if case.kind == "softmax" else LONGEST):
        return None
    heads = 1 if case.n > 1025 else 2
    tensors = inputs(replace(case, heads=heads), grad=step != "forward", seed=seed)
    wide = [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]
    cotangent = torch.randn(tensors[0].shape, generator=torch.Generator().manual_seed(seed + 1)).to(tensors[0])
    found = _outcome(attend(case.kind, case.n), tensors, None if step == "forward" else cotangent)
    expected = _outcome(exact(case.kind, case.n), wide, None if step == "forward" else cotangent.double())
    errors = [_relative(f, e) for f, e in zip(found, expected, strict=True)]
    return float(torch.tensor(errors).max())  # NaN where one of them is


def _outcome(fn: Attend, tensors: list[Tensor], cotangent: Tensor | None) -> list[Tensor]:
    o = fn(*tensors)
    return [o] if cotangent is None else list(torch.autograd.grad(o, tensors, cotangent))


def _relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())
