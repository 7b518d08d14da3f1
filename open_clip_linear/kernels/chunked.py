"""The affine forms in plain PyTorch, chunk by chunk over heads and tokens: what CPUs run, and what Triton is tested by.

    state = forward(q, k, v, log_gain, o, form)
    dlog_gain = backward(do, q, k, v, log_gain, state, dq, dk, dv, form)

q, k and v are read twice, o is written once; backward reads them twice and writes three gradients. Chunks are small
enough for a core's cache, so that the ten or so passes over a chunk cost no memory traffic, and beyond inputs and
outputs only the state and a few chunks are held. Sums over tokens are in float32 (float64 of float64), in an order that
shapes alone decide: the result is the same every time.

Legend: B batch, H heads, G heads of a block (of one or many samples), N tokens, D head dimension.
"""

import math
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from open_clip_linear.kernels.form import MIN_DENOMINATOR, MIN_NORM, Form

ROWS = 4096  # of D numbers in a chunk on a CPU: one megabyte of float32 at D = 64, and work for several threads
SHORT = 128  # tokens of a chunk below which fewer heads are taken at once
MANY = 1 << 22  # rows of a chunk elsewhere, where a launch costs more than memory traffic


def widen(x: Tensor) -> Tensor:
    """`x` in float32 or, where it is float64 already, unchanged: the dtype sums over tokens are taken in."""
    return x if x.dtype == torch.float64 else x.float()


def clamp_denominator(d: Tensor, signed: bool) -> Tensor:
    """max(d, 1e-6), or sign(d)·max(|d|, 1e-6) with sign(0) = 1 where the kernel may be negative."""
    if not signed:
        return d.clamp(min=MIN_DENOMINATOR)
    return torch.where(d < 0, d.clamp(max=-MIN_DENOMINATOR), d.clamp(min=MIN_DENOMINATOR))


def new_state(q: Tensor) -> tuple[Tensor, Tensor]:
    """Room for the state of q (B, H, N, D): (B, H, D, D) and (B, H, 2, D), float32 or wider."""
    B, H, _, D = q.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(B, H, D, D, dtype=dtype), q.new_empty(B, H, 2, D, dtype=dtype)


def forward(q: Tensor, k: Tensor, v: Tensor, log_gain: Tensor | None, o: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """Write o; q, k, v, o (B, H, N, D) of any strides and one float dtype, log_gain (H,).

    Returns the state: S, and a·Σ v above z̄ (of inline the mean key less the first). S and a·Σ v have the gain in them.
    """
    S, rows = new_state(q)
    for q_, k_, v_, gain, S_, rows_, o_ in blocks([q, k, v, _gains(log_gain, S)], [S, rows, o]):
        _sum_tokens(k_, v_, S_, rows_, form)
        if log_gain is not None:
            S_ *= gain
            rows_[:, :1] *= gain
        _read_state(q_, o_, S_, rows_, form)
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
    """Write dq, dk and dv (B, H, N, D), of any strides; returns log_gain's gradient (H,) in the state's dtype."""
    gains = _gains(log_gain, S)
    dgains = S.new_zeros(*S.shape[:2], 1, 1)
    writes = [dq, dk, dv, torch.empty_like(S), torch.empty_like(rows), dgains]
    for q_, k_, v_, do_, S_, rows_, gain, dq_, dk_, dv_, dS, drows, dgain in blocks(
        [q, k, v, do, S, rows, gains], writes
    ):
        _sum_gradients(do_, q_, S_, rows_, dq_, dS, drows, form)
        if log_gain is not None:  # Σ do·o over a head
            torch.sum(dS * S_, (1, 2), keepdim=True, out=dgain)
            dgain += (drows * rows_)[:, :1].sum(2, keepdim=True)
            dS *= gain
            drows[:, :1] *= gain
        _read_gradients(k_, v_, rows_, dk_, dv_, dS, drows, form)
    return dgains.sum((0, 2, 3))


def _gains(log_gain: Tensor | None, S: Tensor) -> Tensor:
    """exp(log_gain) of every head, (B, H, 1, 1); without one something that is not read, as making it takes time."""
    return S if log_gain is None else log_gain.to(S.dtype).exp()[:, None, None].expand(*S.shape[:2], 1, 1)


def blocks(reads: Sequence[Tensor], writes: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """All tensors (B, H, …) as (G, …): the heads of one sample, or of as many samples as a chunk holds, by turns.

    Where heads of several samples are not equally far apart they are copied together, and what was written is copied
    back. The first one's third size is N.
    """
    B, H, N, _ = reads[0].shape
    rows, both = _rows(reads[0]), [*reads, *writes]
    samples, heads = min(B, rows // (N * H)), max(1, rows // min(N, SHORT))
    if samples < 2:
        for b in range(B):
            for h in range(0, H, heads):
                yield [t[b] for t in both] if heads >= H else [t[b, h : h + heads] for t in both]
        return
    for b in range(0, B, samples):
        part = [t[b : b + samples] for t in both]
        together = [t.flatten(0, 1) for t in part]
        yield together
        for written, place in zip(together[len(reads) :], part[len(reads) :], strict=True):
            if written.data_ptr() != place.data_ptr():
                place.copy_(written.view_as(place))


def chunks(*tensors: Tensor, rooms: int = 0) -> Iterator[list[Tensor]]:
    """Views (G, n, D) of tensors (G, N, D): runs of nearly equal length, as long as a core's cache wants them.

    After them come as many rooms, for what is computed on the way: of that shape, in float32 or wider.
    """
    G, N, D = tensors[0].shape
    size = -(-N // min(N, -(-G * N // _rows(tensors[0]))))
    if size == N:
        yield [*tensors, *_rooms(tensors[0], rooms, G, N, D)]
        return
    for start in range(0, N, size):
        some = [t[:, start : start + size] for t in tensors]
        yield [*some, *_rooms(tensors[0], rooms, G, some[0].shape[1], D)]


class _Kept(threading.local):
    """A thread's memory for rooms, and the rooms made of it."""

    def __init__(self) -> None:
        self.memory: dict[torch.dtype, Tensor] = {}
        self.rooms: dict[tuple[object, ...], tuple[Tensor, ...]] = {}


_kept = _Kept()


def _rooms(like: Tensor, *shape: int) -> tuple[Tensor, ...]:
    """Uninitialised memory. A CPU thread keeps its own: what malloc gives anew is paged in again by every call."""
    if like.device.type != "cpu":
        return like.new_empty(shape, dtype=torch.promote_types(like.dtype, torch.float32)).unbind()
    key = like.dtype, *shape
    found = _kept.rooms.get(key)
    if found is None:
        dtype, numbers = torch.promote_types(like.dtype, torch.float32), math.prod(shape)
        memory = _kept.memory.get(dtype)
        if memory is None or memory.numel() < numbers or len(_kept.rooms) > 100:
            _kept.rooms.clear()
            with torch.inference_mode(False):  # it may be written to outside of this call's mode
                memory = _kept.memory[dtype] = torch.empty(numbers, dtype=dtype)
        found = _kept.rooms[key] = memory[:numbers].view(shape).unbind()
    return found


def _rows(x: Tensor) -> int:
    return ROWS if x.device.type == "cpu" else MANY


def inverse_norm(x_GND: Tensor) -> Tensor:
    """1 / max(‖x‖, 1e-12): (G, N, 1)."""
    return torch.linalg.vector_norm(x_GND, dim=-1, keepdim=True).clamp_(min=MIN_NORM).reciprocal_()


def _sum_tokens(k: Tensor, v: Tensor, S: Tensor, rows: Tensor, form: Form) -> None:
    N = k.shape[1]
    S.zero_()
    rows.zero_()
    m, z = rows[:, :1], rows[:, 1:]
    if form.centred:  # before the products, which would be small differences of large sums
        for (keys,) in chunks(k):
            z += widen(keys).sum(1, keepdim=True)
        z /= N
        rest = torch.zeros_like(z)
    for keys, values, x, y in chunks(k, v, rooms=2):
        keys, values = _widen(keys, x), _widen(values, y)
        if form.unit:
            keys = torch.mul(keys, inverse_norm(keys), out=x)
        elif form.centred:
            keys = torch.sub(keys, z, out=x)
        S.baddbmm_(keys.mT, values)
        m += values.sum(1, keepdim=True)
        if form.divided:
            z += keys.sum(1, keepdim=True)
        elif form.centred:
            rest += keys.sum(1, keepdim=True)
    if form.centred:  # what rounding left in the mean; then the mean from the first key on, which is small beside it
        rest /= N
        S.baddbmm_(rest.mT, m, alpha=-1)
        z.sub_(k[:, :1]).add_(rest)
    S *= form.c
    m *= form.a
    if form.divided:
        z /= N


def _read_state(q: Tensor, o: Tensor, S: Tensor, rows: Tensor, form: Form) -> None:
    m, z = rows[:, :1], rows[:, 1:]
    for queries, out, x, y in chunks(q, o, rooms=2):
        queries = _widen(queries, x)
        if not form.unit and not form.divided:
            add_product(m, queries, S, out, y)
            continue
        scale = inverse_norm(queries) if form.unit else queries.new_ones(())
        products = torch.bmm(queries, S, out=y)
        if form.divided:
            d = clamp_denominator(1 + torch.bmm(queries, z.mT) * scale, form.signed)
            torch.div(torch.addcmul(m, products, scale, out=products), d, out=out)
        else:
            torch.addcmul(m, products, scale, out=out)


def _sum_gradients(
    do: Tensor, q: Tensor, S: Tensor, rows: Tensor, dq: Tensor, dS: Tensor, drows: Tensor, form: Form
) -> None:
    m, z = rows[:, :1], rows[:, 1:]
    dS.zero_()
    drows.zero_()
    dm, dz = drows[:, :1], drows[:, 1:]
    for cotangents, queries, out, w, x, y, products in chunks(do, q, dq, rooms=4):
        cotangents, queries = _widen(cotangents, w), _widen(queries, x)
        if form.unit:
            scale = inverse_norm(queries)
            queries = torch.mul(queries, scale, out=x)
        if form.divided:
            along_z = torch.bmm(queries, z.mT)
            d = 1 + along_z
            clamped = clamp_denominator(d, form.signed)
            cotangents = torch.div(cotangents, clamped, out=w)
        torch.bmm(cotangents, S.mT, out=products)
        if form.unit or form.divided:
            along = torch.mul(queries, products, out=y).sum(-1, keepdim=True)
        if form.divided:
            dd = torch.bmm(cotangents, m.mT).add_(along).div_(clamped).neg_().masked_fill_(d != clamped, 0)
            products.addcmul_(dd, z)
            along = along.addcmul_(dd, along_z)
            dz.baddbmm_(dd.mT, queries)
        dS.baddbmm_(queries.mT, cotangents)
        dm += cotangents.sum(1, keepdim=True)
        if form.unit:
            through_norm(products, queries, scale, along, out)
        else:
            out.copy_(products)


def _read_gradients(
    k: Tensor, v: Tensor, rows: Tensor, dk: Tensor, dv: Tensor, dS: Tensor, drows: Tensor, form: Form
) -> None:
    N = k.shape[1]
    dm = drows[:, :1]
    dS *= form.c
    dm *= form.a
    if form.divided:
        shift_k = drows[:, 1:] / N
    elif form.centred:  # of values too: the keys' mean takes its share of every key's gradient
        shift_k = torch.bmm(rows[:, :1] / (-form.a * N), dS.mT)
        dm -= torch.bmm(rows[:, 1:], dS)
    for keys, values, key_out, value_out, w, x, y, products in chunks(k, v, dk, dv, rooms=4):
        keys, values = _widen(keys, w), _widen(values, x)
        if form.centred:  # as the mean in z is
            keys = torch.sub(keys, k[:, :1], out=w)
        if form.unit:
            scale = inverse_norm(keys)
            keys = torch.mul(keys, scale, out=w)
        add_product(dm, keys, dS, value_out, y)
        if form.unit:
            if form.divided:
                torch.baddbmm(shift_k, values, dS.mT, out=products)
            else:
                torch.bmm(values, dS.mT, out=products)
            along = torch.mul(keys, products, out=y).sum(-1, keepdim=True)
            through_norm(products, keys, scale, along, key_out)
        else:
            add_product(shift_k, values, dS.mT, key_out, y)


def _widen(x: Tensor, room: Tensor) -> Tensor:
    """`x` as it is, or widened to room's dtype in it."""
    return x if x.dtype == room.dtype else room.copy_(x)


def add_product(row: Tensor, left: Tensor, right: Tensor, out: Tensor, room: Tensor | None = None) -> None:
    """out = row + left·right; where out is of a narrower dtype, by way of `room` (by default new memory)."""
    if out.dtype == left.dtype:
        torch.baddbmm(row, left, right, out=out)
    else:
        out.copy_(torch.baddbmm(row, left, right, out=room))


def through_norm(rows: Tensor, unit: Tensor, scale: Tensor, along: Tensor, out: Tensor) -> None:
    """The gradient before the normalisation, from the one after it (lost) and that one's product with the unit row."""
    along.masked_fill_(scale > 0.999999 / MIN_NORM, 0)  # a row below the least norm was only multiplied
    torch.mul(rows.addcmul_(unit, along, value=-1), scale, out=out)
