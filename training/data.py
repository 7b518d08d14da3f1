"""From shards to batches: what the manifest names, each sample once an epoch, in an order fixed by the seed.

Reading is webdataset's (tar iteration, sample grouping, shuffling); pictures are decoded by our own decoder only.
Cost on a CPU: about 0.5 ms a picture at 64 px, most of it decoding and augmentation.

Two ways to share an epoch among processes and workers:
- by shard (the default): each reads its own shards, as for LAION-scale sets;
- by the value of `unique_key` (small sets): each reads all shards and keeps the samples whose value falls to it, so
  that no two samples of a global batch share a value.
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


def unique_batches(samples: Iterable[Sample], size: int, value: Callable[[Sample], str]) -> Iterator[list[Sample]]:
    """Group a stream into batches in which each value occurs once; what does not fit waits for the next batch.

    Nothing is lost or doubled: what the batches leave over stays in front of the queue. The last batch may be
    short of `size`; several short ones follow where the leftovers share values.
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
            else:
                taken.add(key)
                batch.append(sample)
        waiting.extendleft(reversed(again))
        if not batch:
            return
        yield batch


def share_of(value: str, epoch: int, seed: int, shares: int) -> int:
    """Which of `shares` equal parts a value falls to in this epoch; dealt anew each epoch."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{value}".encode(), digest_size=8).digest()
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
        reader, readers = self.rank * workers + worker, self.world * workers
        # Augmentation draws from both generators; every reader gets its own stream.
        torch.manual_seed(self.settings.seed * 100_003 + reader)
        random.seed(self.settings.seed * 100_003 + reader)
        samples = self._samples(reader, readers)
        unique_key = self.settings.unique_key
        value = (lambda s: str(s["json"][unique_key])) if unique_key else (lambda s: str(s["__key__"]))
        for batch in unique_batches(samples, self.settings.batch_size, value):
            yield self._collate(batch)

    def _samples(self, reader: int, readers: int) -> Iterator[Sample]:
        """This reader's samples, epoch after epoch, shuffled."""
        for epoch in count():
            order = random.Random(f"{self.settings.seed}/{epoch}")
            urls = [str(self.folder / entry.shard) for entry in self.entries]
            order.shuffle(urls)
            unique_key = self.settings.unique_key
            if not unique_key:
                urls = urls[reader::readers]
            stream = webdataset.SimpleShardList(urls)
            stages: list[Any] = [stream, webdataset.tarfile_to_samples(handler=webdataset.reraise_exception)]
            if unique_key:
                stages.append(webdataset.select(lambda s, e=epoch: self._is_mine(s, e, reader, readers)))
            stages.append(
                webdataset.shuffle(
                    self.settings.shuffle_buffer,
                    initial=self.settings.shuffle_buffer,
                    rng=random.Random(f"{self.settings.seed}/{epoch}/{reader}"),
                )
            )
            found = 0
            for sample in webdataset.DataPipeline(*stages):
                found += 1
                yield sample
            if not found:
                raise DataError(
                    f"{self.folder}: reader {reader} of {readers} found no sample in epoch {epoch} "
                    f"(shards {', '.join(Path(u).name for u in urls[:5])}); nothing would ever be trained"
                )

    def _is_mine(self, sample: Sample, epoch: int, reader: int, readers: int) -> bool:
        sample["json"] = json.loads(sample["json"])
        value = sample["json"].get(self.settings.unique_key)
        if value is None:
            raise DataError(
                f"{sample['__url__']}: sample {sample['__key__']} has no JSON field {self.settings.unique_key!r}"
            )
        return share_of(str(value), epoch, self.settings.seed, readers) == reader

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
