"""Dealing batches to ranks: every row once, as on one process, and as many calls on every rank."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evaluate import ranks
from evaluate.ranks import shared_rows, union


class OneOfMany:
    """In place of torch.distributed: one rank of several, whose all-reduce leaves its own part."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def is_initialized(self) -> bool:
        return True

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.size

    def all_reduce(self, rows: Tensor) -> None:
        pass


@given(count=st.integers(1, 60), batch_size=st.integers(1, 25), size=st.integers(1, 9))
def test_parts_of_the_ranks_make_the_rows_of_one_process(count: int, batch_size: int, size: int) -> None:
    calls: list[list[range]] = []

    def compute(batches: Iterator[range]) -> Iterator[Tensor]:
        calls.append([])
        for batch in batches:
            calls[-1].append(batch)
            yield torch.tensor([[number + 1.0, len(batch), batch.start] for number in batch], dtype=torch.float64)

    alone = shared_rows(count, batch_size, compute)
    assert alone[:, 0].tolist() == [n + 1 for n in range(count)]
    of_one_process = {(batch.start, len(batch)) for batch in calls.pop()}
    with pytest.MonkeyPatch.context() as patch:
        parts = []
        for rank in range(size):
            patch.setattr(ranks, "dist", OneOfMany(rank, size))
            parts.append(shared_rows(count, batch_size, compute))
    assert torch.equal(sum(parts), alone)
    assert torch.equal(sum((part != 0).any(dim=1).int() for part in parts), torch.ones(count, dtype=torch.int32))
    assert len({len(own) for own in calls}) == 1, "a sharded model would wait for ever"
    assert {(batch.start, len(batch)) for own in calls for batch in own} == of_one_process


def test_union_alone_is_sorted() -> None:
    assert list(union({5: "b", 2: "a"}).items()) == [(2, "a"), (5, "b")]
