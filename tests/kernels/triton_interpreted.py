"""Run by test_triton.py with TRITON_INTERPRET=1: the kernels on the CPU, beside `chunked` in float64; prints JSON.

Outputs lie inside larger buffers of a mark, so that a write out of bounds is seen.
"""

import itertools
import json

import torch

from open_clip_linear.kernels import chunked, triton_affine
from open_clip_linear.kernels.form import form_of

MARK = float("nan")
FORMS = [("eq7", "half"), ("eq7", "mean"), ("eq4", "one"), ("eq4", "half_n"), ("inline", "mean")]
SHAPES = [(1, 2, 70, 32), (2, 1, 131, 80), (1, 1, 1, 16), (1, 3, 33, 96), (1, 1, 300, 64)]


def framed(*shape: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor (B, H, N, D) inside a buffer (B, N + 2, H + 2, D + 8) of marks."""
    B, H, N, D = shape
    buffer = torch.full((B, N + 2, H + 2, D + 8), MARK, dtype=dtype)
    return buffer, buffer[:, 1:-1, 1:-1, 4:-4].transpose(1, 2)


def marks(buffer: torch.Tensor) -> int:
    return int(buffer.isnan().sum())


found = []
for shape, (kind, scale), dtype in itertools.product(SHAPES, FORMS, (torch.float32, torch.float16)):
    torch.manual_seed(0)
    B, H, N, D = shape
    form = form_of(kind, scale, True, N, D)
    q, k, v = torch.randn(B, N, 3, H, D).to(dtype).permute(2, 0, 3, 1, 4)
    do = torch.randn(B, H, N, D).to(dtype)
    gain = torch.randn(H) if kind == "eq7" else None
    frames = [framed(*shape, dtype=dtype) for _ in range(4)]
    o, dq, dk, dv = (inner for _, inner in frames)
    S, rows = triton_affine.forward(q, k, v, gain, o, form)
    dgain = triton_affine.backward(do, q, k, v, gain, S, rows, dq, dk, dv, form)

    wide = [t.double() for t in (q, k, v)]
    exact = [torch.empty(shape, dtype=torch.float64) for _ in range(4)]
    wide_gain = None if gain is None else gain.double()
    S64, rows64 = chunked.forward(*wide, wide_gain, exact[0], form)
    dgain64 = chunked.backward(do.double(), *wide, wide_gain, S64, rows64, *exact[1:], form)
    pairs = [*zip((o, dq, dk, dv), exact, strict=True), (dgain, dgain64)]
    errors = [float((a.double() - b).abs().max() / b.abs().max().clamp(min=0.1)) for a, b in pairs]
    outside = sum(buffer.numel() - inner.numel() - marks(buffer) for buffer, inner in frames)
    found.append({"case": f"{shape} {kind} {scale} {dtype}", "error": max(errors), "overwritten": outside})
print(json.dumps(found))
