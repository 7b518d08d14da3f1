import dataclasses
from collections import Counter
from itertools import islice
from pathlib import Path

import open_clip
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_prep.errors import DataError
from data_prep.manifest import ShardEntry, read_manifest, write_manifest
from data_prep.shards import ShardWriter
from training.data import ShardBatches, load, read_shard, share_of, unique_batches
from training.settings import Settings, SettingsError


def dataset(folder, rank=0, world=1, **changes):
    settings = Settings(**{"model": "tiny-emoji-eq7", "batch_size": 6, "workers": 0, "seed": 3, **changes})
    _, preprocess, _ = open_clip.create_model_and_transforms("tiny-emoji-eq7")
    tokenizer = open_clip.get_tokenizer("tiny-emoji-eq7")
    return ShardBatches(folder, settings, preprocess, tokenizer, rank, world)


@given(st.lists(st.integers(0, 5)), st.integers(1, 8))
def test_unique_batches_are_whole_and_double_nothing(values, size):
    samples = [{"n": i, "value": str(v)} for i, v in enumerate(values)]
    batches = list(unique_batches(samples, size, lambda s: s["value"]))
    numbers = [s["n"] for batch in batches for s in batch]
    assert len(set(numbers)) == len(numbers)
    for batch in batches:
        assert len(batch) == len({s["value"] for s in batch}) == size
    # What is left over could not have filled a batch in this order: fewer than `size` distinct values remain.
    left = {values[n] for n in set(range(len(values))) - set(numbers)}
    assert len(left) < size or not left


@pytest.mark.parametrize(("unique_key", "size"), [("concept", 13), ("", 37)])
def test_a_batch_that_no_epoch_can_fill_ends_with_a_sentence(shards, unique_key, size):
    with pytest.raises(DataError, match=rf"as a batch of {size} needs"):
        next(iter(dataset(shards, unique_key=unique_key, batch_size=size)))


def test_a_value_that_most_samples_share_does_not_pile_up(shards, monkeypatch):
    """A skewed set goes on for many epochs; surplus samples of the common value wait for no later epoch."""
    data = dataset(shards, unique_key="concept", batch_size=2)
    monkeypatch.setattr(data, "_value", lambda s: "common" if "red" not in s["__key__"] else s["__key__"])
    monkeypatch.setattr(data, "_collate", lambda batch: batch)
    batches = list(islice(data, 60))
    assert all(len(batch) == 2 for batch in batches)


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
    images, texts = next(load(dataset(shards, workers=2, unique_key="concept", batch_size=3)))
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
    with pytest.raises(DataError, match=r"sample vendor.* has no JSON field 'colour'"):
        next(iter(dataset(shards, unique_key="colour")))


def one_shard(folder, samples, claimed=None):
    """A set of one shard with these members by key; the manifest claims `claimed` samples."""
    with ShardWriter(folder / "00000.tar") as writer:
        for key, members in samples.items():
            writer.write(key, members)
    entry = writer.close()
    write_manifest(folder, [dataclasses.replace(entry, samples=entry.samples if claimed is None else claimed)])
    return folder


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"txt": None}, r"00000\.tar: sample odd has no caption"),
        ({"txt": b"\xff\xfe"}, r"sample odd: its caption is not UTF-8"),
        ({"png": None}, r"sample odd has no picture"),
        ({"png": b"no picture"}, r"sample odd: not a readable picture"),
        ({"json": None}, r"sample odd has no JSON field 'concept'"),
        ({"json": b"[1]"}, r"sample odd has no JSON field 'concept'"),
        ({"json": b"{"}, r"sample odd has no JSON field 'concept'"),
    ],
)
def test_a_bad_sample_is_named(tmp_path, members, change, message, workers):
    odd = {suffix: data for suffix, data in (members | change).items() if data is not None}
    data = dataset(one_shard(tmp_path, {"odd": odd}), unique_key="concept", batch_size=1, workers=workers)
    with pytest.raises(DataError, match=message) as caught:
        next(load(data))
    assert "Traceback" not in str(caught.value)


def test_a_shard_with_another_count_than_the_manifest_ends_the_run(tmp_path, members):
    data = dataset(one_shard(tmp_path, {"a": members, "b": members}, claimed=3), batch_size=1)
    with pytest.raises(DataError, match=r"00000\.tar holds 2 samples, the manifest says 3"):
        list(islice(data, 3))


def test_damage_inside_a_shard_is_not_passed_over(tmp_path, members):
    """Half of the file zeroed, same size: tar readers stop there without a word."""
    folder = one_shard(tmp_path, {f"s{i}": members for i in range(6)})
    path = folder / "00000.tar"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 // 512 * 512] + bytes(len(content) - len(content) // 2 // 512 * 512))
    (entry,) = read_manifest(folder)
    with pytest.raises(DataError, match=r"00000\.tar"):
        list(read_shard(folder, entry))


def test_a_shard_name_is_a_file_and_never_a_command(tmp_path, members, monkeypatch):
    one_shard(tmp_path, {"a": members})
    name = "pipe:touch owned"
    (tmp_path / "00000.tar").rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert len(list(read_shard(Path("."), ShardEntry(name, 1, "0" * 64, samples=1)))) == 1
    assert not (tmp_path / "owned").exists()
