"""The order of samples, planned on integers: nothing here reads anything.

    deal = Deal(Mixture(counts, factors, seed=0), readers=8, buffer=5000)
    for piece, index in deal.order(epoch=0, reader=3): ...

The manifest says how many samples each shard holds, so an epoch's order follows from (seed, epoch, counts, readers)
alone, a position in it is a number, and what is left of it can be dealt anew to other readers:

1. An epoch's pieces: shards, or parts of them where a source is not read a whole number of times. A source with factor
   f gives round(f·N) samples an epoch, the next ones in its shards' row, which is repeated without end. So a factor
   of 2 reads every sample twice an epoch, and one of 0.5 every sample once in two epochs.
2. Pieces are shuffled, put in a row without what was used before the deal, and the row is cut by samples into equal
   shares, one a reader; a shard at a cut is read by both neighbours. Any number of readers fits any number of shards.
3. Each reader sends its share through a shuffle buffer.

Steps of samples with distinct values are planned for all processes together instead (`UniqueDeal`).
Cost: 0.5 µs a sample, and 30 ms an epoch of 41,000 shards.
"""

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from training.data.used import Ref, Used

Item = TypeVar("Item")
Piece = tuple[int, int, int]  # piece, first sample, one past the last


def shuffled(items: Iterable[Item], size: int, rng: random.Random) -> Iterator[Item]:
    """Send items through a buffer of `size`: each arrival takes the place of a random one, which goes out."""
    held: list[Item] = []
    for item in items:
        if len(held) < size:
            held.append(item)
            continue
        place = int(rng.random() * size)
        yield held[place]
        held[place] = item
    rng.shuffle(held)
    yield from held


def unique_batches(items: Iterable[Item], size: int, value: Callable[[Item], Hashable]) -> Iterator[list[Item]]:
    """Group items into batches of `size` in which each value occurs once; what does not fit waits for the next.

    Batches are whole: at the end, items that fill no batch are left out; they have fewer than `size` values.
    """
    stream = iter(items)
    waiting: dict[Hashable, deque[Item]] = {}
    while True:
        batch: list[Item] = []
        oldest = list(islice(waiting, size))
        taken = set(oldest)
        for key in oldest:
            batch.append(waiting[key].popleft())
            if not waiting[key]:
                del waiting[key]
        while len(batch) < size:
            item = next(stream, None)
            if item is None:
                return
            key = value(item)
            if key in taken:
                waiting.setdefault(key, deque()).append(item)
            else:
                taken.add(key)
                batch.append(item)
        yield batch


class Mixture:
    """Which samples an epoch reads, before they are dealt.

    Args:
        counts: for each source the samples of its shards.
        factors: how many times an epoch reads each source.
    """

    def __init__(self, counts: Sequence[Sequence[int]], factors: Sequence[float], seed: int) -> None:
        self.sizes: list[int] = [samples for source in counts for samples in source]
        self.seed = seed
        self._rows: list[tuple[list[int], np.ndarray]] = []  # by source: its shards in their row, and the row's cuts
        for number, source in enumerate(counts):
            before = sum(map(len, counts[:number]))
            row = list(range(before, before + len(source)))
            random.Random(f"{seed}/source {number}").shuffle(row)
            self._rows.append((row, np.cumsum([0, *(self.sizes[shard] for shard in row)])))
        self._per_epoch = [round(sum(source) * factor) for source, factor in zip(counts, factors, strict=True)]
        self.samples = sum(self._per_epoch)

    def pieces(self, epoch: int) -> list[Piece]:
        """What the epoch reads, in random order."""
        result: list[Piece] = []
        for (row, cuts), samples in zip(self._rows, self._per_epoch, strict=True):
            result += self._stretch(row, cuts, epoch * samples, (epoch + 1) * samples)
        random.Random(f"{self.seed}/{epoch}/pieces").shuffle(result)
        return result

    def _stretch(self, row: list[int], cuts: np.ndarray, start: int, stop: int) -> Iterator[Piece]:
        """Samples start … stop-1 of a row that is repeated without end."""
        total = int(cuts[-1])
        for copy, lap in enumerate(range(start // total, -(-stop // total))):
            ends = (cuts + lap * total).tolist()
            for shard, first, last in zip(row, ends[:-1], ends[1:], strict=True):
                low, high = max(first, start), min(last, stop)
                if low < high:
                    yield copy * len(self.sizes) + shard, low - first, high - first


class Deal:
    """How epochs are shared among readers.

    Args:
        readers: their number.
        buffer: samples held back for shuffling, per reader.
        before: by epoch, what was used before this deal.
    """

    def __init__(self, mixture: Mixture, readers: int, buffer: int, before: Mapping[int, Used] | None = None) -> None:
        self.mixture = mixture
        self.readers = readers
        self.buffer = buffer
        self.before = before or {}
        self._planned: tuple[int, list[Piece], np.ndarray] = (-1, [], np.zeros(1))

    def _plan(self, epoch: int) -> tuple[list[Piece], np.ndarray]:
        """The epoch's pieces, and how many samples to be dealt lie before each and in all, (pieces + 1,) int64."""
        if self._planned[0] != epoch:
            pieces = self.mixture.pieces(epoch)
            used = self.before.get(epoch)
            lengths = [last - first if used is None else len(used.free(p, first, last)) for p, first, last in pieces]
            self._planned = epoch, pieces, np.cumsum([0, *lengths])
        return self._planned[1:]

    def left(self, epoch: int) -> int:
        """How many samples of the epoch are dealt: those that were not used before."""
        return int(self._plan(epoch)[1][-1])

    def share(self, epoch: int, reader: int) -> Iterator[tuple[int, np.ndarray]]:
        """A reader's part of an epoch before shuffling: (piece, ascending sample numbers), at least one each."""
        pieces, ends = self._plan(epoch)
        total = int(ends[-1])
        start, stop = total * reader // self.readers, total * (reader + 1) // self.readers
        used = self.before.get(epoch, Used(self.mixture.sizes))
        number = int(np.searchsorted(ends, start, side="right")) - 1
        while start < stop:
            indices = used.free(*pieces[number])
            before, end = int(ends[number]), min(int(ends[number + 1]), stop)
            if start < end:
                yield pieces[number][0], indices[start - before : end - before]
            start, number = end, number + 1

    def order(self, epoch: int, reader: int) -> Iterator[Ref]:
        """A reader's part of an epoch in the order in which it is used."""
        arrivals = ((piece, index) for piece, indices in self.share(epoch, reader) for index in indices.tolist())
        return shuffled(arrivals, self.buffer, random.Random(f"{self.mixture.seed}/{epoch}/buffer {reader}"))


class UniqueDeal:
    """Epochs as steps in which no two samples share a value.

    Args:
        value: a sample's value; None for one that cannot be used.
        size: samples of a step over all processes and forward passes.
        before: by epoch, what was used before this deal.
    """

    def __init__(
        self, mixture: Mixture, value: Callable[[Ref], str | None], size: int, before: Mapping[int, Used] | None = None
    ) -> None:
        self.mixture = mixture
        self.value = value
        self.size = size
        self.before = before or {}

    def steps(self, epoch: int) -> tuple[list[list[Ref]], int]:
        """The epoch's steps, each of `size` refs, and how many samples are left out since they fill no whole step."""
        used = self.before.get(epoch, Used(self.mixture.sizes))
        refs = [(p, i) for p, first, last in self.mixture.pieces(epoch) for i in used.free(p, first, last).tolist()]
        usable = [ref for ref in refs if self.value(ref) is not None]
        random.Random(f"{self.mixture.seed}/{epoch}/set").shuffle(usable)
        steps = list(unique_batches(usable, self.size, self.value))
        return steps, len(usable) - self.size * len(steps)
