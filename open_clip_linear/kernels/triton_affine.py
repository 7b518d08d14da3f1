"""The affine forms as Triton kernels: what GPUs run. Arguments and results are those of `chunked.py`.

`triton_short.py` takes many short heads in one launch each way, `triton_split.py` all others in two launches forward
and three backward, with sums in PyTorch between them. Both are made of `triton_tiles.py` and keep the same state.
Tensors of any length and strides (packed q, k, v as well) are read and written in place. Compared with float64 in
Triton's interpreter, and compiled for sm_80 and sm_90 without spilled registers; no figure of a GPU is known.
"""

from functools import cache

import torch
from torch import Tensor
from triton.runtime import driver

from open_clip_linear.kernels import triton_short, triton_split
from open_clip_linear.kernels.form import Form
from open_clip_linear.kernels.triton_tiles import exact

LARGEST_HEAD = 128
SHARED_MEMORY = 136 * 1024  # bytes that heads above 64 want of it: A100 and H100 have them, smaller GPUs do not


def supported(q: Tensor) -> bool:
    """Whether the kernels take such a tensor; others go through `chunked.py`.

    Those are float64, heads outside 16 to 128, and heads above 64 of exact float32, whose three products spill
    registers, or on GPUs of little shared memory.
    """
    largest = 64 if exact(q) or _room(q.device) < SHARED_MEMORY else LARGEST_HEAD
    return 16 <= q.shape[-1] <= largest and q.dtype in (torch.float32, torch.float16, torch.bfloat16)


@cache
def _room(device: torch.device) -> float:
    """Bytes of shared memory that one program may have; no limit where there is no GPU."""
    if device.type != "cuda":
        return float("inf")
    return driver.active.utils.get_device_properties(device.index)["max_shared_mem"]


def forward(q: Tensor, k: Tensor, v: Tensor, log_gain: Tensor | None, o: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """As `chunked.forward`."""
    kernels = triton_short if triton_short.suits(q) else triton_split
    with torch.cuda.device_of(q):  # Triton launches on the current GPU, whichever the tensors are on
        return kernels.forward(q, k, v, log_gain, o, form)


def backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gain: Tensor | None,
    S: Tensor,
    rows: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    form: Form,
) -> Tensor:
    """As `chunked.backward`."""
    kernels = triton_short if triton_short.suits(q) else triton_split
    with torch.cuda.device_of(q):
        return kernels.backward(do, q, k, v, log_gain, S, rows, dq, dk, dv, form)
