import io

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.data.used import Used

SIZES = [3, 1, 9, 16]
NAMES = ["a.tar", "0/b.tar", "c", "1/2"]
REFS = st.lists(
    st.integers(0, 11).flatmap(lambda piece: st.tuples(st.just(piece), st.integers(0, SIZES[piece % 4] - 1)))
)


def refs_of(used):
    every = {(piece, index) for piece in range(12) for index in range(SIZES[piece % 4])}
    free = {(piece, i) for piece in range(12) for i in used.free(piece, 0, SIZES[piece % 4]).tolist()}
    return every - free


@given(REFS, REFS)
def test_it_is_a_set_and_its_record_goes_through_a_checkpoint(first, second):
    used, other = Used(SIZES), Used(SIZES)
    used.add(first)
    other.add(second)
    used.update(other)
    assert refs_of(used) == {*first, *second}
    assert len(used) == len({*first, *second})
    buffer = io.BytesIO()
    torch.save(used.record(NAMES), buffer)
    buffer.seek(0)
    again = Used.from_record(torch.load(buffer, weights_only=True), NAMES, SIZES)
    assert refs_of(again) == refs_of(used)
    assert again.whole == used.whole
    other.add([(0, 0), (0, 1), (0, 2)])  # a copy: the one it came from is another set
    assert refs_of(again) == refs_of(used)


def test_a_whole_shard_is_its_name_and_part_of_one_a_bitmap():
    used = Used(SIZES)
    used.add([(0, 0), (0, 1), (0, 2), (6, 0), (6, 8)])
    record = used.record(NAMES)
    assert record["whole"] == ["0/a.tar"]
    assert list(record["partial"]) == ["1/c"]
    assert record["partial"]["1/c"].tolist() == [0b10000000, 0b10000000]


def test_free_numbers_lie_in_the_range_that_is_asked_for():
    used = Used(SIZES)
    used.add([(2, 4), (2, 0)])
    assert used.free(2, 3, 7).tolist() == [3, 5, 6]
    assert used.free(3, 5, 8).tolist() == [5, 6, 7]
    used.add_indices(1, np.array([0]))
    assert used.free(1, 0, 1).tolist() == []
