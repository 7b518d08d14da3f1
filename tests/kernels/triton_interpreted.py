"""Run by test_triton.py with TRITON_INTERPRET=1: the kernels on the CPU, beside `chunked` in float64; prints JSON.

    TRITON_INTERPRET=1 python tests/kernels/triton_interpreted.py short

Outputs lie inside larger buffers of a mark, so that a write out of bounds is seen.
"""

import itertools
import json
import sys
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from open_clip_linear.kernels import chunked
from open_clip_linear.kernels.form import form_of

MARK = float("nan")
DTYPES = (torch.float32, torch.float16)
FORMS = [
    ("eq7", "half", True),
    ("eq7", "mean", True),
    ("eq4", "one", True),
    ("eq4", "half_n", True),
    ("eq4", "one", False),
    ("inline", "mean", True),
]
SHAPES = {
    "split": [(1, 2, 70, 32), (2, 1, 131, 80), (1, 1, 1, 16), (1, 2, 33, 96), (1, 1, 300, 64)],
    "short": [(2, 2, 37, 32), (1, 1, 197, 64), (1, 1, 257, 80), (2, 1, 2, 96), (1, 1, 1, 128)],
}
FAR = (1, 1, 36, 16)  # with rows so far apart that the last ones are more than 2³¹ numbers from the first


def framed(*shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A tensor (B, H, N, D) inside a buffer (B, N + 2, H + 2, D + 8) of marks."""
    B, H, N, D = shape
    buffer = torch.full((B, N + 2, H + 2, D + 8), MARK, dtype=dtype)
    return buffer, buffer[:, 1:-1, 1:-1, 4:-4].transpose(1, 2)


def marks(buffer: Tensor) -> int:
    return int(buffer.isnan().sum())


def packed(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """q, k and v out of one tensor."""
    B, H, N, D = shape
    return list(torch.randn(B, N, 3, H, D).to(dtype).permute(2, 0, 3, 1, 4))


def odd(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """q with columns far apart, k the same for every sample, v every third of a longer tensor's rows."""
    B, H, N, D = shape
    q, k, v = torch.randn(B, H, D, N), torch.randn(1, H, N, D), torch.randn(B, H, 3 * N, D)
    return [q.to(dtype).mT, k.to(dtype).expand(B, -1, -1, -1), v.to(dtype)[:, :, ::3]]


def far(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """k's rows are 2²⁶ numbers apart, in memory of which next to nothing is touched."""
    q, k, v = packed(shape, dtype)
    _, H, N, D = shape
    apart = torch.empty(N << 26, dtype=dtype).as_strided(shape, (H * D, D, 1 << 26, 1))
    return [q, apart.copy_(k), v]


def tame(q: Tensor, k: Tensor) -> None:
    """Change q so that each head's first denominator of un-normalised q and k is -2 and the others are about 1."""
    mean = k.float().mean(2)
    q *= 0.1
    q[:, :, 0] = -3 * mean / mean.square().sum(-1, keepdim=True)


def compare(kernels: ModuleType, tensors: list[Tensor], kind: str, scale: str, norm: bool) -> dict[str, object]:
    """The largest error of output and gradients, each over its largest entry, and how many marks were overwritten."""
    q, k, v = tensors
    if not norm:
        tame(q, k)
    _, H, N, D = q.shape
    form = form_of(kind, scale, norm, N, D)
    do = torch.randn(q.shape).to(q.dtype)
    gain = torch.randn(H) if kind == "eq7" else None
    frames = [framed(*q.shape, dtype=q.dtype) for _ in range(4)]
    o, dq, dk, dv = (inner for _, inner in frames)
    S, rows = kernels.forward(q, k, v, gain, o, form)
    dgain = kernels.backward(do, q, k, v, gain, S, rows, dq, dk, dv, form)

    wide = [t.double() for t in tensors]
    exact = [torch.empty(q.shape, dtype=torch.float64) for _ in range(4)]
    wide_gain = None if gain is None else gain.double()
    S64, rows64 = chunked.forward(*wide, wide_gain, exact[0], form)
    dgain64 = chunked.backward(do.double(), *wide, wide_gain, S64, rows64, *exact[1:], form)
    pairs = [*zip((o, dq, dk, dv), exact, strict=True), (dgain, dgain64), (S, S64)]
    errors = [float((a.double() - b).abs().max() / b.abs().max().clamp(min=0.1)) for a, b in pairs]
    outside = sum(buffer.numel() - inner.numel() - marks(buffer) for buffer, inner in frames)
    return {"case": f"{tuple(q.shape)} {kind} {scale} {norm} {q.dtype}", "error": max(errors), "overwritten": outside}


torch.manual_seed(0)
kernels = import_module(f"open_clip_linear.kernels.triton_{sys.argv[1]}")
found = []
for shape, form, dtype in itertools.product(SHAPES[sys.argv[1]], FORMS, DTYPES):
    found.append(compare(kernels, packed(shape, dtype), *form))
for form in FORMS:
    found.append(compare(kernels, odd((2, 3, 21, 32), torch.float32), *form))
found.append(compare(kernels, far(FAR, torch.float16), *FORMS[0]))
kernels.tiles.shifted = lambda q, form: False  # as of bf16, which the interpreter cannot multiply
found.append(compare(kernels, packed((2, 1, 131, 80), torch.float32), "inline", "mean", True))
print(json.dumps(found))
