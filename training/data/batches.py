"""What a data-loading worker does: samples to batches, bad ones passed over and counted.

Two kinds of stream, of the same form: `Streamed` reads shards as dealt, `Planned` takes planned steps from a held set.
`stream.batches(worker, workers)` is the endless part of one worker; that worker's first batch is the one that the
process hands out `worker` batches after its position.

Augmentation is seeded by (seed, epoch, piece, index), so a sample's picture does not depend on who prepares it.
"""

import hashlib
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor

from data_prep.captions import shortened
from data_prep.errors import DataError
from training.data.order import Deal, UniqueDeal
from training.data.read import Bad, Held, follow
from training.data.source import Shard
from training.data.stream import Sample
from training.data.used import Ref
from training.settings import Settings

Decode = Callable[[Sample], tuple[Tensor, str]]
Tokenizer = Callable[[list[str]], Tensor]
NAMED = 5  # bad samples that an error message names
FIRST = 1000  # samples of which one must be usable when a reader begins
IN_A_ROW = 100_000  # unusable samples in a row that a reader passes over


@dataclass(frozen=True)
class Place:
    """Where a reader is: `taken` samples (planned steps: batches) of `epoch`; in all `read`, of which `bad`."""

    epoch: int = 0
    taken: int = 0
    read: int = 0
    bad: int = 0


@dataclass
class Progress:
    """What a batch moves: its reader's place after it, and what was used, by epoch; bad samples are used as well."""

    reader: int
    place: Place
    used: dict[int, list[Ref]]
    bad: list[Bad]
    left_out: int = 0


@dataclass
class Batch:
    """images (B, 3, H, W) as the decoder gives them, texts (B, L) int64, keys "shard:key"."""

    images: Tensor
    texts: Tensor
    keys: list[str]
    progress: Progress

    def pin_memory(self) -> "Batch":
        return replace(self, images=self.images.pin_memory(), texts=self.texts.pin_memory())


@contextmanager
def kept_generators() -> Iterator[None]:
    """Give Python's and torch's CPU generators back as they were."""
    python, cpu = random.getstate(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.default_generator.set_state(cpu)


def seed_for_sample(seed: int, epoch: int, ref: Ref) -> None:
    """Seed the generators that augmentation draws from; torch's CPU generator alone, no device's."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{ref[0]}/{ref[1]}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    random.seed(number)
    torch.default_generator.manual_seed(number)


class Tally:
    """A reader's count of samples; `check` ends a stream that gives nothing, so that storage that is gone ends the run.

    Whether too many are bad is judged over all processes: one reader has too few, and one damaged shard can be all of
    them for a while. For that reason a beginning without a usable sample ends it only where it is of several shards,
    or of a whole epoch.

    Args:
        share: samples of the reader's epoch.
        read, bad: what was counted before a resume.
    """

    def __init__(self, share: int, read: int = 0, bad: int = 0) -> None:
        self.share = share
        self.read, self.bad = read, bad
        self._start_row()

    def _start_row(self) -> None:
        """What follows is about the samples since the last usable one."""
        self.in_a_row = 0
        self.reasons: Counter[str] = Counter()
        self.shards: set[str] = set()
        self.first: list[Bad] = []

    def add_good(self) -> None:
        self.read += 1
        if self.in_a_row:
            self._start_row()

    def add_bad(self, bad: Bad) -> None:
        self.read += 1
        self.bad += 1
        self.in_a_row += 1
        self.reasons[bad.reason] += 1
        self.shards.add(bad.shard)
        if len(self.first) < NAMED:
            self.first.append(bad)

    def check(self) -> None:
        """Raise DataError, with counts by reason and the first names, where nothing usable comes."""
        none_yet = self.bad == self.read >= (min(FIRST, self.share) if len(self.shards) > 1 else self.share)
        if none_yet or self.in_a_row > min(IN_A_ROW, self.share):
            raise DataError(
                f"a reader finds nothing to train on: its last {self}; see that the data can be reached and is the one "
                "that was meant"
            )

    def __str__(self) -> str:
        """How many are bad since the last usable one, by reason, and the first names."""
        reasons = ", ".join(f"{number} x {reason}" for reason, number in self.reasons.most_common(10))
        return f"{self.in_a_row} samples cannot be used: {reasons}; first {', '.join(map(str, self.first))}"


@dataclass
class Maker:
    """Decodes samples and puts batches together."""

    settings: Settings
    decode: Decode
    tokenizer: Tokenizer

    def decoded(self, shard: Shard, epoch: int, ref: Ref, sample: Sample | Bad) -> tuple[Tensor, str, str] | Bad:
        """Picture, caption and "shard:key" of a sample, or what is wrong with it."""
        if isinstance(sample, Bad):
            return sample
        seed_for_sample(self.settings.seed, epoch, ref)
        try:
            return *self.decode(sample), f"{shard.name}:{sample['__key__']}"
        except DataError as error:
            return Bad(shard.name, sample["__key__"], str(error))

    def batch(self, items: Sequence[tuple[Tensor, str, str]], progress: Progress) -> Batch:
        images, captions, keys = zip(*items, strict=True)
        return Batch(
            torch.stack(images), self.tokenizer([shortened(caption) for caption in captions]), list(keys), progress
        )


@dataclass
class Streamed:
    """Batches of shards read as dealt. `turn` is the reader, of this process's, whose batch is next."""

    maker: Maker
    deal: Deal
    shards: Sequence[Shard]
    first_reader: int
    places: Sequence[Place]
    turn: int = 0

    def batches(self, worker: int, workers: int) -> Iterator[Batch]:
        own = (self.turn + worker) % workers
        settings, place = self.maker.settings, self.places[own]
        share = self.deal.mixture.samples // self.deal.readers
        tally = Tally(share, place.read, place.bad)
        items: list[tuple[Tensor, str, str]] = []
        progress = Progress(own, place, {}, [])
        at, taken = place.epoch, place.taken
        for epoch, ref, sample in follow(self.deal, self.shards, self.first_reader + own, at, taken):
            at, taken = epoch, taken + 1 if epoch == at else 1
            progress.used.setdefault(epoch, []).append(ref)
            item = self.maker.decoded(self.shards[ref[0] % len(self.shards)], epoch, ref, sample)
            if isinstance(item, Bad):
                progress.bad.append(item)
                tally.add_bad(item)
                tally.check()
                continue
            tally.add_good()
            items.append(item)
            if len(items) == settings.batch_size:
                progress.place = Place(at, taken, tally.read, tally.bad)
                yield self.maker.batch(items, progress)
                items, progress = [], Progress(own, progress.place, {}, [])


@dataclass
class Planned:
    """Batches of a held set, planned for all processes so that no value occurs twice in a step.

    A picture that turns out unreadable is replaced by one of another step, which is then used twice in the epoch: what
    the other processes do is planned, so none can just go on with the next.
    """

    maker: Maker
    deal: UniqueDeal
    held: Held
    shards: Sequence[Shard]
    rank: int
    world: int
    place: Place
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(self.deal.mixture.samples // self.world)

    def batches(self, worker: int, workers: int) -> Iterator[Batch]:
        accum, turn, left_out = self.maker.settings.accum_freq, 0, 0
        for epoch in count(self.place.epoch):
            steps, left_over = self.deal.steps(epoch)
            if not steps and epoch not in self.deal.before:
                raise DataError(
                    f"epoch {epoch} has too few distinct values for one step of {self.deal.size} samples, no two of "
                    "which may share one (--unique-key); use a smaller batch_size or accum_freq, or fewer processes"
                )
            done = self.place.taken if epoch == self.place.epoch else 0
            for number in range(done, len(steps) * accum):
                if turn % workers == worker:
                    yield self._batch(epoch, steps, number, left_out)
                turn, left_out = turn + 1, 0
            left_out += left_over

    def _batch(self, epoch: int, steps: list[list[Ref]], number: int, left_out: int) -> Batch:
        """This process's part of forward pass `number` of an epoch."""
        step, part = divmod(number, self.maker.settings.accum_freq)
        size, slot = self.maker.settings.batch_size, part * self.world + self.rank
        own = steps[step][slot * size : (slot + 1) * size]
        values = {self.deal.value(ref) for ref in steps[step]}
        items: list[tuple[Tensor, str, str]] = []
        progress = Progress(0, Place(epoch, number + 1), {epoch: own}, [], left_out)
        for ref in own:
            for candidate in chain([ref], self._spares(steps, step, slot, self.deal.value(ref), values)):
                item = self._decoded(epoch, candidate)
                if not isinstance(item, Bad):
                    break
                progress.bad.append(item)
            else:
                raise DataError(
                    f"{self.tally}. With --unique-key no other could take the place of the last: take it out of the set"
                )
            items.append(item)
            values.add(self.deal.value(candidate))
        return self.maker.batch(items, progress)

    def _spares(
        self, steps: list[list[Ref]], step: int, slot: int, lost: str | None, values: set[str | None]
    ) -> Iterator[Ref]:
        """Samples of other steps with the value that was lost, or one that is in no part of this step.

        The step's parts are made apart and know nothing of each other, so each has its own share of all values.
        """
        slots = self.world * self.maker.settings.accum_freq
        for later in range(1, len(steps)):
            for ref in steps[(step + later) % len(steps)]:
                value = self.deal.value(ref)
                if value == lost or (value not in values and zlib.crc32(str(value).encode()) % slots == slot):
                    yield ref

    def _decoded(self, epoch: int, ref: Ref) -> Any:
        """A picture with caption and key, or what is wrong with it, which is counted."""
        item = self.maker.decoded(self.shards[ref[0] % len(self.shards)], epoch, ref, self.held.sample(ref))
        if isinstance(item, Bad):
            self.tally.add_bad(item)
            self.tally.check()
        else:
            self.tally.add_good()
        return item
