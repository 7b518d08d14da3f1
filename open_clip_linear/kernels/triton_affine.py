"""The affine forms as Triton kernels: what GPUs run. Arguments and results are those of `chunked.py`.

    forward:   _sum_tokens   k, v → S and its two rows, split over N so that few heads fill a GPU too
               _read_state   q → o
    backward:  _read_queries q, do → dq, and with a denominator what each row of do counts for
               _sum_tokens   q, do → dS with its two rows
               _read_keys    k, v → dk, dv

Every tensor is read in place by its strides (packed q, k, v as well); normalisation, gain and denominator happen
inside. Partial sums of the splits are added by PyTorch in a fixed order: results are the same every time. N and the
strides are plain arguments: another length needs no compilation. Products of bf16 are in bf16, of fp16 in TF32 (which
has its digits and float32's range: S may be large), of float32 in three of TF32, or one where PyTorch allows that; sums
are in float32. One kernel for dq and dS would read q and do once, but holds two D x D matrices and spills registers.

Legend: G = B·H heads, N tokens, D head dimension (DP the next power of two), P splits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from open_clip_linear.kernels.form import MIN_DENOMINATOR, MIN_NORM, Form

LARGEST_HEAD = 128
FILL = 264  # programs that fill the largest GPUs of today twice


def supported(q: Tensor) -> bool:
    """Whether the kernels take such a tensor; others go through `chunked.py`.

    Those are float64, heads outside 16 to 128, and exact float32 above 64, whose three products spill registers.
    """
    largest = 64 if _exact(q) else LARGEST_HEAD
    return 16 <= q.shape[-1] <= largest and q.dtype in (torch.float32, torch.float16, torch.bfloat16)


def _exact(q: Tensor) -> bool:
    return q.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32


@triton.jit
def _load(base, rows, columns, stride_n, N, D: tl.constexpr):
    """Rows of D numbers in float32, zeros beyond N and D."""
    inside = (rows[:, None] < N) & (columns[None, :] < D)
    return tl.load(base + rows[:, None] * stride_n + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store(base, rows, columns, stride_n, N, D: tl.constexpr, values):
    inside = (rows[:, None] < N) & (columns[None, :] < D)
    tl.store(base + rows[:, None] * stride_n + columns[None, :], values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _inverse_norm(x, MIN_NORM: tl.constexpr):
    return 1.0 / tl.maximum(tl.sqrt(tl.sum(x * x, 1)), MIN_NORM)


@triton.jit
def _base(pointer, g, H, stride_b, stride_h):
    """Where head g = b·H + h begins."""
    return pointer + (g // H).to(tl.int64) * stride_b + (g % H).to(tl.int64) * stride_h


@triton.jit
def _sum_tokens(
    k_ptr, v_ptr, S_ptr, rows_ptr, scale_ptr, weight_ptr, k_b, k_h, k_n, v_b, v_h, v_n, H, N, span, P,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, CENTRED: tl.constexpr,
    WEIGHTED: tl.constexpr, MIN_NORM: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One split of one head: Σ k̃ᵀ v, Σ v and Σ k̃; centred, k̃ is k less the first key, for the sums' sake.

    WEIGHTED, each v is multiplied by its scale first, and the last is Σ weight·k̃.
    """
    g, part = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, DP)
    k_base, v_base = _base(k_ptr, g, H, k_b, k_h), _base(v_ptr, g, H, v_b, v_h)
    S = tl.zeros((DP, DP), tl.float32)
    m = tl.zeros((DP,), tl.float32)
    z = tl.zeros((DP,), tl.float32)
    first = tl.load(k_base + columns, mask=columns < D, other=0.0).to(tl.float32)
    start = part * span
    end = tl.minimum(start + span, N)
    for at in range(start, end, BLOCK):
        rows = at + tl.arange(0, BLOCK)
        keys = _load(k_base, rows, columns, k_n, end, D)
        values = _load(v_base, rows, columns, v_n, end, D)
        if UNIT:
            keys = keys * _inverse_norm(keys, MIN_NORM)[:, None]
        if CENTRED:
            keys = tl.where(rows[:, None] < end, keys - first[None, :], 0.0)
        if WEIGHTED:
            place = g.to(tl.int64) * N + rows
            values = values * tl.load(scale_ptr + place, mask=rows < end, other=0.0)[:, None]
            z += tl.sum(keys * tl.load(weight_ptr + place, mask=rows < end, other=0.0)[:, None], 0)
        else:
            z += tl.sum(keys, 0)
        S = tl.dot(tl.trans(keys).to(OPERAND), values.to(OPERAND), S, input_precision=PRECISION)
        m += tl.sum(values, 0)
    out = (g * P + part).to(tl.int64)
    grid = columns[:, None] * D + columns[None, :]
    inside = (columns[:, None] < D) & (columns[None, :] < D)
    tl.store(S_ptr + out * D * D + grid, S, mask=inside)
    tl.store(rows_ptr + out * 2 * D + columns, m, mask=columns < D)
    tl.store(rows_ptr + out * 2 * D + D + columns, z, mask=columns < D)


@triton.jit
def _read_state(
    q_ptr, o_ptr, S_ptr, rows_ptr, q_b, q_h, q_n, o_b, o_h, o_n, H, N,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, DIVIDED: tl.constexpr,
    SIGNED: tl.constexpr, MIN_NORM: tl.constexpr, MIN_D: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of rows of one head."""
    g, block = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, DP)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    queries = _load(_base(q_ptr, g, H, q_b, q_h), rows, columns, q_n, N, D)
    S = _load(S_ptr + g.to(tl.int64) * D * D, columns, columns, D, D, D)
    m = tl.load(rows_ptr + g.to(tl.int64) * 2 * D + columns, mask=columns < D, other=0.0)
    if UNIT:
        queries = queries * _inverse_norm(queries, MIN_NORM)[:, None]
    o = m[None, :] + tl.dot(queries.to(OPERAND), S.to(OPERAND), input_precision=PRECISION)
    if DIVIDED:
        z = tl.load(rows_ptr + g.to(tl.int64) * 2 * D + D + columns, mask=columns < D, other=0.0)
        o = o / _clamped(1.0 + tl.sum(queries * z[None, :], 1), SIGNED, MIN_D)[:, None]
    _store(_base(o_ptr, g, H, o_b, o_h), rows, columns, o_n, N, D, o)


@triton.jit
def _clamped(d, SIGNED: tl.constexpr, MIN_D: tl.constexpr):
    if SIGNED:  # noqa: SIM108  (decided when the kernel is compiled)
        d = tl.where(d < 0, tl.minimum(d, -MIN_D), tl.maximum(d, MIN_D))
    else:
        d = tl.maximum(d, MIN_D)
    return d


@triton.jit
def _through_norm(gradient, unit, scale, MIN_NORM: tl.constexpr):
    """The gradient before the normalisation; a row below the least norm was only multiplied."""
    along = tl.where(scale > 0.999999 / MIN_NORM, 0.0, tl.sum(gradient * unit, 1))
    return (gradient - unit * along[:, None]) * scale[:, None]


@triton.jit
def _read_queries(
    q_ptr, do_ptr, dq_ptr, S_ptr, rows_ptr, scale_ptr, weight_ptr,
    q_b, q_h, q_n, do_b, do_h, do_n, dq_b, dq_h, dq_n, H, N,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, DIVIDED: tl.constexpr,
    SIGNED: tl.constexpr, MIN_NORM: tl.constexpr, MIN_D: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of rows of dq; DIVIDED, also 1 / denominator and the denominator's gradient of each row."""
    g, block = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, DP)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    queries = _load(_base(q_ptr, g, H, q_b, q_h), rows, columns, q_n, N, D)
    e = _load(_base(do_ptr, g, H, do_b, do_h), rows, columns, do_n, N, D)
    S = _load(S_ptr + g.to(tl.int64) * D * D, columns, columns, D, D, D)
    norm = _inverse_norm(queries, MIN_NORM)
    if UNIT:
        queries = queries * norm[:, None]
    if DIVIDED:
        z = tl.load(rows_ptr + g.to(tl.int64) * 2 * D + D + columns, mask=columns < D, other=0.0)
        d = 1.0 + tl.sum(queries * z[None, :], 1)
        clamped = _clamped(d, SIGNED, MIN_D)
        e = e / clamped[:, None]
    gradient = tl.dot(e.to(OPERAND), tl.trans(S).to(OPERAND), input_precision=PRECISION)
    if DIVIDED:
        m = tl.load(rows_ptr + g.to(tl.int64) * 2 * D + columns, mask=columns < D, other=0.0)
        dd = -(tl.sum(e * m[None, :], 1) + tl.sum(queries * gradient, 1)) / clamped
        dd = tl.where(d == clamped, dd, 0.0)
        gradient += dd[:, None] * z[None, :]
        place = g.to(tl.int64) * N + rows
        tl.store(scale_ptr + place, 1.0 / clamped, mask=rows < N)
        tl.store(weight_ptr + place, dd, mask=rows < N)
    if UNIT:
        gradient = _through_norm(gradient, queries, norm, MIN_NORM)
    _store(_base(dq_ptr, g, H, dq_b, dq_h), rows, columns, dq_n, N, D, gradient)


@triton.jit
def _read_keys(
    k_ptr, v_ptr, dk_ptr, dv_ptr, dS_ptr, drows_ptr,
    k_b, k_h, k_n, v_b, v_h, v_n, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n, H, N,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, MIN_NORM: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of rows of one head; the two rows hold what is added to dv and to the gradient of k̃."""
    g, block = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, DP)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    keys = _load(_base(k_ptr, g, H, k_b, k_h), rows, columns, k_n, N, D)
    values = _load(_base(v_ptr, g, H, v_b, v_h), rows, columns, v_n, N, D)
    dS = _load(dS_ptr + g.to(tl.int64) * D * D, columns, columns, D, D, D)
    to_v = tl.load(drows_ptr + g.to(tl.int64) * 2 * D + columns, mask=columns < D, other=0.0)
    to_k = tl.load(drows_ptr + g.to(tl.int64) * 2 * D + D + columns, mask=columns < D, other=0.0)
    scale = _inverse_norm(keys, MIN_NORM)
    if UNIT:
        keys = keys * scale[:, None]
    dv = to_v[None, :] + tl.dot(keys.to(OPERAND), dS.to(OPERAND), input_precision=PRECISION)
    gradient = to_k[None, :] + tl.dot(values.to(OPERAND), tl.trans(dS).to(OPERAND), input_precision=PRECISION)
    if UNIT:
        gradient = _through_norm(gradient, keys, scale, MIN_NORM)
    _store(_base(dv_ptr, g, H, dv_b, dv_h), rows, columns, dv_n, N, D, dv)
    _store(_base(dk_ptr, g, H, dk_b, dk_h), rows, columns, dk_n, N, D, gradient)


def forward(q: Tensor, k: Tensor, v: Tensor, log_gain: Tensor | None, o: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """As `chunked.forward`."""
    q, k, v = (_rows_together(t) for t in (q, k, v))
    B, H, N, D = q.shape
    parts, span, blocks = _split(q)
    S, rows = q.new_empty(B, H, parts, D, D, dtype=torch.float32), q.new_empty(B, H, parts, 2, D, dtype=torch.float32)
    _sum_tokens[B * H, parts](
        k, v, S, rows, rows, rows, *k.stride()[:3], *v.stride()[:3], H, N, span, parts,
        **_constants(q, MIN_NORM=MIN_NORM), UNIT=form.unit, CENTRED=form.centred, WEIGHTED=False,
    )  # fmt: skip
    S, rows = S.sum(2), rows.sum(2)
    m, z = rows.split(1, dim=2)
    if form.centred:
        S -= z.mT @ (m / N)
        z += k[:, :, :1].float() * N
    S *= form.c
    m *= form.a
    z /= N
    if log_gain is not None:
        gain = log_gain.float().exp()[:, None, None]
        S *= gain
        m *= gain
    _read_state[B * H, blocks](
        q, o, S, rows, *q.stride()[:3], *o.stride()[:3], H, N,
        **_constants(q, MIN_NORM=MIN_NORM, MIN_D=MIN_DENOMINATOR),
        UNIT=form.unit, DIVIDED=form.divided, SIGNED=form.signed,
    )  # fmt: skip
    return S, rows


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
    do, q, k, v = (_rows_together(t) for t in (do, q, k, v))
    B, H, N, D = q.shape
    parts, span, blocks = _split(q)
    dS, drows = S.new_empty(B, H, parts, D, D), S.new_empty(B, H, parts, 2, D)
    scale, weight = (S.new_empty((2, B, H, N) if form.divided else (2, 0))).unbind()
    _read_queries[B * H, blocks](
        q, do, dq, S, rows, scale, weight, *q.stride()[:3], *do.stride()[:3], *dq.stride()[:3], H, N,
        **_constants(q, MIN_NORM=MIN_NORM, MIN_D=MIN_DENOMINATOR),
        UNIT=form.unit, DIVIDED=form.divided, SIGNED=form.signed,
    )  # fmt: skip
    _sum_tokens[B * H, parts](
        q, do, dS, drows, scale, weight, *q.stride()[:3], *do.stride()[:3], H, N, span, parts,
        **_constants(q, MIN_NORM=MIN_NORM), UNIT=form.unit, CENTRED=False, WEIGHTED=form.divided,
    )  # fmt: skip
    dS, drows = dS.sum(2), drows.sum(2)
    dlog_gain = S.new_zeros(H)
    if log_gain is not None:
        dlog_gain = (dS * S).sum((0, 2, 3)) + (drows * rows)[:, :, 0].sum((0, 2))
        gain = log_gain.float().exp()[:, None, None]
        dS *= gain
        drows[:, :, :1] *= gain
    m, z = rows.split(1, dim=2)
    dm, to_k = drows.split(1, dim=2)
    dS *= form.c
    dm *= form.a
    to_k *= float(form.divided) / N
    if form.centred:
        to_k.copy_((m / (-form.a * N)) @ dS.mT)
        dm -= z @ dS
    _read_keys[B * H, blocks](
        k, v, dk, dv, dS, drows,
        *k.stride()[:3], *v.stride()[:3], *dk.stride()[:3], *dv.stride()[:3], H, N,
        **_constants(q, MIN_NORM=MIN_NORM), UNIT=form.unit,
    )  # fmt: skip
    return dlog_gain


def _rows_together(x: Tensor) -> Tensor:
    """The kernels read rows of D numbers that lie together; any other stride is theirs to take."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _block(q: Tensor) -> int:
    """Rows of a block: as many as leave every kernel without spilled registers (`tests/kernels/test_triton.py`)."""
    return 32 if q.shape[-1] <= 64 and q.dtype == torch.bfloat16 else 16


def _split(q: Tensor) -> tuple[int, int, int]:
    """How many parts the tokens of a head are summed in, tokens of a part, and blocks of rows."""
    B, H, N, _ = q.shape
    block = _block(q)
    blocks = triton.cdiv(N, block)
    parts = max(1, min(triton.cdiv(FILL, B * H), triton.cdiv(blocks, 4)))
    span = triton.cdiv(blocks, parts) * block
    return triton.cdiv(N, span), span, blocks


def _constants(q: Tensor, **least: float) -> dict[str, object]:
    """What a kernel is compiled for, whatever N is."""
    D = q.shape[-1]
    return {
        "D": D,
        "DP": triton.next_power_of_2(D),
        "BLOCK": _block(q),
        "OPERAND": tl.bfloat16 if q.dtype == torch.bfloat16 else tl.float32,
        "PRECISION": "tf32x3" if _exact(q) else "tf32",  # three products of TF32 are as exact as one of float32
        "num_warps": 8,
        **least,
    }
