"""Batches for a training process, and the position in the data for its checkpoint.

    loader = Loader(settings, decode, tokenizer, rank, world)
    batch = next(loader)                                  # batch.images, batch.texts, batch.keys
    record = loader.merge(everyone's loader.state())      # into the checkpoint
    loader = Loader(settings, decode, tokenizer, rank, world, state=record)   # goes on with the very next batch

The stream has no end: epochs follow each other, and a batch at an epoch's end is filled from the next. The files of
this package, in reading order: source.py (which shards), stream.py (a shard's bytes and samples), used.py and order.py
(the plan), read.py (following it), batches.py (a worker), position.py (resuming), decode.py (pictures).
"""

import os
from collections.abc import Iterator, Sequence
from multiprocessing import parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from data_prep.errors import DataError
from training.data.batches import Batch, Decode, Maker, Planned, Streamed, Tally, Tokenizer, kept_generators
from training.data.order import UniqueDeal
from training.data.position import Position
from training.data.read import Held
from training.data.source import Source, open_sources
from training.settings import Settings, SettingsError

PREFETCH = 4  # batches that a worker prepares ahead


class Loader:
    """An endless iterator over one process's batches.

    Args:
        settings: the data settings, batch_size, accum_freq and seed.
        decode: a sample's bytes to (picture, caption); raises DataError with a short reason (decode.py).
        tokenizer: list of B captions → (B, L) int64.
        rank, world: this process and their number.
        state: what `merge` gave, to go on from there.
        sources: what `sources_of` gave; with many processes one opens them and hands them to the others.

    Attributes:
        samples: of an epoch, over all processes, as the manifest has it.
        shards: their number.
        notes: what is different after resuming, a sentence each.

    Raises:
        SettingsError: a batch or number of readers that the set is too small for, or a state of other data or settings.
        DataError: data that is missing or cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        decode: Decode,
        tokenizer: Tokenizer,
        rank: int = 0,
        world: int = 1,
        state: dict[str, Any] | None = None,
        pin_memory: bool = False,
        sources: Sequence[Source] | None = None,
    ) -> None:
        if sources is None:
            sources = sources_of(settings, state)
        self._settings, self._sources = settings, sources
        self._position = position = Position(settings, sources, rank, world, state)
        self.samples, self.shards, self.notes = position.mixture.samples, len(position.shards), position.notes
        maker = Maker(settings, decode, tokenizer)
        if settings.unique_key:
            held = self._hold(world, count_bad=state is None and rank == 0)
            size = world * settings.batch_size * settings.accum_freq
            deal = UniqueDeal(position.mixture, held.value, size, position.deal.before)
            stream: Streamed | Planned = Planned(maker, deal, held, position.shards, rank, world, position.places[0])
        else:
            _check_size(settings, self.samples, world)
            stream = Streamed(
                maker,
                position.deal,
                position.shards,
                rank * position.layout.readers,
                list(position.places),
                position.turn,
            )
        self._loader: DataLoader[Batch | DataError] = DataLoader(
            _ErrorsAsItems(stream),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=settings.workers,
            worker_init_fn=_set_apart,
            prefetch_factor=PREFETCH if settings.workers else None,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # or the workers' seed would be drawn from the process's own generator
        )
        self._batches: Iterator[Batch | DataError] | None = None

    def _hold(self, world: int, count_bad: bool) -> Held:
        """The set in memory. Raises DataError where too many samples are bad, or too few values differ."""
        settings, position = self._settings, self._position
        held = Held(position.shards, settings.unique_key)
        everything = sum(position.mixture.sizes)
        tally = Tally(everything)
        for bad in held.bad:
            tally.add_bad(bad)
            if count_bad:
                position.count_bad(bad)
        if tally.bad > settings.max_bad_samples * everything:
            raise DataError(
                f"{tally}; that is more of {everything} than --max-bad-samples {settings.max_bad_samples} allows"
            )
        values = {value for values in held.values for value in values if value is not None}
        size = world * settings.batch_size * settings.accum_freq
        if len(values) < size:
            raise SettingsError(
                f"--train-data has {len(values)} distinct values of {settings.unique_key!r}, fewer than the {size} "
                f"that a step needs ({world} processes x batch_size {settings.batch_size} x accum_freq "
                f"{settings.accum_freq}); use a smaller batch_size or fewer processes"
            )
        return held

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            DataError: no usable ones come any more, or a manifest is wrong.
            RuntimeError: a worker was killed.
        """
        with kept_generators():  # without workers, augmentation draws in this process
            if self._batches is None:
                self._batches = iter(self._loader)
            try:
                item = next(self._batches)
            except (OSError, EOFError) as error:  # what it had ready is fetched from it
                raise RuntimeError(f"a DataLoader worker has ended ({type(error).__name__}: {error}).") from error
        if isinstance(item, DataError):
            raise item
        self._position.advance(item.progress)
        return item

    @property
    def bad(self) -> dict[str, dict[str, int]]:
        """Samples that could not be used, by shard and reason, of this process; the first one's from all before a
        resume as well."""
        return {shard: dict(reasons) for shard, reasons in self._position.bad.items()}

    @property
    def bad_samples(self) -> int:
        """The sum of `bad`."""
        return sum(sum(reasons.values()) for reasons in self._position.bad.values())

    @property
    def left_out(self) -> int:
        """With --unique-key, samples that filled no whole step in the epochs that are over, of all processes."""
        return self._position.left_out

    def description(self) -> str:
        """Samples, shards and sources in a few words."""
        several = f" of {len(self._sources)} sources" if len(self._sources) > 1 else ""
        return f"{self.samples:,} samples in {self.shards:,} shards{several}"

    def state(self) -> dict[str, Any]:
        """This process's part of the position after the batches handed out so far, whatever workers hold ready."""
        return self._position.part()

    def merge(self, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What a checkpoint holds, from all processes' `state()` in rank order; see position.py for what it is."""
        return self._position.merge(parts)

    def close(self) -> None:
        """End the workers."""
        self._batches = None


def sources_of(settings: Settings, state: dict[str, Any] | None = None) -> list[Source]:
    """The run's shards; what has to be counted by reading is kept in the run's folder, where there is one, and in a
    checkpoint's `state`. Raises as `Loader` does."""
    counts = state["counts"] if state else {}
    run = Path(settings.output) / settings.name
    folder = run if settings.output and run.is_dir() else None
    words = settings.train_data, settings.train_data_upsampling_factors, settings.allow_pipe
    return open_sources(*words, counts, folder)


def _check_size(settings: Settings, samples: int, world: int) -> None:
    """Raise SettingsError where a sample would meet itself in a batch or a step."""
    readers = world * max(settings.workers, 1)
    if settings.batch_size > samples // readers:
        raise SettingsError(
            f"an epoch of {samples} samples gives each of {readers} readers ({world} processes x "
            f"{max(settings.workers, 1)} workers) {samples // readers}, fewer than a batch of {settings.batch_size} "
            "needs; use a smaller batch_size, fewer workers or fewer processes"
        )
    if settings.batch_size * settings.accum_freq * world > samples:
        raise SettingsError(
            f"an epoch of {samples} samples is smaller than a step of {world} processes x batch_size "
            f"{settings.batch_size} x accum_freq {settings.accum_freq}; use a smaller batch_size or accum_freq"
        )


class _ErrorsAsItems(IterableDataset[Batch | DataError]):
    """A worker's stream with its error as the last item: an exception would reach the user as a traceback."""

    def __init__(self, stream: Streamed | Planned) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Batch | DataError]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        try:
            yield from self.stream.batches(worker, workers)
        except DataError as error:
            yield error


def _set_apart(worker: int) -> None:
    """Give this worker a process group of its own, and end it when the training process is no more.

    A terminal's Ctrl-C, torchrun and most schedulers signal the training process's group. That process decides what
    it means, and needs its workers until the step is done. torch itself looks for the training process between two
    batches only, which a worker never reaches that waits for a stalled read.
    """
    os.setpgid(0, 0)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent_process().join()  # type: ignore[union-attr]
    os._exit(1)


def _as_it_is(item: Any) -> Any:
    return item
