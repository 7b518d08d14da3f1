"""From the planned order to samples: each shard is read forwards, and samples wait until it is their turn.

    for epoch, ref, sample in follow(deal, shards, reader=3, epoch=0, taken=12_800): ...

What was used before `taken` is neither kept nor decoded, shards that were used whole are not opened, and reading stops
at the last sample that is needed. A sample that is not there comes out as `Bad`, so counts stay what the plan says.
Memory: the shuffle buffer's samples, undecoded; for `Held` the whole set.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice

import numpy as np

from data_prep.errors import DataError
from training.data.order import Deal
from training.data.source import Shard
from training.data.stream import Sample, read_samples
from training.data.used import Ref, Used

HELD_BYTES = 8 << 30
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Bad:
    """A sample that cannot be used: a reason from a small set, and what to call the sample."""

    shard: str
    sample: str
    reason: str

    def __str__(self) -> str:
        return f"{self.shard}:{self.sample} ({self.reason})"


def read_shard(shard: Shard, indices: np.ndarray) -> Iterator[tuple[int, Sample | Bad]]:
    """The samples with these ascending numbers.

    Raises:
        DataError: the shard holds more samples than its count says, or needs a package that is not installed.
    """
    wanted = iter(indices.tolist())
    want = next(wanted, None)
    reason = "the shard ends early"
    try:
        with closing(read_samples(shard.kind, shard.address)) as samples:
            for number, sample in enumerate(samples):
                if number >= shard.samples:
                    raise DataError(
                        f"{shard.address} holds more than the {shard.samples} samples that it should. Put back the "
                        "shard that was counted, and --resume auto goes on; or count it again (the manifest, or the "
                        "file with its count) for a new run"
                    )
                if number == want:
                    yield number, sample
                    want = next(wanted, None)
                if want is None and number < shard.samples - 1:
                    return
    except DataError:
        raise
    except Exception as error:  # see read_samples; the samples that were read before it are good
        reason = f"the shard cannot be read: {type(error).__name__}"  # its text may hold a name of any bytes
    while want is not None:
        yield want, Bad(shard.name, f"sample {want}", reason)
        want = next(wanted, None)


def follow(
    deal: Deal, shards: Sequence[Shard], reader: int, epoch: int, taken: int
) -> Iterator[tuple[int, Ref, Sample | Bad]]:
    """A reader's endless stream of (epoch, ref, sample), from where `taken` samples of `epoch` have been used."""
    for at in count(epoch):
        order = deal.order(at, reader)
        used = Used(deal.mixture.sizes)
        skipped = islice(order, taken)
        while chunk := list(islice(skipped, _CHUNK)):
            used.add(chunk)
        taken = 0
        arrivals = _read(_without(deal.share(at, reader), used), shards)
        waiting: dict[Ref, Sample | Bad] = {}
        for ref in order:
            while ref not in waiting:
                arrived, sample = next(arrivals)
                waiting[arrived] = sample
            yield at, ref, waiting.pop(ref)
        next(arrivals, None)  # nothing comes, but the last shard is read to its end, where one sample more would show


def _without(share: Iterable[tuple[int, np.ndarray]], used: Used) -> Iterator[tuple[int, np.ndarray]]:
    for piece, indices in share:
        if piece in used.partial:
            indices = indices[~used.partial[piece][indices]]
        if piece not in used.whole and len(indices):
            yield piece, indices


def _read(parts: Iterable[tuple[int, np.ndarray]], shards: Sequence[Shard]) -> Iterator[tuple[Ref, Sample | Bad]]:
    for piece, indices in parts:
        for index, sample in read_shard(shards[piece % len(shards)], indices):
            yield (piece, index), sample


class Held:
    """A small set in memory, with the value of `unique_key` of each sample.

    Raises:
        DataError: the set is larger than 8 GiB, or a shard holds more samples than its count says.
    """

    def __init__(self, shards: Sequence[Shard], unique_key: str) -> None:
        self.samples: list[list[Sample]] = []  # by shard and number; empty for what cannot be used
        self.values: list[list[str | None]] = []
        self.bad: list[Bad] = []
        self._check_bytes(sum(shard.bytes for shard in shards))
        total = 0
        for shard in shards:
            samples: list[Sample] = []
            values: list[str | None] = []
            for _, sample in read_shard(shard, np.arange(shard.samples)):
                value = sample if isinstance(sample, Bad) else _value(shard, sample, unique_key)
                if isinstance(value, Bad):
                    self.bad.append(value)
                values.append(None if isinstance(value, Bad) else value)
                samples.append({} if isinstance(sample, Bad) else sample)
                total += sum(map(len, samples[-1].values()))
            self._check_bytes(total)
            self.samples.append(samples)
            self.values.append(values)

    @staticmethod
    def _check_bytes(found: int) -> None:
        if found > HELD_BYTES:
            raise DataError(
                f"--unique-key holds the set in memory, and this one has {found:,} bytes or more, over {HELD_BYTES:,}; "
                "it is meant for small sets: leave it out"
            )

    def sample(self, ref: Ref) -> Sample:
        return self.samples[ref[0] % len(self.samples)][ref[1]]

    def value(self, ref: Ref) -> str | None:
        return self.values[ref[0] % len(self.values)][ref[1]]


def _value(shard: Shard, sample: Sample, unique_key: str) -> str | Bad:
    try:
        return str(json.loads(sample["json"])[unique_key])
    except (ValueError, KeyError, TypeError):
        return Bad(shard.name, sample["__key__"], f"no JSON field {unique_key!r}")
