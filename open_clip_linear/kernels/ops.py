"""The affine forms as PyTorch operators: from separate and from packed q, k and v, and their backward passes.

    o_BHND = affine_attention(q, k, v, kind="eq7", scale="mean")
    o_BNHD = affine_attention_packed(qkv_BN3HD, kind="eq7", scale="mean")

As operators of `torch.library` with fake, autograd and FLOP registrations they pass whole through torch.compile,
torch.export, FSDP, activation checkpointing and FLOP counters. Saved for the backward pass are the inputs and the
state, D + 2 rows of D numbers a head. There is no second derivative.
"""

import os
import warnings
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.utils.flop_counter import register_flop_formula

from open_clip_linear.kernels import chunked
from open_clip_linear.kernels.form import form_of

SWITCH = "OPEN_CLIP_LINEAR_TRITON"


def without_operators(*tensors: Tensor) -> bool:
    """Whether something is asked for that no operator of this package has: ONNX, or forward-mode derivatives.

    Those would be zero without a word: PyTorch calls an operator's autograd for inputs that require gradients alone.
    """
    if torch.onnx.is_in_onnx_export():
        return True
    return not torch.compiler.is_compiling() and any(unpack_dual(t).tangent is not None for t in tensors)


def affine_attention(
    q: Tensor, k: Tensor, v: Tensor, *, kind: str, scale: str, norm: bool = True, log_gain: Tensor | None = None
) -> Tensor:
    """q, k, v (B, H, N, D) of one float dtype → (B, H, N, D) in it.

    Args:
        kind, scale: see `form.SCALES`.
        norm: eq4's option.
        log_gain: logarithm of a factor a head, (H,).
    """
    return torch.ops.open_clip_linear.affine(q, k, v, log_gain, kind, scale, norm)[0]


def affine_attention_packed(
    qkv_BN3HD: Tensor, *, kind: str, scale: str, norm: bool = True, log_gain: Tensor | None = None
) -> Tensor:
    """The same from one tensor as a linear layer gives it: (B, N, 3, H, D) → (B, N, H, D), without copies."""
    return torch.ops.open_clip_linear.affine_packed(qkv_BN3HD, log_gain, kind, scale, norm)[0]


@cache
def _triton() -> ModuleType | None:
    """The Triton kernels where they are asked for, else None, which is said once."""
    if os.environ.get(SWITCH) == "1":
        from open_clip_linear.kernels import triton_affine

        return triton_affine
    warnings.warn(
        f"linear attention runs as plain PyTorch on this GPU, in many small products. {SWITCH}=1 takes Triton kernels, "
        "which were compared with float64 in Triton's interpreter and compiled for sm_80 and sm_90, but not yet run on "
        "a GPU by us.",
        stacklevel=2,
    )
    return None


def kernels_for(q: Tensor) -> ModuleType:
    """What computes on q's device: a module with `forward` and `backward`."""
    if q.is_cuda and len(q) and (found := _triton()) is not None:  # a grid of nothing cannot be split
        if found.supported(q):
            return found
        _say_unsupported(q.dtype, q.shape[-1])
    return chunked


@cache
def _say_unsupported(dtype: torch.dtype, head_dim: int) -> None:
    """Once for each."""
    warnings.warn(
        f"linear attention of {str(dtype).removeprefix('torch.')} with heads of {head_dim} has no Triton kernel here "
        "and runs as plain PyTorch, in many small products. There are kernels for float16, bfloat16 and TF32 "
        "(torch.set_float32_matmul_precision('high')) with heads of 16 to 128, above 64 on GPUs with the shared memory "
        "of an A100, and for exact float32 up to 64.",
        stacklevel=2,
    )


@torch.library.custom_op("open_clip_linear::affine", mutates_args=())
def _affine(
    q: Tensor, k: Tensor, v: Tensor, log_gain: Tensor | None, kind: str, scale: str, norm: bool
) -> tuple[Tensor, Tensor, Tensor]:
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    return o, *kernels_for(q).forward(q, k, v, log_gain, o, form_of(kind, scale, norm, *q.shape[2:]))


@torch.library.custom_op("open_clip_linear::affine_backward", mutates_args=())
def _affine_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gain: Tensor | None,
    S: Tensor,
    rows: Tensor,
    kind: str,
    scale: str,
    norm: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    form = form_of(kind, scale, norm, *q.shape[2:])
    return dq, dk, dv, kernels_for(q).backward(do, q, k, v, log_gain, S, rows, dq, dk, dv, form)


@torch.library.custom_op("open_clip_linear::affine_packed", mutates_args=())
def _affine_packed(
    qkv_BN3HD: Tensor, log_gain: Tensor | None, kind: str, scale: str, norm: bool
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = _unpacked(qkv_BN3HD)
    o_BNHD = torch.empty_like(qkv_BN3HD[:, :, 0], memory_format=torch.contiguous_format)
    form = form_of(kind, scale, norm, *q.shape[2:])
    return o_BNHD, *kernels_for(q).forward(q, k, v, log_gain, o_BNHD.transpose(1, 2), form)


@torch.library.custom_op("open_clip_linear::affine_packed_backward", mutates_args=())
def _affine_packed_backward(
    do_BNHD: Tensor,
    qkv_BN3HD: Tensor,
    log_gain: Tensor | None,
    S: Tensor,
    rows: Tensor,
    kind: str,
    scale: str,
    norm: bool,
) -> tuple[Tensor, Tensor]:
    q, k, v = _unpacked(qkv_BN3HD)
    dqkv_BN3HD = torch.empty_like(qkv_BN3HD, memory_format=torch.contiguous_format)
    form = form_of(kind, scale, norm, *q.shape[2:])
    do = do_BNHD.transpose(1, 2)
    return dqkv_BN3HD, kernels_for(q).backward(do, q, k, v, log_gain, S, rows, *_unpacked(dqkv_BN3HD), form)


def _unpacked(qkv_BN3HD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views (B, H, N, D) of the three."""
    q, k, v = qkv_BN3HD.permute(2, 0, 3, 1, 4)
    return q, k, v


@_affine.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), *chunked.new_state(q)


@_affine_backward.register_fake
def _(do: Tensor, q: Tensor, k: Tensor, v: Tensor, log_gain: Tensor | None, S: Tensor, *_: Any) -> Any:
    grads = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return (*grads, S.new_empty(q.shape[1]))


@_affine_packed.register_fake
def _(qkv_BN3HD: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, _k, _v = _unpacked(qkv_BN3HD)
    return torch.empty_like(qkv_BN3HD[:, :, 0], memory_format=torch.contiguous_format), *chunked.new_state(q)


@_affine_packed_backward.register_fake
def _(do: Tensor, qkv_BN3HD: Tensor, log_gain: Tensor | None, S: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv_BN3HD, memory_format=torch.contiguous_format), S.new_empty(qkv_BN3HD.shape[3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    """Save the tensors, log_gain and the state; remember the three words."""
    *tensors, ctx.kind, ctx.scale, ctx.norm = inputs
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.set_materialize_grads(False)


def _gradient_of_gain(log_gain: Tensor | None, found_H: Tensor) -> Tensor | None:
    return None if log_gain is None else found_H.to(log_gain.dtype)


def _affine_gradients(ctx: Any, do: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if do is None:
        return (None,) * 7
    *tensors, log_gain, S, rows = ctx.saved_tensors
    dq, dk, dv, dlog_gain = torch.ops.open_clip_linear.affine_backward(
        do, *tensors, log_gain, S, rows, ctx.kind, ctx.scale, ctx.norm
    )
    return dq, dk, dv, _gradient_of_gain(log_gain, dlog_gain), None, None, None


def _affine_packed_gradients(ctx: Any, do: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if do is None:
        return (None,) * 5
    qkv, log_gain, S, rows = ctx.saved_tensors
    dqkv, dlog_gain = torch.ops.open_clip_linear.affine_packed_backward(
        do, qkv, log_gain, S, rows, ctx.kind, ctx.scale, ctx.norm
    )
    return dqkv, _gradient_of_gain(log_gain, dlog_gain), None, None, None


_affine.register_autograd(_affine_gradients, setup_context=_keep)
_affine_packed.register_autograd(_affine_packed_gradients, setup_context=_keep)


# --- FLOPs: each of the D x D products is 2·N·D² a head -------------------------------------------------------------


@register_flop_formula(torch.ops.open_clip_linear.affine)
def _(q_shape: list[int], *_: Any, **__: Any) -> int:
    B, H, N, D = q_shape
    return 4 * B * H * N * D * D


@register_flop_formula(torch.ops.open_clip_linear.affine_backward)
def _(do_shape: list[int], *_: Any, **__: Any) -> int:
    B, H, N, D = do_shape
    return 8 * B * H * N * D * D


@register_flop_formula(torch.ops.open_clip_linear.affine_packed)
def _(qkv_shape: list[int], *_: Any, **__: Any) -> int:
    B, N, _three, H, D = qkv_shape
    return 4 * B * H * N * D * D


@register_flop_formula(torch.ops.open_clip_linear.affine_packed_backward)
def _(do_shape: list[int], *_: Any, **__: Any) -> int:
    B, N, H, D = do_shape
    return 8 * B * H * N * D * D
