"""The position in the data to the sample: what a checkpoint records of it, and how a run goes on from there.

The record holds numbers, strings, lists, dicts and uint8 tensors alone:

    fingerprint, seed, unique_key    what must be the same for the record to mean anything
    layout                           processes, workers, batch size …: the same layout goes on in the very same order
    readers                          the place of every reader, process by process
    before, used                     by epoch and shard, what was used before the present deal and since (used.py);
                                     epochs before the readers' oldest are used whole
    turn, bad, left_out, counts      whose batch is next; bad samples by shard and reason; samples left out; shards'
                                     samples where only reading tells them
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from training.data.batches import Place, Progress
from training.data.order import Deal, Mixture
from training.data.read import Bad
from training.data.source import Source, contents, fingerprint, recorded_counts
from training.data.used import Used
from training.settings import Settings, SettingsError, option

Record = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """How samples are shared out. A reader is a worker, or in `--unique-key` mode a process."""

    world: int
    readers: int  # per process
    batch_size: int
    shuffle_buffer: int
    accum_freq: int

    @classmethod
    def of(cls, settings: Settings, world: int) -> "Layout":
        readers = 1 if settings.unique_key else max(settings.workers, 1)
        return cls(world, readers, settings.batch_size, settings.shuffle_buffer, settings.accum_freq)

    def same_order(self, other: "Layout", planned: bool) -> bool:
        """Whether the other's places mean the same here: planned steps depend on the global batch alone."""
        if planned:
            return (self.world * self.batch_size, self.accum_freq) == (other.world * other.batch_size, other.accum_freq)
        return asdict(self) | {"accum_freq": 0} == asdict(other) | {"accum_freq": 0}

    def __str__(self) -> str:
        return (
            f"{self.world} x {self.readers} readers with batches of {self.batch_size}, a shuffle buffer of "
            f"{self.shuffle_buffer} and accum_freq {self.accum_freq}"
        )


class Position:
    """One process's position, after the batches handed out so far.

    Attributes:
        deal: how the shards are dealt, past what was used before.
        places: of this process's readers; `turn` is the one whose batch is next.
        bad: by shard and reason; the first process's also counts what the run had before it was resumed.
        notes: what was done differently on resuming, a sentence each.

    Raises:
        SettingsError: the record belongs to other data, another seed or another unique_key.
    """

    def __init__(
        self, settings: Settings, sources: Sequence[Source], rank: int, world: int, record: Record | None
    ) -> None:
        self.settings = settings
        self.sources = sources
        self.shards = [shard for source in sources for shard in source.shards]
        self.names = [shard.name for shard in self.shards]
        counts = [[shard.samples for shard in source.shards] for source in sources]
        self.mixture = Mixture(counts, [source.factor for source in sources], settings.seed)
        self.layout = Layout.of(settings, world)
        self.notes: list[str] = []
        self.turn = self.left_out = 0
        self.places = [Place()] * self.layout.readers
        self.bad: dict[str, Counter[str]] = {}
        self._used = [Used(self.mixture.sizes) for _ in self.places]  # in its epoch, by each reader since the start
        self._earlier: dict[int, Used] = {}  # since the deal and before the start, by all; the first process keeps it
        self.deal = self._dealt({})
        if record is not None:
            self._resume(record, rank)

    def _dealt(self, before: dict[int, Used]) -> Deal:
        readers = self.layout.world * self.layout.readers
        return Deal(self.mixture, readers, self.settings.shuffle_buffer, before)

    def _resume(self, record: Record, rank: int) -> None:
        self._check(record)
        self.left_out = record["left_out"]
        if rank == 0:
            self.bad = {shard: Counter(reasons) for shard, reasons in record["bad"].items()}
        before, used = self._uses(record["before"]), self._uses(record["used"])
        places = [Place(**place) for place in record["readers"]]
        layout = Layout(**record["layout"])
        if self.layout.same_order(layout, bool(self.settings.unique_key)):
            self.deal = self._dealt(before)
            first = 0 if self.settings.unique_key else rank * self.layout.readers
            self.places = places[first : first + self.layout.readers]
            self.turn = record["turn"]
            self._earlier = used if rank == 0 else {}
        else:
            for epoch, since in used.items():
                before.setdefault(epoch, Used(self.mixture.sizes)).update(since)
            self.deal = self._dealt(before)
            self._start_anew(min(place.epoch for place in places), layout)

    def _check(self, record: Record) -> None:
        """Raise SettingsError where the record is of other data or another order."""
        now = fingerprint(self.sources)
        if record["fingerprint"] != now:
            raise SettingsError(
                f"--train-data has {len(self.shards)} shards with {self.mixture.samples} samples an epoch (fingerprint "
                f"{now[:12]}), and the checkpoint's run had {record['shards']} with {record['samples']} "
                f"({record['fingerprint'][:12]}): resume on the same data, or start a new run with --init-from"
            )
        if record["contents"] != contents(self.sources):
            self.notes.append(
                "shards hold other bytes than when the checkpoint was written (their checksums in the manifest, or "
                "their sizes, changed): which samples were used is known of the earlier ones, by their place"
            )
        for name in ("seed", "unique_key"):
            if record[name] != getattr(self.settings, name):
                raise SettingsError(
                    f"{option(name)} is {getattr(self.settings, name)!r}, the checkpoint's run had {record[name]!r}: "
                    "the order of samples follows from it; resume with the same, or start a new run with --init-from"
                )

    def _start_anew(self, oldest: int, layout: Layout) -> None:
        """Deal what is left of the epochs that were begun."""
        while not self.deal.left(oldest):
            oldest += 1
        self.places = [Place(epoch=oldest)] * self.layout.readers
        begun = [
            f"of epoch {epoch}, {len(used)} samples were used and {self.deal.left(epoch)} are left"
            for epoch, used in sorted(self.deal.before.items())
            if epoch >= oldest and len(used)
        ]
        self.notes.append(
            f"data: the run had {layout}, and now has {self.layout}: samples are dealt anew, each still once an epoch"
            + "".join(f"; {text}" for text in begun)
        )

    def advance(self, progress: Progress) -> None:
        """Take note of a batch that was handed out."""
        reader, place = progress.reader, progress.place
        if self.places[reader].epoch != place.epoch:
            self._used[reader] = Used(self.mixture.sizes)
        self._used[reader].add(progress.used.get(place.epoch, []))
        self.places[reader] = place
        self.turn = (reader + 1) % self.layout.readers
        self.left_out += progress.left_out
        for bad in progress.bad:
            self.count_bad(bad)

    def count_bad(self, bad: Bad) -> None:
        self.bad.setdefault(bad.shard, Counter())[bad.reason] += 1

    def part(self) -> Record:
        """This process's part of the record, a copy."""
        used: dict[int, Used] = {}
        own = [(place.epoch, used) for place, used in zip(self.places, self._used, strict=True)]
        for epoch, since in [*self._earlier.items(), *own]:
            used.setdefault(epoch, Used(self.mixture.sizes)).update(since)
        return {
            "readers": [asdict(place) for place in self.places],
            "turn": self.turn,
            "used": {epoch: since.record(self.names) for epoch, since in used.items()},
            "bad": {shard: dict(reasons) for shard, reasons in self.bad.items()},
            "left_out": self.left_out,
        }

    def merge(self, parts: Sequence[Record]) -> Record:
        """The record from all processes' parts, in rank order.

        Raises:
            ValueError: the parts were not taken after the same number of batches.
        """
        if len({(part["turn"], part["left_out"]) for part in parts}) > 1:
            raise ValueError("the processes are not at the same batch")
        readers = [place for part in parts for place in part["readers"]]
        oldest = min(place["epoch"] for place in readers)
        used: dict[int, Used] = {}
        for part in parts:
            for epoch, since in self._uses(part["used"]).items():
                used.setdefault(epoch, Used(self.mixture.sizes)).update(since)
        for reader, place in enumerate(readers):
            for epoch in range(oldest, place["epoch"]):  # a reader that is ahead of others has used its whole share
                for piece, indices in self.deal.share(epoch, reader):
                    used.setdefault(epoch, Used(self.mixture.sizes)).add_indices(piece, indices)
        bad: dict[str, Counter[str]] = {}
        for part in parts:
            for shard, reasons in part["bad"].items():
                bad.setdefault(shard, Counter()).update(reasons)
        return {
            "fingerprint": fingerprint(self.sources),
            "contents": contents(self.sources),
            "shards": len(self.shards),
            "samples": self.mixture.samples,
            "counts": recorded_counts(self.sources),
            "seed": self.settings.seed,
            "unique_key": self.settings.unique_key,
            "layout": asdict(self.layout),
            "readers": readers,
            "turn": parts[0]["turn"],
            "before": {e: u.record(self.names) for e, u in sorted(self.deal.before.items()) if e >= oldest},
            "used": {e: u.record(self.names) for e, u in sorted(used.items()) if e >= oldest},
            "bad": {shard: dict(reasons) for shard, reasons in bad.items()},
            "left_out": parts[0]["left_out"],
        }

    def _uses(self, records: dict[int, Record]) -> dict[int, Used]:
        return {epoch: Used.from_record(r, self.names, self.mixture.sizes) for epoch, r in records.items()}
