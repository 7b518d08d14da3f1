"""What a GPU says of the Triton kernels: are they right, and what share of its copy bandwidth do they reach?

    OPEN_CLIP_LINEAR_TRITON=1 python -m benchmarks.gpu --device cuda

Values and gradients are compared with the same form in float64 on the CPU, at odd lengths and every head dimension,
from packed and from separate tensors; anything off ends with exit code 1. Then the bytes that the kernels move (4 units
of N·D·H forward, 9 backward) over the time, beside a plain copy of as many. `benchmarks/gpu.sh` runs this and
`evaluate speed`.
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from evaluate.speed.operators import device_name
from evaluate.speed.timing import interleaved
from open_clip_linear import linear_attention, linear_attention_qkvpacked

FORMS = (("eq7", "half"), ("eq7", "mean"), ("eq4", "one"), ("eq4", "half_n"), ("inline", "mean"))
BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest entry
SHAPES = tuple((2, 3, n, d) for n, d in itertools.product((1, 77, 197, 1025), (32, 64, 80, 96, 128)))
FORWARD, BACKWARD = 4, 9  # units that the kernels move


def packed(q: Tensor, k: Tensor, v: Tensor, *, kind: str, scale: str) -> Tensor:
    """The packed entry on separate tensors."""
    qkv = torch.stack([q, k, v]).permute(1, 3, 0, 2, 4).contiguous()
    return linear_attention_qkvpacked(qkv, kind=kind, scale=scale).transpose(1, 2)


def worst_error(device: str, shape: tuple[int, ...], kind: str, scale: str, dtype: torch.dtype) -> float:
    """The largest error of output and gradients, over the largest entry of each."""
    generator = torch.Generator().manual_seed(sum(shape))
    tensors = [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]
    cotangent = torch.randn(shape, generator=generator).to(dtype)
    exact = outcome(
        partial(linear_attention, kind=kind, scale=scale), [t.double() for t in tensors], cotangent.double()
    )
    errors = []
    entries: tuple[Callable[..., Tensor], ...] = (linear_attention, packed)
    for entry in entries:
        found = outcome(partial(entry, kind=kind, scale=scale), [t.to(device) for t in tensors], cotangent.to(device))
        for one, expected in zip(found, exact, strict=True):
            errors.append((one.cpu().double() - expected).abs().max() / expected.abs().max().clamp(min=0.1))
    return float(torch.stack(errors).max())  # NaN where one of them is


def outcome(fn: Callable[..., Tensor], tensors: list[Tensor], cotangent: Tensor) -> list[Tensor]:
    """Output and three gradients."""
    leaves = [t.requires_grad_() for t in tensors]
    o = fn(*leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, cotangent)]


def check(device: str) -> list[str]:
    """A sentence for each case that is off."""
    off = []
    for shape, (kind, scale), (dtype, bound) in itertools.product(SHAPES, FORMS, BOUNDS.items()):
        error = worst_error(device, shape, kind, scale, dtype)
        if not error <= bound:  # nor NaN
            off.append(f"{kind} {scale} {dtype} {shape}: {error:.1e}, expected at most {bound:.0e}")
    return off


def bandwidth(device: str, n: int, heads: int) -> list[str]:
    """For each kind: gigabytes a second forward and backward, and their share of a copy's."""
    q, k, v = (torch.randn(1, heads, n, 64, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    cotangent, unit = torch.randn_like(q), q.numel() * q.element_size()
    source = torch.empty(FORWARD * unit // 2, dtype=torch.uint8, device=device)  # read and written: as many bytes
    target = torch.empty_like(source)
    lines = []
    for kind, scale in (("eq7", "mean"), ("eq4", "one"), ("inline", "mean")):
        o = linear_attention(q, k, v, kind=kind, scale=scale)
        works: dict[str, Callable[[], object]] = {
            "copy": lambda: target.copy_(source),
            "forward": partial(linear_attention, q, k, v, kind=kind, scale=scale),
            "backward": partial(torch.autograd.grad, o, (q, k, v), cotangent, retain_graph=True),
        }
        times = interleaved(works, device, budget=2.0)
        rates = {
            "copy": FORWARD * unit / times["copy"].median,
            "forward": FORWARD * unit / times["forward"].median,
            "backward": BACKWARD * unit / times["backward"].median,
        }
        shares = ", ".join(
            f"{name} {rates[name] / 1e9:.0f} GB/s, {100 * rates[name] / rates['copy']:.0f} % of a copy's"
            for name in ("forward", "backward")
        )
        lines.append(f"{kind} N={n} H={heads} bf16: {shares}")
    return lines


def main() -> int:
    """Check, then measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="python -m benchmarks.gpu"
    )
    parser.add_argument("--device", default="cuda", help="default cuda; cpu tries the command itself")
    args = parser.parse_args()
    print(device_name(args.device), flush=True)
    off = check(args.device)
    cases = len(SHAPES) * len(FORMS) * len(BOUNDS)
    right = f"{cases - len(off)} of {cases} cases right, values and gradients, packed and not"
    print("\n".join([*off, right]), flush=True)
    for n, heads in ((1025, 768), (65_537, 12)) if args.device != "cpu" else ((197, 2),):
        print("\n".join(bandwidth(args.device, n, heads)), flush=True)
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
