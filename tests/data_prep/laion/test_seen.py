"""The set of hashes against Python's own."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_prep.laion.seen import Seen, hashes_of


@given(st.lists(st.lists(st.integers(0, 40).map(lambda n: n * (2**64 // 41)), max_size=30), max_size=12))
def test_it_says_what_a_set_says(batches: list[list[int]]) -> None:
    seen, known = Seen(), set[int]()
    for batch in batches:
        expected = []
        for number in batch:
            expected.append(number not in known)
            known.add(number)
        assert seen.new(np.array(batch, dtype=np.uint64)).tolist() == expected


def test_many_batches() -> None:
    numbers = np.random.default_rng(0).integers(0, 60_000, 100_000).astype(np.uint64) * np.uint64(2**48)
    seen = Seen()
    mask = np.concatenate([seen.new(batch) for batch in np.split(numbers, 500)])
    expected = np.zeros(len(numbers), dtype=bool)
    expected[np.unique(numbers, return_index=True)[1]] = True
    assert (mask == expected).all()


def test_a_hash_is_the_same_everywhere() -> None:
    digest = hashlib.blake2b(b"http://a.example/", digest_size=8).digest()
    assert hashes_of(["http://a.example/"]).tolist() == [int.from_bytes(digest, "little")]
    assert hashes_of([]).shape == (0,)
    assert hashes_of(["a"], b"1") != hashes_of(["a"], b"2")
