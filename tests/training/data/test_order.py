import random
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.order import Deal, Mixture, UniqueDeal, shuffled, unique_batches
from training.data.used import Used

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any)


def every_ref(mixture, epoch):
    return [(piece, i) for piece, first, last in mixture.pieces(epoch) for i in range(first, last)]


@given(st.lists(st.integers()), st.integers(1, 20))
def test_shuffling_loses_and_doubles_nothing(items, size):
    assert sorted(shuffled(items, size, random.Random(1))) == sorted(items)


def test_a_buffer_shuffles_better_than_blocks_of_its_size_would():
    """A sample waits a geometric time, so its mean displacement is 2/e of the buffer; in whole blocks it is 1/3."""
    size, number = 500, 50_000
    order = list(shuffled(range(number), size, random.Random(0)))
    displacement = sum(abs(place - item) for place, item in enumerate(order)) / number
    assert displacement == pytest.approx(2 / 2.71828 * size, rel=0.05)
    whole = list(shuffled(range(size), size, random.Random(0)))
    assert sum(abs(p - i) for p, i in enumerate(whole)) / size == pytest.approx(size / 3, rel=0.1)


def test_samples_of_an_epoch_leave_their_shards_far_apart():
    """Neighbours in a shard end up as far from each other as the buffer allows, and shards far from their place."""
    mixture = Mixture([[100] * 50], [1.0], seed=0)
    place = {ref: n for n, ref in enumerate(Deal(mixture, 1, 1000).order(0, 0))}
    assert len(place) == 5000
    gaps = [abs(place[shard, i] - place[shard, i + 1]) for shard in range(50) for i in range(99)]
    assert sum(gaps) / len(gaps) > 500
    moved = [abs(place[shard, i] - (100 * shard + i)) for shard in range(50) for i in range(100)]
    assert sum(moved) / len(moved) == pytest.approx(5000 / 3, rel=0.2)  # a uniform shuffle of all


@given(COUNTS, st.integers(1, 12), st.integers(1, 40), st.integers(0, 3))
def test_readers_share_an_epoch_equally_and_each_sample_is_read_once(counts, readers, buffer, epoch):
    mixture = Mixture([counts], [1.0], seed=5)
    deal = Deal(mixture, readers, buffer)
    orders = [list(deal.order(epoch, reader)) for reader in range(readers)]
    assert Counter(ref for order in orders for ref in order) == Counter(every_ref(mixture, epoch))
    assert mixture.samples == sum(counts)
    assert max(map(len, orders)) - min(map(len, orders)) <= 1
    assert orders == [list(Deal(Mixture([counts], [1.0], 5), readers, buffer).order(epoch, r)) for r in range(readers)]


def test_epochs_and_seeds_differ():
    orders = [
        tuple(Deal(Mixture([[9] * 9], [1.0], seed), 2, 20).order(epoch, 1)) for seed in range(3) for epoch in range(3)
    ]
    assert len(set(orders)) == 9


@given(COUNTS, st.integers(1, 5), st.integers(1, 5), st.data())
def test_what_is_left_can_be_dealt_to_others(counts, readers, others, data):
    mixture = Mixture([counts], [1.0], seed=5)
    deal = Deal(mixture, readers, 7)
    used = Used(mixture.sizes)
    taken = []
    for reader in range(readers):
        number = data.draw(st.integers(0, sum(counts) // readers))
        taken += islice(deal.order(2, reader), number)
    used.add(taken)
    again = Deal(mixture, others, 7, {2: used})
    orders = [list(again.order(2, reader)) for reader in range(others)]
    assert Counter([*taken, *(ref for order in orders for ref in order)]) == Counter(every_ref(mixture, 2))
    assert max(map(len, orders)) - min(map(len, orders)) <= 1
    assert again.left(2) == sum(map(len, orders))
    assert again.left(3) == sum(counts)


@given(COUNTS, COUNTS, st.sampled_from([1, 2, 3]), st.sampled_from([0.5, 0.25, 0.75, 1.5, 2.25]))
def test_a_mixture_reads_each_source_as_often_as_its_factor_says(counts, others, factor, fraction):
    mixture = Mixture([counts, others], [factor, fraction], seed=1)
    per_epoch = round(sum(others) * fraction)
    total = Counter()
    for epoch in range(4):
        refs = every_ref(mixture, epoch)
        assert len(set(refs)) == len(refs) == mixture.samples == factor * sum(counts) + per_epoch
        samples = Counter((piece % len(mixture.sizes), i) for piece, i in refs)
        for (shard, _), times in samples.items():
            wanted = per_epoch / sum(others) if shard >= len(counts) else factor
            assert int(wanted) <= times <= -(-wanted // 1)
        total += samples
    # Over the epochs no sample of a source is read more than once more than another.
    for source in (range(len(counts)), range(len(counts), len(mixture.sizes))):
        times = [total[shard, i] for shard in source for i in range(mixture.sizes[shard])]
        assert not times or max(times) - min(times) <= 1


def test_a_half_is_another_half_in_the_next_epoch():
    mixture = Mixture([[6, 4, 10]], [0.5], seed=0)
    first, second = every_ref(mixture, 0), every_ref(mixture, 1)
    assert len(first) == len(second) == 10
    assert not {*first} & {*second}


@given(st.lists(st.integers(0, 5)), st.integers(1, 8))
def test_unique_batches_are_whole_and_double_nothing(values, size):
    items = list(enumerate(values))
    batches = list(unique_batches(items, size, lambda item: item[1]))
    assert all(len(batch) == len({value for _, value in batch}) == size for batch in batches)
    taken = [item for batch in batches for item in batch]
    assert len(set(taken)) == len(taken)
    # What is left over could not have filled a batch in this order: fewer than `size` distinct values remain.
    left = {value for _, value in {*items} - {*taken}}
    assert len(left) < size or not left


def test_a_value_that_most_samples_share_is_in_every_batch_and_costs_no_more():
    items = [(n, "common" if n % 3 else f"rare {n}") for n in range(30_000)]
    batches = list(unique_batches(items, 4, lambda item: item[1]))
    assert len(batches) == 10_000 // 3
    assert all(sum(value == "common" for _, value in batch) == 1 for batch in batches)


def test_steps_leave_out_what_was_used_and_what_cannot_be():
    mixture = Mixture([[10, 10]], [1.0], seed=0)
    used = Used(mixture.sizes)
    used.add([(0, i) for i in range(5)])
    deal = UniqueDeal(mixture, lambda ref: None if ref == (1, 9) else str(ref[1] % 5), 4, {0: used})
    steps, left_out = deal.steps(0)
    refs = {ref for step in steps for ref in step}
    assert len(refs) == 4 * len(steps)
    assert not refs & {(1, 9), *((0, i) for i in range(5))}
    assert left_out == 14 - len(refs)
    assert (steps, left_out) == deal.steps(0)
