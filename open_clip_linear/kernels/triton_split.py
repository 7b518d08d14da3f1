"""The affine forms as Triton kernels that split a head's tokens over programs: any length, few heads or many.

    forward:   _sum_tokens   k, v → S and its two rows, split over N so that few heads fill a GPU too
               _read_state   q → o
    backward:  _read_queries q, do → dq, and with a denominator what each row of do counts for
               _sum_tokens   q, do → dS with its two rows
               _read_keys    k, v → dk, dv

Every tensor is read in place by its strides (packed q, k, v as well); normalisation, gain and denominator happen
inside. Partial sums of the splits are added by PyTorch in a fixed order: results are the same every time. One kernel
for dq and dS would read q and do once, but its programs, each with a part of a head, would all read S again.

Legend: G = B·H heads, N tokens, D head dimension (DP the next power of two), P splits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from open_clip_linear.kernels import triton_tiles as tiles
from open_clip_linear.kernels.form import Form

FILL = 264  # programs that fill the largest GPUs of today twice
PLAIN = ["H", "N", "P", "span"]  # numbers whose value no kernel is compiled for


@triton.jit(do_not_specialize=PLAIN)
def _sum_tokens(
    k_ptr, v_ptr, S_ptr, rows_ptr, scale_ptr, weight_ptr, k_b, k_h, k_n, v_b, v_h, v_n, H, N, span, P,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, SHIFTED: tl.constexpr,
    WEIGHTED: tl.constexpr, MIN_NORM: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One split of one head: Σ k̃ᵀ v, Σ v and Σ k̃, where k̃ may be shifted: k less the first key.

    WEIGHTED, each v is multiplied by its scale first, and the last is Σ weight·k̃.
    """
    g, part = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, DP)
    k_base, v_base = tiles.base(k_ptr, g, H, k_b, k_h), tiles.base(v_ptr, g, H, v_b, v_h)
    S = tl.zeros((DP, DP), tl.float32)
    m = tl.zeros((DP,), tl.float32)
    z = tl.zeros((DP,), tl.float32)
    first = tiles.first_row(k_base, columns, D)
    start = part * span
    end = tl.minimum(start + span, N)
    for at in range(start, end, BLOCK):
        rows = at + tl.arange(0, BLOCK)
        keys = tiles.load(k_base, rows, columns, k_n, end, D)
        values = tiles.load(v_base, rows, columns, v_n, end, D)
        if UNIT:
            keys = keys * tiles.inverse_norm(keys, MIN_NORM)[:, None]
        if SHIFTED:
            keys = tl.where(rows[:, None] < end, keys - first[None, :], 0.0)
        if WEIGHTED:
            place = g.to(tl.int64) * N + rows
            values = values * tl.load(scale_ptr + place, mask=rows < end, other=0.0)[:, None]
            z += tl.sum(keys * tl.load(weight_ptr + place, mask=rows < end, other=0.0)[:, None], 0)
        else:
            z += tl.sum(keys, 0)
        S = tiles.add_product(S, keys, values, OPERAND, PRECISION)
        m += tl.sum(values, 0)
    tiles.store_state(S_ptr, rows_ptr, g * P + part, columns, D, S, m, z)


@triton.jit(do_not_specialize=PLAIN)
def _read_state(
    q_ptr, o_ptr, S_ptr, rows_ptr, q_b, q_h, q_n, o_b, o_h, o_n, H, N,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, DIVIDED: tl.constexpr,
    SIGNED: tl.constexpr, MIN_NORM: tl.constexpr, MIN_D: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of one head."""
    count = tl.cdiv(N, BLOCK)
    g, tile = tl.program_id(0) // count, tl.program_id(0) % count
    columns = tl.arange(0, DP)
    rows = tile * BLOCK + tl.arange(0, BLOCK)
    queries = tiles.load(tiles.base(q_ptr, g, H, q_b, q_h), rows, columns, q_n, N, D)
    S, m, z = tiles.load_state(S_ptr, rows_ptr, g, columns, D)
    o = tiles.read_state(queries, S, m, z, UNIT, DIVIDED, SIGNED, MIN_NORM, MIN_D, OPERAND, PRECISION)
    tiles.store(tiles.base(o_ptr, g, H, o_b, o_h), rows, columns, o_n, N, D, o)


@triton.jit(do_not_specialize=PLAIN)
def _read_queries(
    q_ptr, do_ptr, dq_ptr, S_ptr, rows_ptr, scale_ptr, weight_ptr,
    q_b, q_h, q_n, do_b, do_h, do_n, dq_b, dq_h, dq_n, H, N,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, DIVIDED: tl.constexpr,
    SIGNED: tl.constexpr, MIN_NORM: tl.constexpr, MIN_D: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of dq; DIVIDED, also 1 / denominator and the denominator's gradient of each row."""
    count = tl.cdiv(N, BLOCK)
    g, tile = tl.program_id(0) // count, tl.program_id(0) % count
    columns = tl.arange(0, DP)
    rows = tile * BLOCK + tl.arange(0, BLOCK)
    queries = tiles.load(tiles.base(q_ptr, g, H, q_b, q_h), rows, columns, q_n, N, D)
    e = tiles.load(tiles.base(do_ptr, g, H, do_b, do_h), rows, columns, do_n, N, D)
    S, m, z = tiles.load_state(S_ptr, rows_ptr, g, columns, D)
    gradient, _, scale, _, dd = tiles.read_queries(
        queries, e, S, m, z, UNIT, DIVIDED, SIGNED, MIN_NORM, MIN_D, OPERAND, PRECISION
    )
    if DIVIDED:
        place = g.to(tl.int64) * N + rows
        tl.store(scale_ptr + place, scale, mask=rows < N)
        tl.store(weight_ptr + place, dd, mask=rows < N)
    tiles.store(tiles.base(dq_ptr, g, H, dq_b, dq_h), rows, columns, dq_n, N, D, gradient)


@triton.jit(do_not_specialize=PLAIN)
def _read_keys(
    k_ptr, v_ptr, dk_ptr, dv_ptr, dS_ptr, drows_ptr,
    k_b, k_h, k_n, v_b, v_h, v_n, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n, H, N,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, SHIFTED: tl.constexpr,
    MIN_NORM: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of one head; the two rows hold what is added to dv and to the gradient of k̃."""
    count = tl.cdiv(N, BLOCK)
    g, tile = tl.program_id(0) // count, tl.program_id(0) % count
    columns = tl.arange(0, DP)
    rows = tile * BLOCK + tl.arange(0, BLOCK)
    k_base = tiles.base(k_ptr, g, H, k_b, k_h)
    keys = tiles.load(k_base, rows, columns, k_n, N, D)
    if SHIFTED:
        keys = keys - tiles.first_row(k_base, columns, D)[None, :]
    values = tiles.load(tiles.base(v_ptr, g, H, v_b, v_h), rows, columns, v_n, N, D)
    dS, to_v, to_k = tiles.load_state(dS_ptr, drows_ptr, g, columns, D)
    dk, dv = tiles.read_keys(keys, values, dS, to_v, to_k, UNIT, MIN_NORM, OPERAND, PRECISION)
    tiles.store(tiles.base(dv_ptr, g, H, dv_b, dv_h), rows, columns, dv_n, N, D, dv)
    tiles.store(tiles.base(dk_ptr, g, H, dk_b, dk_h), rows, columns, dk_n, N, D, dk)


def forward(q: Tensor, k: Tensor, v: Tensor, log_gain: Tensor | None, o: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """As `chunked.forward`."""
    q, k, v = (tiles.rows_together(t) for t in (q, k, v))
    B, H, N, D = q.shape
    parts, span, programs = split(q)
    S, rows = q.new_empty(B, H, parts, D, D, dtype=torch.float32), q.new_empty(B, H, parts, 2, D, dtype=torch.float32)
    _sum_tokens[B * H, parts](
        k, v, S, rows, rows, rows, *k.stride()[:3], *v.stride()[:3], H, N, span, parts,
        **tiles.constants(q, form), SHIFTED=tiles.shifted(q, form), WEIGHTED=False,
    )  # fmt: skip
    S, rows = S.sum(2), rows.sum(2)
    m, z = rows.split(1, dim=2)
    if form.centred:
        S -= z.mT * (m / N)  # no product of PyTorch's, which may be in TF32
    S *= form.c
    m *= form.a
    z /= N
    if log_gain is not None:
        gain = log_gain.float().exp()[:, None, None]
        S *= gain
        m *= gain
    _read_state[programs,](
        q, o, S, rows, *q.stride()[:3], *o.stride()[:3], H, N, **tiles.constants(q, form), **tiles.denominator(form)
    )
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
    do, q, k, v = (tiles.rows_together(t) for t in (do, q, k, v))
    B, H, N, D = q.shape
    parts, span, programs = split(q)
    dS, drows = S.new_empty(B, H, parts, D, D), S.new_empty(B, H, parts, 2, D)
    scale, weight = (S.new_empty((2, B, H, N) if form.divided else (2, 0))).unbind()
    _read_queries[programs,](
        q, do, dq, S, rows, scale, weight, *q.stride()[:3], *do.stride()[:3], *dq.stride()[:3], H, N,
        **tiles.constants(q, form), **tiles.denominator(form),
    )  # fmt: skip
    _sum_tokens[B * H, parts](
        q, do, dS, drows, scale, weight, *q.stride()[:3], *do.stride()[:3], H, N, span, parts,
        **tiles.constants(q, form), SHIFTED=False, WEIGHTED=form.divided,
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
        seen = tiles.as_operand(dS, q)
        to_k.copy_((seen * (m / (-form.a * N))).sum(-1)[:, :, None])
        dm -= (seen * z.mT).sum(-2, keepdim=True)
    _read_keys[programs,](
        k, v, dk, dv, dS, drows,
        *k.stride()[:3], *v.stride()[:3], *dk.stride()[:3], *dv.stride()[:3], H, N,
        **tiles.constants(q, form), SHIFTED=tiles.shifted(q, form),
    )  # fmt: skip
    return dlog_gain


def split(q: Tensor) -> tuple[int, int, int]:
    """How many parts the tokens of a head are summed in, tokens of a part, and tiles of all heads.

    Tiles of all heads are one axis of a grid, which takes 2³¹ - 1: a second one would end at 65,535.
    """
    B, H, N, _ = q.shape
    rows = tiles.tile_rows(q)
    count = triton.cdiv(N, rows)
    parts = max(1, min(triton.cdiv(FILL, B * H), triton.cdiv(count, 4)))
    span = triton.cdiv(count, parts) * rows
    return triton.cdiv(N, span), span, B * H * count
