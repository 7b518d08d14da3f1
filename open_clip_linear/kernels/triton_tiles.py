"""What the Triton kernels do with one tile, a block of rows of one head, and what they are compiled for.

Products of bf16 are in bf16, of fp16 in TF32 (which has its digits and float32's range: S may be large; of what is no
fp16 value the digits beyond are cut off), of float32 in three of TF32, or one where PyTorch allows that; sums are in
float32. N and the strides are plain arguments of every kernel, and offsets are of 64 bits. Another length needs no
compilation; Triton compiles anew where a stride is the first one that is 1, no multiple of 16, or beyond 32 bits.

Legend: g = b·H + h one head, N tokens, D head dimension (DP the next power of two), rows and columns indices of a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from open_clip_linear.kernels.form import MIN_DENOMINATOR, MIN_NORM, Form


def exact(q: Tensor) -> bool:
    """Whether products of float32 are to be as exact as float32."""
    matmul = torch.backends.cuda.matmul
    # PyTorch from 2.9 on refuses to read the old name where the new one was set.
    tf32 = matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32
    return q.dtype == torch.float32 and not tf32


def rows_together(x: Tensor) -> Tensor:
    """The kernels read rows of D numbers that lie together; any other stride is theirs to take."""
    return x if x.stride(-1) == 1 else x.contiguous()


def tile_rows(q: Tensor) -> int:
    """Rows of a tile: as many as leave every kernel without spilled registers (`tests/kernels/test_triton.py`)."""
    return 32 if q.shape[-1] <= 64 and q.dtype == torch.bfloat16 else 16


def constants(q: Tensor, form: Form) -> dict[str, object]:
    """What every kernel is compiled for, whatever N is."""
    D = q.shape[-1]
    return {
        "D": D,
        "DP": triton.next_power_of_2(D),
        "BLOCK": tile_rows(q),
        "UNIT": form.unit,
        "OPERAND": tl.bfloat16 if q.dtype == torch.bfloat16 else tl.float32,
        "PRECISION": "tf32x3" if exact(q) else "tf32",  # three products of TF32 are as exact as one of float32
        "MIN_NORM": MIN_NORM,
        "num_warps": 8,
    }


def shifted(q: Tensor, form: Form) -> bool:
    """Whether centred keys are taken less the first one, for the sake of sums and products of keys far from zero.

    Only those of float32: narrower ones are operands as they are, and less the first they would be rounded.
    """
    return form.centred and q.dtype == torch.float32


def as_operand(dS: Tensor, q: Tensor) -> Tensor:
    """dS as products see it, for what is subtracted from them to cancel all of it."""
    return dS.bfloat16().float() if q.dtype == torch.bfloat16 else dS


def denominator(form: Form) -> dict[str, object]:
    """What kernels that divide are compiled for as well."""
    return {"DIVIDED": form.divided, "SIGNED": form.signed, "MIN_D": MIN_DENOMINATOR}


@triton.jit
def base(pointer, g, H, stride_b, stride_h):
    """Where head g = b·H + h begins."""
    return pointer + (g // H).to(tl.int64) * stride_b + (g % H).to(tl.int64) * stride_h


@triton.jit
def load(start, rows, columns, stride_n, N, D: tl.constexpr):
    """Rows of D numbers in float32, zeros beyond N and D."""
    inside = (rows[:, None] < N) & (columns[None, :] < D)
    place = rows[:, None].to(tl.int64) * stride_n + columns[None, :]
    return tl.load(start + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def first_row(start, columns, D: tl.constexpr):
    """What shifted keys are taken from."""
    return tl.load(start + columns, mask=columns < D, other=0.0).to(tl.float32)


@triton.jit
def store(start, rows, columns, stride_n, N, D: tl.constexpr, values):
    inside = (rows[:, None] < N) & (columns[None, :] < D)
    place = rows[:, None].to(tl.int64) * stride_n + columns[None, :]
    tl.store(start + place, values.to(start.dtype.element_ty), mask=inside)


@triton.jit
def load_state(S_ptr, rows_ptr, g, columns, D: tl.constexpr):
    """A head's matrix and its two rows."""
    S = load(S_ptr + g.to(tl.int64) * D * D, columns, columns, D, D, D)
    rows = rows_ptr + g.to(tl.int64) * 2 * D + columns
    return S, tl.load(rows, mask=columns < D, other=0.0), tl.load(rows + D, mask=columns < D, other=0.0)


@triton.jit
def store_state(S_ptr, rows_ptr, g, columns, D: tl.constexpr, S, m, z):
    store(S_ptr + g.to(tl.int64) * D * D, columns, columns, D, D, D, S)
    rows = rows_ptr + g.to(tl.int64) * 2 * D + columns
    tl.store(rows, m, mask=columns < D)
    tl.store(rows + D, z, mask=columns < D)


@triton.jit
def product(left, right, OPERAND: tl.constexpr, PRECISION: tl.constexpr):
    return tl.dot(left.to(OPERAND), right.to(OPERAND), input_precision=PRECISION)


@triton.jit
def add_product(S, left, right, OPERAND: tl.constexpr, PRECISION: tl.constexpr):
    """S + leftᵀ·right: what a tile adds to a sum over tokens."""
    return tl.dot(tl.trans(left).to(OPERAND), right.to(OPERAND), S, input_precision=PRECISION)


@triton.jit
def inverse_norm(x, MIN_NORM: tl.constexpr):
    return 1.0 / tl.maximum(tl.sqrt(tl.sum(x * x, 1)), MIN_NORM)


@triton.jit
def through_norm(gradient, unit, scale, MIN_NORM: tl.constexpr):
    """The gradient before the normalisation; a row below the least norm was only multiplied."""
    along = tl.where(scale > 0.999999 / MIN_NORM, 0.0, tl.sum(gradient * unit, 1))
    return (gradient - unit * along[:, None]) * scale[:, None]


@triton.jit
def clamp_denominator(d, SIGNED: tl.constexpr, MIN_D: tl.constexpr):
    if SIGNED:  # noqa: SIM108  (decided when the kernel is compiled)
        d = tl.where(d < 0, tl.minimum(d, -MIN_D), tl.maximum(d, MIN_D))
    else:
        d = tl.maximum(d, MIN_D)
    return d


@triton.jit
def read_state(
    queries, S, m, z, UNIT: tl.constexpr, DIVIDED: tl.constexpr, SIGNED: tl.constexpr, MIN_NORM: tl.constexpr,
    MIN_D: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The output of a tile of queries."""
    if UNIT:
        queries = queries * inverse_norm(queries, MIN_NORM)[:, None]
    o = m[None, :] + product(queries, S, OPERAND, PRECISION)
    if DIVIDED:
        o = o / clamp_denominator(1.0 + tl.sum(queries * z[None, :], 1), SIGNED, MIN_D)[:, None]
    return o


@triton.jit
def read_queries(
    queries, e, S, m, z, UNIT: tl.constexpr, DIVIDED: tl.constexpr, SIGNED: tl.constexpr, MIN_NORM: tl.constexpr,
    MIN_D: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From queries and cotangents e: the queries' gradient; q̃; 1 / denominator; e·o; the denominator's gradient.

    Of each row. A caller that takes no denominator gets ones and zeros.
    """
    norm = inverse_norm(queries, MIN_NORM)
    if UNIT:
        queries = queries * norm[:, None]
    scale = tl.full(norm.shape, 1.0, tl.float32)
    dd = tl.zeros(norm.shape, tl.float32)
    if DIVIDED:
        d = 1.0 + tl.sum(queries * z[None, :], 1)
        clamped = clamp_denominator(d, SIGNED, MIN_D)
        scale = 1.0 / clamped
        e = e * scale[:, None]
    gradient = product(e, tl.trans(S.to(OPERAND)), OPERAND, PRECISION)
    along = tl.sum(e * m[None, :], 1) + tl.sum(queries * gradient, 1)
    if DIVIDED:
        dd = tl.where(d == clamped, -along * scale, 0.0)
        gradient += dd[:, None] * z[None, :]
    if UNIT:
        gradient = through_norm(gradient, queries, norm, MIN_NORM)
    return gradient, queries, scale, along, dd


@triton.jit
def read_keys(
    keys, values, dS, to_v, to_k, UNIT: tl.constexpr, MIN_NORM: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values; the two rows are added to dv and to the gradient of k̃."""
    scale = inverse_norm(keys, MIN_NORM)
    if UNIT:
        keys = keys * scale[:, None]
    dv = to_v[None, :] + product(keys, dS, OPERAND, PRECISION)
    dk = to_k[None, :] + product(values, tl.trans(dS.to(OPERAND)), OPERAND, PRECISION)
    if UNIT:
        dk = through_norm(dk, keys, scale, MIN_NORM)
    return dk, dv
