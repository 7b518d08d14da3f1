"""From the planned order to samples: each shard is read forwards, and samples wait until it is their turn.

    for epoch, ref, sample in follow(deal, shards, reader=3, epoch=0, taken=12_800): ...

What was used before `taken` is neither kept nor decoded, shards that were used whole are not opened, and reading stops
at the last sample that is needed. A sample that is not there comes out as `Bad`, so counts stay what the plan says.
Memory: the shuffle buffer's samples, undecoded; for `Held` the whole set.
"""

import json
import marshal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice

import numpy as np

from data_prep.errors import DataError
from data_prep.shards import KEY
from training.data.order import Deal
from training.data.source import Shard
from training.data.stream import TWICE, WAITS, Sample, UnreachableError, read_samples
from training.data.used import Ref, Used

HELD_BYTES = 8 << 30
_CHUNK = 1 << 16
LOST = 3  # shards in a row that remote storage does not give; more would give nothing either


@dataclass(frozen=True)
class Bad:
    """A sample that cannot be used: a reason from a small set, and what to call the sample."""

    shard: str
    sample: str
    reason: str

    def __str__(self) -> str:
        return f"{self.shard}:{self.sample} ({self.reason})"


def read_shard(shard: Shard, indices: np.ndarray, waits: Sequence[float] = WAITS) -> Iterator[tuple[int, Sample | Bad]]:
    """The samples with these ascending numbers.

    Raises:
        DataError: the shard holds more samples than its count says, or needs a package that is not installed.
        UnreachableError: its remote storage gave nothing after all of `waits`.
    """
    wanted = iter(indices.tolist())
    want = next(wanted, None)
    reason = "the shard ends early"
    try:
        with closing(read_samples(shard.kind, shard.address, waits)) as samples:
            for number, sample in enumerate(samples):
                if number >= shard.samples:
                    raise DataError(
                        f"{shard.address} holds more than the {shard.samples} samples that it should. Put back the "
                        "shard that was counted, and --resume auto goes on; or count it again (the manifest, or the "
                        "file with its count) for a new run"
                    )
                if number == want:
                    yield number, Bad(shard.name, sample[KEY], "two members of a suffix") if TWICE in sample else sample
                    want = next(wanted, None)
                if want is None and number < shard.samples - 1:
                    return
    except (DataError, UnreachableError):
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
    """The samples of all parts; those of a shard that is lost come after the next one's, if that is there.

    Raises DataError where `LOST` shards in a row cannot be reached, at once: what is read is used for long after.
    """
    lost: list[tuple[Ref, Bad]] = []
    in_a_row = 0
    for piece, indices in parts:
        shard = shards[piece % len(shards)]
        arrived = 0
        try:
            for index, sample in read_shard(shard, indices, WAITS[:1] if in_a_row else WAITS):
                arrived += 1
                yield (piece, index), sample
            in_a_row = 0
        except UnreachableError as error:
            reason = f"the shard cannot be read: {type(error.__cause__).__name__}"
            bad = (((piece, index), Bad(shard.name, f"sample {index}", reason)) for index in indices[arrived:].tolist())
            lost += bad
            in_a_row += 1
            if in_a_row == LOST:
                raise DataError(_gone([each for _, each in lost], error)) from error
            continue
        yield from lost
        lost.clear()
    yield from lost


def _gone(lost: Sequence[Bad], error: UnreachableError) -> str:
    """Why the run ends: counts by reason, and the shards."""
    reasons = ", ".join(f"{number} x {reason}" for reason, number in Counter(bad.reason for bad in lost).items())
    named = ", ".join(f"{shard} ({number})" for shard, number in Counter(bad.shard for bad in lost).items())
    return (
        f"the storage is gone: {LOST} shards in a row could not be reached, with {len(lost)} samples: {reasons}; they "
        f"are {named}. The last error: {error}. See that it can be reached; --resume auto goes on"
    )


class Held:
    """A small set in memory, with the value of `unique_key` of each sample.

    The samples are bytes in one buffer. As objects of their own, each would have a reference count, and a worker that
    was forked would copy the pages of all that it looks at: in the end, the set.

    Raises:
        DataError: the set is larger than 8 GiB, or a shard holds more samples than its count says.
    """

    def __init__(self, shards: Sequence[Shard], unique_key: str) -> None:
        self.bad: list[Bad] = []
        self.values: list[list[str | None]] = [[None] * shard.samples for shard in shards]  # None: cannot be used
        self._bytes = bytearray()
        self._places = [np.zeros((shard.samples, 2), np.int64) for shard in shards]  # first byte, one past the last
        self._check_bytes(sum(shard.bytes for shard in shards))
        for (number, index), sample in _read(((n, np.arange(s.samples)) for n, s in enumerate(shards)), shards):
            if isinstance(sample, Bad):
                self.bad.append(sample)
                continue
            value = _value(shards[number], sample, unique_key)
            if isinstance(value, Bad):
                self.bad.append(value)
                continue
            self.values[number][index] = sys.intern(value)
            first = len(self._bytes)
            self._bytes += marshal.dumps(sample)
            self._places[number][index] = first, len(self._bytes)
            self._check_bytes(len(self._bytes))

    @staticmethod
    def _check_bytes(found: int) -> None:
        if found > HELD_BYTES:
            raise DataError(
                f"--unique-key holds the set in memory, and this one has {found:,} bytes or more, over {HELD_BYTES:,}; "
                "it is meant for small sets: leave it out"
            )

    def sample(self, ref: Ref) -> Sample:
        """A sample that has a value."""
        first, end = self._places[ref[0] % len(self._places)][ref[1]]
        sample: Sample = marshal.loads(memoryview(self._bytes)[first:end])
        return sample

    def value(self, ref: Ref) -> str | None:
        return self.values[ref[0] % len(self.values)][ref[1]]


def _value(shard: Shard, sample: Sample, unique_key: str) -> str | Bad:
    try:
        return str(json.loads(sample["json"])[unique_key])
    except (ValueError, KeyError, TypeError):
        return Bad(shard.name, sample["__key__"], f"no JSON field {unique_key!r}")
