"""What a GPU says of the Triton kernels and of SEMA's windows: what is right, and what is fastest?

    OPEN_CLIP_LINEAR_TRITON=1 python -m benchmarks.gpu --device cuda

Values and gradients are compared with the same form in float64 on the CPU, at odd lengths and every head dimension,
from packed and from separate tensors, few heads (the split kernels) and many (the fused ones); anything off ends with
exit code 1. Then the bytes that the kernels move (4 units of N·D·H forward, 9 backward) over the time, beside a plain
copy of as many; the fused kernels beside the split ones where both can run; and for SEMA's windows PyTorch's SDPA, also
on tokens that stand window by window, beside batched products with a softmax between them, each first compared with
float64. `benchmarks/gpu.sh` runs this
and `evaluate speed`.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from evaluate.speed.operators import device_name
from evaluate.speed.timing import Times, interleaved
from open_clip_linear import linear_attention, linear_attention_qkvpacked
from open_clip_linear.attention.sema import windows_attention
from open_clip_linear.attention.softmax import softmax_attention
from open_clip_linear.kernels import chunked
from open_clip_linear.kernels.form import form_of

FORMS = (("eq7", "half"), ("eq7", "mean"), ("eq4", "one"), ("eq4", "half_n"), ("inline", "mean"))
BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest entry
HEAD_DIMS = (32, 64, 80, 96, 128)
FEW_HEADS = tuple((2, 3, n, d) for n, d in itertools.product((1, 77, 197, 1025), HEAD_DIMS))
SHAPES = (*FEW_HEADS, *((11, 12, 197, d) for d in HEAD_DIMS))
FORWARD, BACKWARD = 4, 9  # units that the kernels move
MEASURED = (("eq7", "mean"), ("eq4", "one"), ("inline", "mean"))
TOKENS = 50_000  # of a batch


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
    for kind, scale in MEASURED:
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


def fused_beside_split(device: str, forms: Mapping[str, ModuleType], n: int, samples: int) -> list[str]:
    """For each kind: microseconds of each form's forward and backward pass with 12 heads a sample, in bf16."""
    qkv = torch.randn(samples, n, 3, 12, 64, device=device, dtype=torch.bfloat16)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    do, o, dq, dk, dv = (torch.randn_like(q) for _ in range(5))
    lines = []
    for kind, scale in MEASURED:
        form = form_of(kind, scale, True, n, 64)
        passes: dict[str, dict[str, Callable[[], object]]] = {"forward": {}, "backward": {}}
        for name, kernels in forms.items():
            state = kernels.forward(q, k, v, None, o, form)
            passes["forward"][name] = partial(kernels.forward, q, k, v, None, o, form)
            passes["backward"][name] = partial(kernels.backward, do, q, k, v, None, *state, dq, dk, dv, form)
        found = [f"{name} {compared(interleaved(works, device, budget=1.0))}" for name, works in passes.items()]
        lines.append(f"{kind} N={n} B={samples} H=12 bf16: {'; '.join(found)}")
    return lines


def compared(times: dict[str, Times]) -> str:
    """The medians, and how many times faster the first is than the last."""
    medians = ", ".join(f"{name} {1e6 * t.median:.0f} µs" for name, t in times.items())
    first, last = (list(times)[i] for i in (0, -1))
    return f"{medians}: {first} {times[first].faster_than(times[last])[0]:.2f} times as fast as {last}"


def multiplied(q: Tensor, k: Tensor, v: Tensor, valid_BN: Tensor | None = None) -> Tensor:
    """Softmax attention as two batched products."""
    return torch.softmax(q * q.shape[-1] ** -0.5 @ k.mT, -1) @ v


WINDOW_KERNELS: dict[str, Callable[..., Tensor]] = {"SDPA": softmax_attention, "matmul": multiplied}


def in_windows(q: Tensor, k: Tensor, v: Tensor, *, kernel: str, window: int) -> Tensor:
    """SEMA's window part: (B, H, Y, X, D) → the same."""
    return windows_attention(q, k, v, None, window, WINDOW_KERNELS[kernel])


def wrong_windows(device: str, window: int) -> list[str]:
    """A sentence for each way and dtype that is off, on a grid that leaves smaller windows at two borders."""
    tensors = [torch.randn(2, 3, window + 2, 2 * window + 1, 64) for _ in range(4)]
    off = []
    for kernel, (dtype, bound) in itertools.product(WINDOW_KERNELS, BOUNDS.items()):
        *qkv, cotangent = (t.to(dtype) for t in tensors)
        exact = outcome(
            partial(in_windows, kernel="matmul", window=window), [t.double() for t in qkv], cotangent.double()
        )
        on_device = [t.to(device) for t in qkv]
        found = outcome(partial(in_windows, kernel=kernel, window=window), on_device, cotangent.to(device))
        errors = [(a.cpu().double() - b).abs().max() / b.abs().max() for a, b in zip(found, exact, strict=True)]
        error = float(torch.stack(errors).max())
        if not error <= bound:
            off.append(f"sema window={window} {kernel} {dtype}: {error:.1e}, expected at most {bound:.0e}")
    return off


def ways_through_windows(device: str, window: int, side: int, samples: int) -> list[str]:
    """For each dtype: microseconds of each way's forward and backward pass together, with 12 heads a sample."""
    lines = []
    for dtype in BOUNDS:
        rows = torch.randn(4, samples, 12, side * side, 64, device=device, dtype=dtype).unbind()

        def work(kernel: str, grid: tuple[int, int], rows: tuple[Tensor, ...] = rows) -> object:
            *qkv, cotangent = (t.unflatten(2, grid) for t in rows)
            leaves = [t.requires_grad_() for t in qkv]
            return torch.autograd.grad(in_windows(*leaves, kernel=kernel, window=window), leaves, cotangent)

        times = interleaved(
            {
                "SDPA": partial(work, "SDPA", (side, side)),
                # In a grid one window wide each window's tokens follow one another.
                "SDPA window by window": partial(work, "SDPA", (side * side // window, window)),
                "matmul": partial(work, "matmul", (side, side)),
            },
            device,
            budget=1.0,
        )
        name = str(dtype).removeprefix("torch.")
        lines.append(f"sema window={window} grid={side}x{side} B={samples} H=12 {name}: {compared(times)}")
    return lines


def measure(device: str) -> list[str]:
    """All figures of a GPU; of a CPU a few small ones, which try the command itself."""
    if device == "cpu":
        lines = bandwidth(device, 197, 2)
        lines += fused_beside_split(device, {"chunked": chunked, "the same": chunked}, 50, 1)
        return lines + ways_through_windows(device, 7, 14, 1)
    from open_clip_linear.kernels import triton_short, triton_split  # not where there is no Triton

    lines = bandwidth(device, 1025, 768) + bandwidth(device, 65_537, 12)
    for n, samples in itertools.product((197, 577), (11, None)):  # as few as take the fused form, and a whole batch
        lines += fused_beside_split(device, {"fused": triton_short, "split": triton_split}, n, samples or TOKENS // n)
    for window, side in itertools.product((7, 14), (14, 28, 56)):
        lines += ways_through_windows(device, window, side, TOKENS // side**2)
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
    off += wrong_windows(args.device, 7) + wrong_windows(args.device, 14)
    print("\n".join([*off, right]), flush=True)
    print("\n".join(measure(args.device)), flush=True)
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
