"""The affine forms in plain PyTorch, chunk by chunk over heads and tokens: what CPUs run, and what Triton is tested by.

    state = forward(q, k, v, log_gain, o, form)
    dlog_gain = backward(do, q, k, v, log_gain, state, dq, dk, dv, form)

q, k and v are read twice, o is written once; backward reads them twice and writes three gradients. Chunks are small
enough for a core's cache, so that the ten or so passes over a chunk cost no memory traffic, and beyond inputs and
outputs only the state is held. Sums over tokens are in float32 (float64 of float64), in an order that shapes alone
decide: the result is the same every time.

Legend: B batch, H heads, G heads of a block (of one or many samples), N tokens, D head dimension.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from open_clip_linear.kernels.form import MIN_DENOMINATOR, MIN_NORM, Form

ROWS = 8192  # of D numbers in a chunk on a CPU: two megabytes of float32 at D = 64, and work for several threads
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

    Returns the state: S, and a·Σ v above z̄ (of inline the mean key). S and a·Σ v have the gain in them.
    """
    S, rows = new_state(q)
    for k_, v_, S_, rows_ in blocks([k, v], [S, rows]):
        _sum_tokens(k_, v_, S_, rows_, form)
    if log_gain is not None:
        gain = log_gain.to(S.dtype).exp()[:, None, None]
        S *= gain
        rows[:, :, :1] *= gain
    for q_, S_, rows_, o_ in blocks([q, S, rows], [o]):
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
    dS, drows = torch.empty_like(S), torch.empty_like(rows)
    for q_, do_, S_, rows_, dq_, dS_, drows_ in blocks([q, do, S, rows], [dq, dS, drows]):
        _sum_gradients(do_, q_, S_, rows_, dq_, dS_, drows_, form)
    dlog_gain = S.new_zeros(q.shape[1])
    if log_gain is not None:
        dlog_gain = (dS * S).sum((0, 2, 3)) + (drows * rows)[:, :, 0].sum((0, 2))  # Σ do·o over a head
        gain = log_gain.to(S.dtype).exp()[:, None, None]
        dS *= gain
        drows[:, :, :1] *= gain
    for k_, v_, rows_, dS_, drows_, dk_, dv_ in blocks([k, v, rows, dS, drows], [dk, dv]):
        _read_gradients(k_, v_, rows_, dk_, dv_, dS_, drows_, form)
    return dlog_gain


def blocks(reads: Sequence[Tensor], writes: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """All tensors (B, H, …) as (G, …): the heads of as many samples as a chunk wants, one block after the other.

    Where heads of several samples are not equally far apart they are copied together, and what was written is copied
    back. The first one's third size is N.
    """
    B, H, N, _ = reads[0].shape
    most = max(1, _rows(reads[0]) // min(N, SHORT))
    samples, heads = max(1, most // H), min(H, most)
    for b in range(0, B, samples):
        for h in range(0, H, heads):
            part = [*reads, *writes]
            if samples < B or heads < H:  # slicing costs as much as a small product
                part = [t[b : b + samples, h : h + heads] for t in part]
            together = [t.flatten(0, 1) for t in part]
            yield together
            for written, place in zip(together[len(reads) :], part[len(reads) :], strict=True):
                if written.data_ptr() != place.data_ptr():
                    place.copy_(written.view_as(place))


def chunks(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """Views (G, n, D) of tensors (G, N, D): runs of nearly equal length, as long as a thread's cache wants them."""
    G, N, _ = tensors[0].shape
    count = min(N, -(-G * N // _rows(tensors[0])))
    if count == 1:
        yield list(tensors)
    else:
        size = -(-N // count)
        for start in range(0, N, size):
            yield [t[:, start : start + size] for t in tensors]


def _rows(x: Tensor) -> int:
    return ROWS if x.device.type == "cpu" else MANY


def inverse_norm(x_GND: Tensor) -> Tensor:
    """1 / max(‖x‖, 1e-12): (G, N, 1)."""
    return torch.linalg.vector_norm(x_GND, dim=-1, keepdim=True).clamp_(min=MIN_NORM).reciprocal_()


def _sum_tokens(k: Tensor, v: Tensor, S: Tensor, rows: Tensor, form: Form) -> None:
    N = k.shape[1]
    S.zero_()
    m, z = rows.zero_().split(1, dim=1)
    if form.centred:  # before the products, which would be small differences of large sums
        for (keys,) in chunks(k):
            z += widen(keys).sum(1, keepdim=True)
        z /= N
    for keys, values in chunks(k, v):
        keys, values = widen(keys), widen(values)
        if form.unit:
            keys = keys * inverse_norm(keys)
        elif form.centred:
            keys = keys - z
        S.baddbmm_(keys.mT, values)
        m += values.sum(1, keepdim=True)
        if form.divided:
            z += keys.sum(1, keepdim=True)
    S *= form.c
    m *= form.a
    if form.divided:
        z /= N


def _read_state(q: Tensor, o: Tensor, S: Tensor, rows: Tensor, form: Form) -> None:
    m, z = rows.split(1, dim=1)
    for queries, out in chunks(q, o):
        queries = widen(queries)
        if not form.unit and not form.divided:
            add_product(m, queries, S, out)
            continue
        scale = inverse_norm(queries) if form.unit else queries.new_ones(())
        products = torch.bmm(queries, S)
        if form.divided:
            d = clamp_denominator(1 + torch.bmm(queries, z.mT) * scale, form.signed)
            torch.div(torch.addcmul(m, products, scale, out=products), d, out=out)
        else:
            torch.addcmul(m, products, scale, out=out)


def _sum_gradients(
    do: Tensor, q: Tensor, S: Tensor, rows: Tensor, dq: Tensor, dS: Tensor, drows: Tensor, form: Form
) -> None:
    m, z = rows.split(1, dim=1)
    dS.zero_()
    dm, dz = drows.zero_().split(1, dim=1)
    for cotangents, queries, out in chunks(do, q, dq):
        cotangents, queries = widen(cotangents), widen(queries)
        if form.unit:
            scale = inverse_norm(queries)
            queries = queries * scale
        if form.divided:
            d = 1 + torch.bmm(queries, z.mT)
            clamped = clamp_denominator(d, form.signed)
            cotangents = cotangents / clamped
        products = torch.bmm(cotangents, S.mT)
        if form.unit or form.divided:
            along = (queries * products).sum(-1, keepdim=True)
        if form.divided:
            dd = torch.bmm(cotangents, m.mT).add_(along).div_(clamped).neg_().masked_fill_(d != clamped, 0)
            products.addcmul_(dd, z)
            along = along.addcmul_(dd, d.sub_(1))
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
    m, z = rows.split(1, dim=1)
    dm, dz = drows.split(1, dim=1)
    dS *= form.c
    dm *= form.a
    shift_k = dz / N
    if form.centred:  # of values too: the keys' mean takes its share of every key's gradient
        shift_k = torch.bmm(m / (-form.a * N), dS.mT)
        dm -= torch.bmm(z, dS)
    for keys, values, key_out, value_out in chunks(k, v, dk, dv):
        keys, values = widen(keys), widen(values)
        if form.unit:
            scale = inverse_norm(keys)
            keys = keys * scale
        add_product(dm, keys, dS, value_out)
        if form.unit:
            products = torch.baddbmm(shift_k, values, dS.mT) if form.divided else torch.bmm(values, dS.mT)
            through_norm(products, keys, scale, (keys * products).sum(-1, keepdim=True), key_out)
        else:
            add_product(shift_k, values, dS.mT, key_out)


def add_product(row: Tensor, left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = row + left·right; out may be of a narrower dtype."""
    if out.dtype == left.dtype:
        torch.baddbmm(row, left, right, out=out)
    else:
        out.copy_(torch.baddbmm(row, left, right))


def through_norm(rows: Tensor, unit: Tensor, scale: Tensor, along: Tensor, out: Tensor) -> None:
    """The gradient before the normalisation, from the one after it (lost) and that one's product with the unit row."""
    along.masked_fill_(scale > 0.999999 / MIN_NORM, 0)  # a row below the least norm was only multiplied
    torch.mul(rows.addcmul_(unit, along, value=-1), scale, out=out)
