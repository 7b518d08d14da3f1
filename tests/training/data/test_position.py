"""The position without reading: readers play their orders, some faster than others as bad samples make them."""

import io
import random
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.data.batches import Place, Progress
from training.data.position import Position
from training.data.source import Shard, Source
from training.settings import Settings, SettingsError

LAYOUTS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 25)), min_size=1, max_size=4)


def sources_of(*counts):
    return [Source("set", 1.0, tuple(Shard(f"{n}.tar", "file", "", c) for n, c in enumerate(counts)))]


def refs_of(record, counts):
    """The refs of a record of used samples, by the words of its documentation."""
    shard_of = {f"0/{n}.tar": n for n in range(len(counts))}
    whole = [(shard_of[label], i) for label in record["whole"] for i in range(counts[shard_of[label]])]
    bits = [(shard_of[label], np.unpackbits(packed.numpy())) for label, packed in record["partial"].items()]
    return whole + [(shard, i) for shard, row in bits for i in np.flatnonzero(row).tolist()]


def stream(deal, reader, place):
    """(ref, place after it) without end."""
    for epoch in count(place.epoch):
        for taken, ref in enumerate(deal.order(epoch, reader), start=1):
            if epoch > place.epoch or taken > place.taken:
                yield ref, Place(epoch, taken)


def play(sources, world, workers, batches, record=None, rng=None, **settings):
    """Go on from a record for so many batches; what was used, (epoch, ref), in order, and the record after it."""
    settings = Settings(workers=workers, shuffle_buffer=5, **settings)
    positions = [Position(settings, sources, rank, world, record) for rank in range(world)]
    readers = [
        [stream(p.deal, rank * len(p.places) + own, place) for own, place in enumerate(p.places)]
        for rank, p in enumerate(positions)
    ]
    used = []
    for _ in range(batches):
        for position, own in zip(positions, readers, strict=True):
            reader = position.turn
            progress = Progress(reader, position.places[reader], {}, [])
            for _ in range(rng.randint(1, 6) if rng else 3):
                ref, progress.place = next(own[reader])
                progress.used.setdefault(progress.place.epoch, []).append(ref)
                used.append((progress.place.epoch, ref))
            position.advance(progress)
    buffer = io.BytesIO()
    torch.save(positions[0].merge([position.part() for position in positions]), buffer)
    buffer.seek(0)
    return used, torch.load(buffer, weights_only=True)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(lambda c: sum(c) > 9), LAYOUTS, st.randoms())
def test_however_often_it_is_dealt_anew_each_sample_is_used_once_an_epoch(counts, layouts, rng):
    sources = sources_of(*counts)
    used, record = [], None
    for world, workers, batches in layouts:
        more, record = play(sources, world, workers, batches, record, rng)
        used += more
        assert len(set(used)) == len(used)
        # The record alone says what has been used.
        oldest = min(place["epoch"] for place in record["readers"])
        recorded = {(epoch, ref) for epoch in record["used"] for ref in refs_of(record["used"][epoch], counts)}
        recorded |= {(epoch, ref) for epoch in record["before"] for ref in refs_of(record["before"][epoch], counts)}
        assert recorded == {(epoch, ref) for epoch, ref in used if epoch >= oldest}
        assert all(sum(at == epoch for at, _ in used) == sum(counts) for epoch in range(oldest))


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (1, 3), (2, 2)])
def test_the_same_layout_goes_on_in_the_same_order(world, workers):
    sources = sources_of(7, 12, 1, 9)
    whole, _ = play(sources, world, workers, 24)
    for batches in range(24):
        first, record = play(sources, world, workers, batches)
        second, record = play(sources, world, workers, 5, record)
        third, _ = play(sources, world, workers, 24 - batches - 5, record)  # resumed twice
        assert (first + second + third)[: len(whole)] == whole


def test_workers_0_and_1_are_the_same_reader():
    sources = sources_of(7, 12)
    whole, _ = play(sources, 1, 0, 10)
    first, record = play(sources, 1, 0, 4)
    assert first + play(sources, 1, 1, 6, record)[0] == whole


def test_the_record_names_whole_shards_and_stays_small():
    sources = sources_of(*[10] * 40)
    _, record = play(sources, 1, 0, 50)
    (epoch,) = record["used"]
    assert epoch == 0
    assert len(record["used"][0]["whole"]) > 10
    assert len(record["used"][0]["partial"]) <= 5
    _, later = play(sources, 2, 2, 1000)
    assert min(place["epoch"] for place in later["readers"]) > 10
    assert len(later["used"]) <= 2  # not every epoch since the start


def test_dealing_anew_says_so():
    sources = sources_of(20, 20)
    _, record = play(sources, 2, 1, 4)
    (note,) = Position(Settings(shuffle_buffer=5), sources, 0, 1, record).notes
    assert "the run had 2 x 1 readers" in note
    assert "now has 1 x 1 readers" in note
    assert "of epoch 0, 24 samples were used and 16 are left" in note
    assert Position(Settings(shuffle_buffer=5), sources, 0, 2, record).notes == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, r"--seed is 1, the checkpoint's run had 0"),
        ({"unique_key": "concept"}, r"--unique-key is 'concept', the checkpoint's run had ''"),
    ],
)
def test_another_order_is_refused(change, message):
    sources = sources_of(20)
    _, record = play(sources, 1, 0, 1)
    with pytest.raises(SettingsError, match=message):
        Position(Settings(**change), sources, 0, 1, record)


@pytest.mark.parametrize("other", [sources_of(20, 1), sources_of(21)])
def test_other_data_is_refused(other):
    _, record = play(sources_of(20), 1, 0, 1)
    with pytest.raises(SettingsError, match=r"has .* shards with 21 samples.* had 1 with 20 .*--init-from"):
        Position(Settings(), other, 0, 1, record)


def test_parts_of_different_moments_are_no_record():
    position = Position(Settings(workers=2), sources_of(20), 0, 2, None)
    early = position.part()
    position.advance(Progress(0, Place(0, 1), {0: [(0, 0)]}, []))
    with pytest.raises(ValueError, match="not at the same batch"):
        position.merge([early, position.part()])


def test_random_players_do_run_ahead_of_each_other():
    """What the first test above relies on: readers more than an epoch apart."""
    _, record = play(sources_of(5, 5), 2, 3, 60, rng=random.Random(1))
    epochs = [place["epoch"] for place in record["readers"]]
    assert max(epochs) - min(epochs) > 1


def test_shards_of_other_bytes_are_told_and_the_same_go_on_without_a_word():
    def sources(sha256):
        return [Source("set", 1.0, (Shard("0.tar", "file", "", 20, 7, sha256), Shard("1.tar", "file", "", 10, 7)))]

    _, record = play(sources("a" * 64), 1, 0, 2)
    settings = Settings(workers=0, shuffle_buffer=5)
    assert Position(settings, sources("a" * 64), 0, 1, record).notes == []
    (note,) = Position(settings, sources("b" * 64), 0, 1, record).notes
    assert "shards hold other bytes than when the checkpoint was written" in note
