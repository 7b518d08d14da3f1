"""The kinds as functions of q, k and v, with what they are measured by: inputs, the float64 form, SDPA's backend.

Shapes are (1, H, N, D). SEMA takes N - 1 = a square of patches beside a class token, in windows of 7 x 7.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from evaluate.errors import RefusedError
from open_clip_linear import VisionLayout, linear_attention
from open_clip_linear.attention.sema import sema_attention
from open_clip_linear.kernels.windows import window_attention

HEAD_DIM = 64
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
SCALES = {"eq7": "mean", "eq4": "one", "inline": "mean"}
KINDS = (*SCALES, "sema")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PASSES = ("forward", "forward_backward")
LONGEST_COMPILED = 16_385  # tokens: beyond, the eight units and more that it takes are too much


@dataclass(frozen=True)
class Case:
    """One line of the table, less its figures."""

    kind: str
    n: int
    dtype: str
    device: str
    heads: int


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The baseline."""
    return F.scaled_dot_product_attention(q, k, v)


def attend(kind: str, n: int) -> Attend:
    """The kind's kernel as the towers call it. Raises RefusedError where it cannot have N tokens."""
    if kind == "softmax":
        return softmax
    if kind == "sema":
        return partial(_sema, layout=_layout(n))
    return partial(linear_attention, kind=kind, scale=SCALES[kind])


def _sema(q: Tensor, k: Tensor, v: Tensor, layout: VisionLayout) -> Tensor:
    if q.device.type != "cpu":
        return sema_attention(q, k, v, layout)
    return window_attention(q, k, v, grid=layout.grid, prefix=layout.prefix, window=7).transpose(1, 2)


def exact(kind: str, n: int) -> Attend:
    """The same written out in plain PyTorch, for float64; its equality with the specification is tested."""
    if kind == "softmax":
        return softmax
    if kind == "sema":
        return partial(sema_attention, layout=_layout(n))
    return partial(linear_attention, kind=kind, scale=SCALES[kind], backend="composed")


def compiled(kind: str, n: int) -> Attend:
    """What a user has without the operators: the kind in plain PyTorch under torch.compile, for these shapes alone.

    A graph that breaks, or one more than torch.compile makes of the same code, is an error and not a figure of
    uncompiled code.
    """
    return torch.compile(exact(kind, n), fullgraph=True, dynamic=False)


def check_compiler(device: str) -> None:
    """Raises RefusedError where torch.compile cannot make code for the device, or is switched off."""
    traced = torch.compile(lambda x: x + float(torch.compiler.is_compiling()), fullgraph=True, dynamic=False)
    try:
        reason = (
            "" if traced(torch.zeros(8, device=device)).all() else "it is switched off, perhaps by TORCHDYNAMO_DISABLE"
        )
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
    if reason:
        raise RefusedError(
            f"--compiled: torch.compile does not work here ({reason}). On a CPU it needs a C++ compiler: install g++ "
            "or name one in CXX. Or leave --compiled out."
        )


def _layout(n: int) -> VisionLayout:
    side = math.isqrt(n - 1)
    if side * side + 1 != n or side == 0:
        raise RefusedError(
            f"--n {n}: sema takes a square of patches and a class token, for example {side * side + 1} or "
            f"{(side + 1) ** 2 + 1} tokens. Give such lengths, or leave sema out of --kinds."
        )
    return VisionLayout((side, side))


def inputs(case: Case, *, grad: bool, seed: int = 0) -> list[Tensor]:
    """q, k, v (1, H, N, D) of standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, case.heads, case.n, HEAD_DIM)
    drawn = (torch.randn(shape, generator=generator) for _ in range(3))
    return [t.to(case.device, DTYPES[case.dtype]).requires_grad_(grad) for t in drawn]


def work(fn: Attend, tensors: Sequence[Tensor], cotangent: Tensor | None) -> Callable[[], object]:
    """What is timed: the forward pass alone, or with the gradients of all three."""
    if cotangent is None:

        def forward() -> Tensor:
            with torch.no_grad():
                return fn(*tensors)

        return forward
    return lambda: torch.autograd.grad(fn(*tensors), tensors, cotangent)


def sdpa_backend(case: Case) -> str:
    """Which of PyTorch's implementations the baseline is."""
    q, k, v = inputs(Case("softmax", 64, case.dtype, case.device, 1), grad=True)
    names = {0: "math", 1: "flash", 2: "memory-efficient", 3: "cudnn", 4: "overrideable"}
    return names.get(torch._fused_sdp_choice(q, k, v), "unknown")


def device_name(device: str) -> str:
    """What the figures were measured on: the GPU's name, or the CPU's with the instructions PyTorch uses."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    with open("/proc/cpuinfo") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "CPU")
    return f"{model} ({torch.backends.cpu.get_cpu_capability()})"
