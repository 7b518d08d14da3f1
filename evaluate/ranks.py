"""One evaluation shared by the processes of a run: each computes its batches, all of them get every row.

    rows = shared_rows(50_000, 64, compute)      # the same tensor on every rank, and the same as on one process

Batch b falls to rank b mod size, so a batch holds the same items whatever the number of ranks, and so do the sums that
a kernel makes inside it: rows do not depend on the number of ranks, to the last bit. Every rank calls `compute` for
the same number of batches, because the all-gathers of a sharded model (FSDP) wait for all ranks; one that has run out
computes the last batch again and throws it away. Without a process group this is a plain loop over the batches.

Cost: each rank holds all rows and sends them once (an all-reduce of count x width numbers).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import torch.distributed as dist
from torch import Tensor


def rank_and_size() -> tuple[int, int]:
    """This process and the number of processes; 0 and 1 without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def shared_rows(count: int, batch_size: int, compute: Callable[[Iterator[range]], Iterable[Tensor]]) -> Tensor:
    """`shared_batches` of `count` items, at least 1, in batches of `batch_size`; the last may be shorter."""
    batches = [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]
    return shared_batches(batches, compute)


def shared_batches(batches: Sequence[range], compute: Callable[[Iterator[range]], Iterable[Tensor]]) -> Tensor:
    """Rows of items, computed in batches by all ranks together.

    Args:
        batches: at least one, none of them empty; together the items from 0 on, in order.
        compute: from this rank's batches, each a range of item numbers, to their rows (B, width), in the same order.
            All rows have one width, dtype and device, which the process group can reduce.

    Returns:
        (items, width), the same on every rank.
    """
    rank, size = rank_and_size()
    rounds = -(-len(batches) // size)
    numbers = [turn * size + rank for turn in range(rounds)]
    parts = iter(compute(batches[min(number, len(batches) - 1)] for number in numbers))
    first = next(parts)
    rows = first.new_zeros((batches[-1].stop, first.shape[1]))
    for number, part in zip(numbers, chain([first], parts), strict=True):
        if number < len(batches):
            rows[batches[number].start : batches[number].stop] = part
    if size > 1:
        dist.all_reduce(rows)  # each row is zero on every rank but the one that computed it
    return rows


def union(own: dict[int, str]) -> dict[int, str]:
    """The entries of every rank together, sorted by key: the same dict on every rank."""
    gathered: list[dict[int, str]] = [own]
    if dist.is_initialized():
        gathered = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(gathered, own)
    return dict(sorted(chain.from_iterable(part.items() for part in gathered)))
