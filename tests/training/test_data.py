import random
from collections import Counter
from itertools import islice

import open_clip
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.data import DataError, ShardBatches, loader, share_of, unique_batches
from training.settings import Settings, SettingsError


def dataset(folder, rank=0, world=1, **changes):
    settings = Settings(**{"model": "tiny-emoji-eq7", "batch_size": 6, "workers": 0, "seed": 3, **changes})
    _, preprocess, _ = open_clip.create_model_and_transforms("tiny-emoji-eq7")
    tokenizer = open_clip.get_tokenizer("tiny-emoji-eq7")
    return ShardBatches(folder, settings, preprocess, tokenizer, rank, world)


@given(st.lists(st.integers(0, 5)), st.integers(1, 8))
def test_unique_batches_lose_and_double_nothing(values, size):
    samples = [{"n": i, "value": str(v)} for i, v in enumerate(values)]
    batches = list(unique_batches(samples, size, lambda s: s["value"], patience=len(values)))
    assert sorted(s["n"] for batch in batches for s in batch) == list(range(len(values)))
    for batch in batches:
        assert 0 < len(batch) <= size
        assert len({s["value"] for s in batch}) == len(batch)


def test_too_few_distinct_values_end_with_a_sentence_and_not_in_a_loop():
    def endless():
        while True:
            yield {"value": random.choice("ab")}

    with pytest.raises(DataError, match=r"batch of 3 .* gave only 2"):
        next(unique_batches(endless(), 3, lambda s: s["value"], patience=50))


@given(st.text(), st.integers(1, 8))
def test_shares_are_in_range_and_fixed(text, shares):
    assert 0 <= share_of(text, shares) < shares
    assert share_of(text, shares) == share_of(text, shares)


@pytest.mark.parametrize("unique_key", ["", "concept"])
def test_readers_share_an_epoch_without_loss_or_overlap(shards, unique_key):
    seen = Counter()
    for rank in range(2):
        data = dataset(shards, rank, 2, unique_key=unique_key)
        for worker in range(2):
            seen.update(sample["__key__"] for sample in data.epoch(5, worker, 2))
    assert len(seen) == data.samples == 36
    assert set(seen.values()) == {1}


def test_no_two_pictures_of_a_concept_meet_in_a_global_batch(shards):
    ranks = [dataset(shards, rank, 2, unique_key="concept", batch_size=2) for rank in range(2)]
    for batches in islice(zip(*(iter(r) for r in ranks), strict=True), 12):
        captions = [tuple(row.tolist()) for _, texts in batches for row in texts]
        assert len(set(captions)) == len(captions)


def test_the_order_is_fixed_by_the_seed(shards):
    first = [b[1] for b in islice(dataset(shards, unique_key="concept"), 5)]
    again = [b[1] for b in islice(dataset(shards, unique_key="concept"), 5)]
    other = [b[1] for b in islice(dataset(shards, unique_key="concept", seed=4), 5)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_worker_processes_give_whole_batches(shards):
    images, texts = next(iter(loader(dataset(shards, workers=2, unique_key="concept", batch_size=3))))
    assert images.dtype == torch.float32
    assert images.shape[:2] == (3, 3)
    assert texts.dtype == torch.int64


def test_only_shards_of_the_manifest_are_read(shards, tmp_path):
    for path in shards.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "stray.tar").write_bytes(b"not a tar")
    assert dataset(tmp_path).samples == 36
    assert len(list(islice(dataset(tmp_path), 7))) == 7


def test_more_readers_than_shards_are_refused(shards):
    with pytest.raises(SettingsError, match=r"4 shards for 6 readers \(2 processes x 3 workers\)"):
        dataset(shards, 0, 2, workers=3)


def test_a_missing_unique_key_names_the_sample(shards):
    with pytest.raises(DataError, match="has no JSON field 'colour'"):
        next(iter(dataset(shards, unique_key="colour")))
