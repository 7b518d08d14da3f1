"""One evaluation shared by the processes of a run: each computes its batches, all of them get every row.

    rows = shared_rows(50_000, 64, compute)      # the same tensor on every rank, and the same as on one process

Batch b falls to rank b mod size, so a batch holds the same items whatever the number of ranks, and so do the sums that
a kernel makes inside it: rows do not depend on the number of ranks, to the last bit. Every rank calls `compute` for
the same number of batches, because the all-gathers of a sharded model (FSDP) wait for all ranks; one that has run out
computes the last batch again and throws it away. Without a process group this is a plain loop over the batches.

Cost: each rank holds all rows and sends them once (an all-reduce of count x width numbers).
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from evaluate.errors import RefusedError

Result = TypeVar("Result")
PATIENCE = timedelta(days=1)  # the first rank may read for long before the others have work


def local_rank() -> int:
    """Which process of this machine this is, under torchrun; 0 alone."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_first() -> bool:
    """Whether this is the process that writes and prints for the group; true alone."""
    return rank_and_size()[0] == 0


@contextmanager
def joined() -> Iterator[None]:
    """Inside the block the processes that torchrun started are one group; alone there is none."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)
    yield
    dist.destroy_process_group()  # not after an error: the others may be waiting in a collective, and this would too


def together(work: Callable[[], Result]) -> Result:
    """What `work` gives here, on each rank; raises RefusedError on all ranks where it does on any, the first one's."""
    result, refusal = None, {}
    try:
        result = work()
    except RefusedError as error:
        refusal = {rank_and_size()[0]: str(error)}
    for message in union(refusal).values():
        raise RefusedError(message)
    return result  # type: ignore[return-value]


def from_first(work: Callable[[], Result]) -> Result:
    """What `work` gives on the first rank, on all of them; raises RefusedError on all where it does there."""
    outcome = [together(lambda: work() if is_first() else None)]
    if dist.is_initialized():
        dist.broadcast_object_list(outcome)
    return outcome[0]  # type: ignore[return-value]


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
