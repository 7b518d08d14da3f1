"""From shards to batches: what the manifest names, each sample once an epoch, in an order fixed by the seed.

Reading is webdataset's (tar iteration, sample grouping, shuffling); pictures are decoded by our own decoder only.
Cost on a CPU: about 0.5 ms a picture at 64 px, most of it decoding and augmentation.

Two ways to share an epoch among processes and workers:
- by shard (the default): each reads its own shards, as for LAION-scale sets;
- by the value of `unique_key` (small sets): each reads all shards and keeps its own samples. A value belongs to one
  process for the whole run, so that no two samples of a global batch share a value; the workers of a process deal
  its samples among themselves anew each epoch.
"""

import hashlib
import json
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
import webdataset
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from data_prep.manifest import ShardEntry, read_manifest
from data_prep.shards import decode_image
from training.settings import Settings, SettingsError

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp")
Sample = dict[str, Any]
Batch = tuple[torch.Tensor, torch.Tensor]


class DataError(RuntimeError):
    """Training data that cannot be read or that ran empty; the message names the shard or sample."""


def unique_batches(
    samples: Iterable[Sample], size: int, value: Callable[[Sample], str], patience: int
) -> Iterator[list[Sample]]:
    """Group a stream into batches in which each value occurs once; what does not fit waits for the next batch.

    Nothing is lost or doubled: what a batch leaves over comes first in the next. At the end of the stream the
    last batches may be short of `size`.

    Args:
        patience: how many samples may be passed over while one batch fills.

    Raises:
        DataError: patience ran out; the stream has fewer distinct values than `size`.
    """
    stream = iter(samples)
    waiting: deque[Sample] = deque()
    while True:
        batch: list[Sample] = []
        taken: set[str] = set()
        again: deque[Sample] = deque()
        while len(batch) < size:
            sample = waiting.popleft() if waiting else next(stream, None)
            if sample is None:
                break
            key = value(sample)
            if key in taken:
                again.append(sample)
                if len(again) > patience:
                    raise DataError(
                        f"a batch of {size} needs as many distinct values of the unique key, but {patience} samples "
                        f"gave only {len(taken)}; use a batch_size of at most that, fewer workers or fewer processes"
                    )
            else:
                taken.add(key)
                batch.append(sample)
        waiting.extendleft(reversed(again))
        if not batch:
            return
        yield batch


def share_of(text: str, shares: int) -> int:
    """Which of `shares` equal parts a text falls to, 0 to shares-1; the same on every machine."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % shares


class ShardBatches(IterableDataset[Batch]):
    """An endless stream of batches (images (B, 3, H, W) float32, tokens (B, L) int64) for one process.

    Args:
        folder: shards and manifest.
        settings: batch size, seed, buffer, `unique_key`.
        preprocess: picture → (3, H, W) float32.
        tokenizer: list of captions → (B, L) int64.
        rank, world: this process and their number.
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
        samples = self._endless(worker, workers)
        # Two epochs hold every value at least once wherever they start.
        for batch in unique_batches(samples, self.settings.batch_size, self._value, patience=2 * self.samples):
            yield self._collate(batch)

    def _endless(self, worker: int, workers: int) -> Iterator[Sample]:
        """One worker's samples, epoch after epoch."""
        for epoch in count():
            found = 0
            for sample in self.epoch(epoch, worker, workers):
                found += 1
                yield sample
            if not found:
                raise DataError(
                    f"{self.folder}: worker {worker} of process {self.rank} found no sample in epoch {epoch}, so "
                    "nothing would ever be trained; use fewer workers or processes"
                )

    def epoch(self, epoch: int, worker: int, workers: int) -> Iterator[Sample]:
        """One worker's part of an epoch, shuffled; all workers of all processes together see each sample once."""
        seed, unique_key, buffer = self.settings.seed, self.settings.unique_key, self.settings.shuffle_buffer
        reader, readers = self.rank * workers + worker, self.world * workers
        urls = [str(self.folder / entry.shard) for entry in self.entries]
        random.Random(f"{seed}/{epoch}").shuffle(urls)
        if not unique_key:
            urls = urls[reader::readers]
        stages: list[Any] = [
            webdataset.SimpleShardList(urls),
            webdataset.tarfile_to_samples(handler=webdataset.reraise_exception),
        ]
        if unique_key:

            def is_mine(sample: Sample) -> bool:
                value = self._value(sample)
                if share_of(f"{seed}/{value}", self.world) != self.rank:
                    return False
                return share_of(f"{seed}/{epoch}/{sample['__key__']}", workers) == worker

            stages.append(webdataset.select(is_mine))
        rng = random.Random(f"{seed}/{epoch}/{reader}")
        stages.append(webdataset.shuffle(buffer, initial=buffer, rng=rng))
        return iter(webdataset.DataPipeline(*stages))

    def _value(self, sample: Sample) -> str:
        """What no two samples of a batch may share: the unique key's value, or the sample's own key."""
        if not self.settings.unique_key:
            return str(sample["__key__"])
        value = json.loads(sample["json"]).get(self.settings.unique_key)
        if value is None:
            raise DataError(
                f"{sample['__url__']}: sample {sample['__key__']} has no JSON field {self.settings.unique_key!r}"
            )
        return str(value)

    def _collate(self, batch: list[Sample]) -> Batch:
        images = torch.stack([self.preprocess(self._image(sample)) for sample in batch])
        texts = self.tokenizer([sample["txt"].decode("utf-8") for sample in batch])
        return images, texts

    def _image(self, sample: Sample) -> Any:
        for suffix in IMAGE_SUFFIXES:
            if suffix in sample:
                return decode_image(sample[suffix])
        raise DataError(f"{sample['__url__']}: sample {sample['__key__']} has no picture ({', '.join(IMAGE_SUFFIXES)})")


def loader(dataset: ShardBatches) -> DataLoader[Batch]:
    """The batches, prepared `workers` processes ahead."""
    workers = dataset.settings.workers
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
    )
