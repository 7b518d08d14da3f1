"""What every kind's test file shares: inputs at odd shapes, and equality with the float64 specification."""

from collections.abc import Callable

import torch
from torch import Tensor

Attend = Callable[..., Tensor]

# (B, H, N, D): single tokens, odd lengths, head dimensions that are no power of two.
SHAPES = [(2, 3, 1, 32), (1, 2, 2, 60), (2, 1, 63, 64), (1, 3, 197, 32), (1, 2, 500, 60)]


def inputs(shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v as leaves that want gradients."""
    generator = torch.Generator().manual_seed(sum(shape))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(3)]


def output_and_gradients(attend: Attend, tensors: list[Tensor]) -> list[Tensor]:
    """The output and the gradient of every tensor under one fixed random cotangent."""
    out = attend(*tensors)
    generator = torch.Generator().manual_seed(7)
    cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    return [out, *torch.autograd.grad(out, tensors, cotangent)]


def assert_equal(fast: Attend, naive: Attend, tensors: list[Tensor], tolerance: float) -> None:
    """Output and all gradients of `fast` equal those of `naive` in float64, relative to the largest entry.

    Inputs are of order 1; a tensor whose largest entry is below 0.1 (a gradient that cancels to zero) counts as 0.1.
    """
    wide = [t.detach().double().requires_grad_() for t in tensors]
    for found, expected in zip(output_and_gradients(fast, tensors), output_and_gradients(naive, wide), strict=True):
        assert found.dtype == tensors[0].dtype
        error = (found.double() - expected).abs().max() / expected.abs().max().clamp(min=0.1)
        assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"


def assert_matches_specification(fast: Attend, naive: Attend, shape: tuple[int, int, int, int]) -> None:
    """float64 to 1e-9, float32 to 1e-5, and the same from non-contiguous and expanded inputs."""
    assert_equal(fast, naive, inputs(shape), 1e-9)
    assert_equal(fast, naive, inputs(shape, torch.float32), 1e-5)

    B, H, N, D = shape
    strided = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in inputs(shape)]
    assert_equal(fast, naive, strided, 1e-9)
    expanded = [t.detach()[:1, :, :1].expand(B, H, N, D).requires_grad_() for t in inputs(shape)]
    assert_equal(fast, naive, expanded, 1e-9)


def assert_low_precision(fast: Attend, naive: Attend, bound: float) -> None:
    """bf16 output within `bound` (relative to the rms of the output) of the specification on the same inputs."""
    tensors = [t.detach() for t in inputs((2, 3, 197, 64), torch.bfloat16)]
    expected = naive(*[t.double() for t in tensors])
    found = fast(*tensors)
    assert found.dtype == torch.bfloat16
    error = (found.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error <= bound, f"relative rms error {error:.2e} > {bound:.0e}"
