"""The affine forms as two Triton kernels, one forward and one backward: what many short heads take.

    _forward   k, v → S and its two rows; q → o
    _backward  q, do → dq; q, do → dS and its two rows; k, v → dk, dv

One program has one head and goes over its tokens two or three times, so that nothing is left for PyTorch to do between
launches; with many heads there are enough programs. It reads q and do twice, the second time from a cache, as dq and dS
in one loop would keep two D x D matrices at hand and spill registers. The state is that of `triton_split.py`. Sums are
in the order of tokens: results are the same every time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from open_clip_linear.kernels import triton_tiles as tiles
from open_clip_linear.kernels.form import Form

LONGEST = 1024
LARGEST_HEAD = {torch.float32: 64, torch.float16: 128, torch.bfloat16: 128}  # whose matrices fit in shared memory
FEWEST_HEADS = 132  # of all samples: a program for each multiprocessor of the GPUs this is meant for
PLAIN = ["H", "N"]  # numbers whose value no kernel is compiled for


def suits(q: Tensor) -> bool:
    """Whether q (B, H, N, D) is short enough, its heads many and small enough, for one program a head."""
    B, H, N, D = q.shape
    return N <= LONGEST and B * H >= FEWEST_HEADS and LARGEST_HEAD[q.dtype] >= D


@triton.jit(do_not_specialize=PLAIN)
def _forward(
    q_ptr, k_ptr, v_ptr, gain_ptr, o_ptr, S_ptr, rows_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, o_b, o_h, o_n, H, N, a, c,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr, DIVIDED: tl.constexpr, SIGNED: tl.constexpr, GAINED: tl.constexpr, MIN_NORM: tl.constexpr,
    MIN_D: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head. Shifted, k̃ is k less the first key; z is the mean of k̃."""
    g = tl.program_id(0)
    columns = tl.arange(0, DP)
    k_base, v_base = tiles.base(k_ptr, g, H, k_b, k_h), tiles.base(v_ptr, g, H, v_b, v_h)
    S = tl.zeros((DP, DP), tl.float32)
    m = tl.zeros((DP,), tl.float32)
    z = tl.zeros((DP,), tl.float32)
    first = tiles.first_row(k_base, columns, D)
    for at in tl.range(0, N, BLOCK, num_stages=2):  # with the usual three, inline of bf16 spills two registers
        rows = at + tl.arange(0, BLOCK)
        keys = tiles.load(k_base, rows, columns, k_n, N, D)
        values = tiles.load(v_base, rows, columns, v_n, N, D)
        if UNIT:
            keys = keys * tiles.inverse_norm(keys, MIN_NORM)[:, None]
        if SHIFTED:
            keys = tl.where(rows[:, None] < N, keys - first[None, :], 0.0)
        S = tiles.add_product(S, keys, values, OPERAND, PRECISION)
        m += tl.sum(values, 0)
        z += tl.sum(keys, 0)
    z = z / N
    if CENTRED:
        S -= z[:, None] * m[None, :]
    gain = 1.0
    if GAINED:
        gain = tl.exp(tl.load(gain_ptr + g % H).to(tl.float32))
    S *= c * gain
    m *= a * gain
    tiles.store_state(S_ptr, rows_ptr, g, columns, D, S, m, z)
    q_base, o_base = tiles.base(q_ptr, g, H, q_b, q_h), tiles.base(o_ptr, g, H, o_b, o_h)
    for at in range(0, N, BLOCK):
        rows = at + tl.arange(0, BLOCK)
        queries = tiles.load(q_base, rows, columns, q_n, N, D)
        o = tiles.read_state(queries, S, m, z, UNIT, DIVIDED, SIGNED, MIN_NORM, MIN_D, OPERAND, PRECISION)
        tiles.store(o_base, rows, columns, o_n, N, D, o)


@triton.jit(do_not_specialize=PLAIN)
def _backward(
    do_ptr, q_ptr, k_ptr, v_ptr, gain_ptr, S_ptr, rows_ptr, dq_ptr, dk_ptr, dv_ptr, dgain_ptr,
    do_b, do_h, do_n, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n,
    dq_b, dq_h, dq_n, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n, H, N, a, c,
    D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, CENTRED: tl.constexpr,
    SHIFTED: tl.constexpr, DIVIDED: tl.constexpr, SIGNED: tl.constexpr, GAINED: tl.constexpr, MIN_NORM: tl.constexpr,
    MIN_D: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head; the logarithm of its gain gets Σ do·o, zero where there is none."""
    g = tl.program_id(0)
    columns = tl.arange(0, DP)
    q_base, do_base = tiles.base(q_ptr, g, H, q_b, q_h), tiles.base(do_ptr, g, H, do_b, do_h)
    dq_base = tiles.base(dq_ptr, g, H, dq_b, dq_h)
    S, m, z = tiles.load_state(S_ptr, rows_ptr, g, columns, D)
    to_k = tl.zeros((DP,), tl.float32)
    dgain = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, N, BLOCK):
        rows = at + tl.arange(0, BLOCK)
        queries = tiles.load(q_base, rows, columns, q_n, N, D)
        e = tiles.load(do_base, rows, columns, do_n, N, D)
        dq, queries, _, along, dd = tiles.read_queries(
            queries, e, S, m, z, UNIT, DIVIDED, SIGNED, MIN_NORM, MIN_D, OPERAND, PRECISION
        )
        tiles.store(dq_base, rows, columns, dq_n, N, D, dq)
        if DIVIDED:
            to_k += tl.sum(queries * dd[:, None], 0)
        if GAINED:
            dgain += along
    dS = tl.zeros((DP, DP), tl.float32)
    dm = tl.zeros((DP,), tl.float32)
    for at in range(0, N, BLOCK):
        rows = at + tl.arange(0, BLOCK)
        queries = tiles.load(q_base, rows, columns, q_n, N, D)
        e = tiles.load(do_base, rows, columns, do_n, N, D)
        if UNIT:
            queries = queries * tiles.inverse_norm(queries, MIN_NORM)[:, None]
        if DIVIDED:
            e = e / tiles.clamp_denominator(1.0 + tl.sum(queries * z[None, :], 1), SIGNED, MIN_D)[:, None]
        dS = tiles.add_product(dS, queries, e, OPERAND, PRECISION)
        dm += tl.sum(e, 0)
    tl.store(dgain_ptr + g, tl.sum(dgain, 0))
    gain = 1.0
    if GAINED:
        gain = tl.exp(tl.load(gain_ptr + g % H).to(tl.float32))
    dS *= c * gain
    dm *= a * gain
    to_k = to_k / N
    if CENTRED:  # of values too: the keys' mean takes its share of every key's gradient
        seen = dS.to(OPERAND).to(tl.float32)  # as products see it
        to_k = -tl.sum(seen * m[None, :], 1) / (a * N)
        dm -= tl.sum(seen * z[:, None], 0)
    k_base, v_base = tiles.base(k_ptr, g, H, k_b, k_h), tiles.base(v_ptr, g, H, v_b, v_h)
    first = tiles.first_row(k_base, columns, D)
    dk_base, dv_base = tiles.base(dk_ptr, g, H, dk_b, dk_h), tiles.base(dv_ptr, g, H, dv_b, dv_h)
    for at in range(0, N, BLOCK):
        rows = at + tl.arange(0, BLOCK)
        keys = tiles.load(k_base, rows, columns, k_n, N, D)
        values = tiles.load(v_base, rows, columns, v_n, N, D)
        if SHIFTED:
            keys = keys - first[None, :]
        dk, dv = tiles.read_keys(keys, values, dS, dm, to_k, UNIT, MIN_NORM, OPERAND, PRECISION)
        tiles.store(dk_base, rows, columns, dk_n, N, D, dk)
        tiles.store(dv_base, rows, columns, dv_n, N, D, dv)


def forward(q: Tensor, k: Tensor, v: Tensor, log_gain: Tensor | None, o: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """As `chunked.forward`."""
    q, k, v = (tiles.rows_together(t) for t in (q, k, v))
    B, H, N, D = q.shape
    S, rows = q.new_empty(B, H, D, D, dtype=torch.float32), q.new_empty(B, H, 2, D, dtype=torch.float32)
    _forward[B * H,](
        q, k, v, rows if log_gain is None else log_gain.contiguous(), o, S, rows,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *o.stride()[:3], H, N, form.a, form.c,
        **tiles.constants(q, form), **tiles.denominator(form), CENTRED=form.centred,
        SHIFTED=tiles.shifted(q, form), GAINED=log_gain is not None,
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
    do, q, k, v = (tiles.rows_together(t) for t in (do, q, k, v))
    B, H, N, _ = q.shape
    dlog_gain = S.new_empty(B, H)
    _backward[B * H,](
        do, q, k, v, rows if log_gain is None else log_gain.contiguous(), S, rows, dq, dk, dv, dlog_gain,
        *do.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        *dq.stride()[:3], *dk.stride()[:3], *dv.stride()[:3], H, N, form.a, form.c,
        **tiles.constants(q, form), **tiles.denominator(form), CENTRED=form.centred,
        SHIFTED=tiles.shifted(q, form), GAINED=log_gain is not None,
    )  # fmt: skip
    return dlog_gain[0] if log_gain is None else dlog_gain.sum(0)
