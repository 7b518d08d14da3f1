"""From shards to batches: what the manifest names, each sample at most once an epoch, in an order fixed by the seed.

Reading is webdataset's (tar iteration, grouping by key, shuffling) on files opened here, so that a shard's name can
never be taken for a command or an address; pictures are decoded by our own decoder only. Each shard's samples are
counted against the manifest: damage that a tar reader passes over in silence ends the run.
Cost on a CPU: about 0.6 ms a picture at 48 px, most of it decoding and augmentation.

Two ways to share an epoch among processes and workers:
- by shard (the default): each reads its own shards, as for LAION-scale sets;
- by the value of `unique_key` (small sets): each reads all shards and keeps its own samples. A value belongs to one
  process for the whole run, so that no two samples of a global batch share a value; the workers of a process take
  turns at its samples.
"""

import hashlib
import json
import random
import tarfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
import webdataset
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from webdataset.tariterators import group_by_keys, tar_file_iterator

from data_prep.errors import DataError
from data_prep.manifest import ShardEntry, read_manifest
from data_prep.shards import decode_image
from training.settings import Settings, SettingsError

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp")
Sample = dict[str, Any]
Batch = tuple[torch.Tensor, torch.Tensor]


def unique_batches(samples: Iterable[Sample], size: int, value: Callable[[Sample], str]) -> Iterator[list[Sample]]:
    """Group samples into batches of `size` in which each value occurs once; what does not fit waits for the next.

    Batches are whole: at the end, samples that fill no batch are left out (fewer than a batch where values are
    spread evenly).
    """
    stream = iter(samples)
    waiting: deque[Sample] = deque()
    while True:
        batch: list[Sample] = []
        taken: set[str] = set()
        again: list[Sample] = []
        while len(batch) < size:
            sample = waiting.popleft() if waiting else next(stream, None)
            if sample is None:
                return
            key = value(sample)
            if key in taken:
                again.append(sample)
            else:
                taken.add(key)
                batch.append(sample)
        waiting.extendleft(reversed(again))
        yield batch


def share_of(text: str, shares: int) -> int:
    """Which of `shares` equal parts a text falls to, 0 to shares-1; the same on every machine."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % shares


def read_shard(folder: Path, entry: ShardEntry) -> Iterator[Sample]:
    """The samples of one shard, as webdataset groups them: `__key__`, `__url__`, and bytes by suffix.

    Raises:
        DataError: the tar cannot be read, or holds another number of samples than the manifest says.
    """
    path = folder / entry.shard
    found = 0
    try:
        with open(path, "rb") as stream:
            files = ({**file, "__url__": str(path)} for file in tar_file_iterator(stream))
            for sample in group_by_keys(files):
                found += 1
                yield sample
    except (OSError, ValueError, EOFError, tarfile.TarError) as error:
        raise DataError(f"{path}: cannot be read as a shard after {found} samples ({error})") from error
    if found != entry.samples:
        raise DataError(f"{path} holds {found} samples, the manifest says {entry.samples}; copy or make it again")


class ShardBatches(IterableDataset[Batch]):
    """An endless stream of batches (images (B, 3, H, W) float32, tokens (B, L) int64) for one process.

    Args:
        folder: shards and manifest.
        settings: batch size, seed, buffer, `unique_key`.
        preprocess: picture → (3, H, W) float32.
        tokenizer: list of captions → (B, L) int64.
        rank, world: this process and their number.

    Raises:
        DataError: the manifest is missing or wrong.
        SettingsError: more readers than shards.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        preprocess: Callable[[Any], torch.Tensor],
        tokenizer: Callable[[list[str]], torch.Tensor],
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.folder = folder
        self.entries: list[ShardEntry] = read_manifest(folder)
        self.settings = settings
        self.preprocess = preprocess
        self.tokenizer = tokenizer
        self.rank = rank
        self.world = world
        readers = world * max(settings.workers, 1)
        if not settings.unique_key and readers > len(self.entries):
            raise SettingsError(
                f"{folder} has {len(self.entries)} shards for {readers} readers ({world} processes x "
                f"{max(settings.workers, 1)} workers): some would have nothing to read; use fewer workers or "
                "processes, or write more shards"
            )

    @property
    def samples(self) -> int:
        """Samples in one epoch over all processes, by the manifest."""
        return sum(entry.samples for entry in self.entries)

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        # Augmentation draws from both generators; every reader gets its own stream.
        stream_seed = self.settings.seed * 100_003 + self.rank * workers + worker
        torch.manual_seed(stream_seed)
        random.seed(stream_seed)
        for epoch in count():
            batches = 0
            for batch in unique_batches(self.epoch(epoch, worker, workers), self.settings.batch_size, self._value):
                batches += 1
                yield self._collate(batch)
            if not batches:
                raise DataError(self._why_no_batch(workers))

    def _why_no_batch(self, workers: int) -> str:
        key = self.settings.unique_key
        lacking = f"so many distinct values of {key!r}" if key else "so many samples"
        return (
            f"{self.folder}: one of {self.world * workers} readers ({self.world} processes x {workers} workers) did "
            f"not find {lacking} in an epoch of {self.samples} as a batch of {self.settings.batch_size} needs; use a "
            "smaller batch_size, fewer workers or fewer processes"
        )

    def epoch(self, epoch: int, worker: int, workers: int) -> Iterator[Sample]:
        """One worker's part of an epoch, shuffled; all workers of all processes together see each sample once."""
        seed, buffer = self.settings.seed, self.settings.shuffle_buffer
        reader, readers = self.rank * workers + worker, self.world * workers
        entries = list(self.entries)
        random.Random(f"{seed}/{epoch}").shuffle(entries)
        if self.settings.unique_key:
            everything = (sample for entry in entries for sample in read_shard(self.folder, entry))
            own = (s for s in everything if share_of(f"{seed}/{self._value(s)}", self.world) == self.rank)
            samples = (sample for turn, sample in enumerate(own) if turn % workers == worker)
        else:
            samples = (sample for entry in entries[reader::readers] for sample in read_shard(self.folder, entry))
        rng = random.Random(f"{seed}/{epoch}/{reader}")
        return iter(webdataset.shuffle(buffer, initial=buffer, rng=rng)(samples))

    def _value(self, sample: Sample) -> str:
        """What no two samples of a batch may share: the unique key's value, or the sample's own key."""
        key = self.settings.unique_key
        if not key:
            return str(sample["__key__"])
        try:
            value = json.loads(sample["json"])[key]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{_named(sample)} has no JSON field {key!r} ({type(error).__name__}: {error})") from error
        return str(value)

    def _collate(self, batch: list[Sample]) -> Batch:
        images = torch.stack([self.preprocess(_image(sample)) for sample in batch])
        return images, self.tokenizer([_caption(sample) for sample in batch])


def _named(sample: Sample) -> str:
    return f"{sample['__url__']}: sample {sample['__key__']}"


def _image(sample: Sample) -> Any:
    data = next((sample[suffix] for suffix in IMAGE_SUFFIXES if suffix in sample), None)
    if data is None:
        raise DataError(f"{_named(sample)} has no picture ({', '.join(IMAGE_SUFFIXES)})")
    try:
        return decode_image(data)
    except DataError as error:
        raise DataError(f"{_named(sample)}: {error}") from error


def _caption(sample: Sample) -> str:
    if "txt" not in sample:
        raise DataError(f"{_named(sample)} has no caption (txt)")
    try:
        return str(sample["txt"].decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{_named(sample)}: its caption is not UTF-8 ({error.reason})") from error


class _ErrorsAsItems(IterableDataset[Batch | DataError]):
    """The stream with its error as the last item: a worker's exception would reach the user as a traceback."""

    def __init__(self, batches: ShardBatches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch | DataError]:
        try:
            yield from self.batches
        except DataError as error:
            yield error


def load(dataset: ShardBatches, pin_memory: bool = False) -> Iterator[Batch]:
    """The batches, prepared by `workers` processes ahead. Raises DataError as the dataset does."""
    workers = dataset.settings.workers
    loader: DataLoader[Batch | DataError] = DataLoader(
        _ErrorsAsItems(dataset),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=pin_memory,
    )
    for item in loader:
        if isinstance(item, DataError):
            raise item
        yield item
