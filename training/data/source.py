"""Which shards there are and how many samples each holds: the words of --train-data.

    sources = open_sources("data/emoji/train::s3://bucket/laion/{00000..41407}.tar", factors="2::1")

| word                                              | what it is                                                      |
|---------------------------------------------------|-----------------------------------------------------------------|
| `data/emoji/train`, `data/emoji/…/manifest.jsonl` | a folder with a manifest: its shards, each of the size it says  |
| `https://host/set`, `s3://…/set/manifest.jsonl`   | the same elsewhere, through fsspec; the shards stand beside it  |
| `shards/{0000..0099}.tar`, `s3://…/{00..99}.tar`  | OpenCLIP's pattern                                              |
| `pipe:aws s3 cp s3://…/{00..99}.tar -`            | commands that print a shard each; with --allow-pipe alone       |

The order of samples is planned on counts, so every shard's must be known. A manifest holds them. For a pattern they
come from `sizes.json` beside the shards (OpenCLIP's), else from img2dataset's `NNNNN_stats.json`, else each shard is
read through once; the run's folder keeps what was found that way (`COUNTS`), and so does a checkpoint, so that neither
a run that is started again nor one that is resumed reads again.
Cost: a stat or a small request a shard where counts are recorded, all bytes where they are not.
"""

import hashlib
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import braceexpand
from tqdm import tqdm

from data_prep import atomic
from data_prep.errors import DataError
from data_prep.manifest import MANIFEST, parse_manifest, read_manifest
from training.data.stream import Kind, open_stream, read_samples
from training.settings import SettingsError

PIPE = "pipe:"
MOST_TIMES = 10_000  # that an epoch reads a source
COUNTS = "counts.json"  # in a run's folder: a JSON object, samples by what `_counted_as` calls a shard
Result = TypeVar("Result")


@dataclass(frozen=True)
class Shard:
    """One shard. `name` is what records and messages call it; `bytes` 0 and `sha256` "" are not known."""

    name: str
    kind: Kind
    address: str
    samples: int = -1  # not yet known
    bytes: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class Source:
    """The shards of one word, at least one sample in all; an epoch reads `factor` times as many samples as there are.

    `counted` says that the counts were found by reading.
    """

    word: str
    factor: float
    shards: tuple[Shard, ...]
    counted: bool = False

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)


def open_sources(
    train_data: str,
    factors: str = "",
    allow_pipe: bool = False,
    counts: Mapping[str, int] | None = None,
    folder: Path | None = None,
) -> list[Source]:
    """The sources of --train-data, --train-data-upsampling-factors and --allow-pipe.

    Args:
        counts: samples by shard address, as `recorded_counts` gave them: what the run is planned on that is resumed.
        folder: where `COUNTS` keeps what is counted by reading.

    Raises:
        SettingsError: a command without --allow-pipe, or factors that are no positive numbers, one a source.
        DataError: a source that is missing, damaged, empty, or cannot be reached.
    """
    words = train_data.split("::")
    if "" in words or len(set(words)) < len(words):
        raise SettingsError(
            f"--train-data {train_data!r} has an empty source, or one twice (which --train-data-upsampling-factors is "
            "for): join different sources by ::"
        )
    sources = []
    for word, factor in zip(words, _factors(factors, len(words)), strict=True):
        source = _open_source(word, factor, allow_pipe, counts or {}, folder)
        if round(source.samples * factor) < 1:
            raise DataError(f"{word} holds {source.samples} samples: an epoch of {factor} times as many is empty")
        sources.append(source)
    if len(sources) > 1:  # two sources may have a 00000.tar each
        for number, source in enumerate(sources):
            shards = tuple(replace(shard, name=f"{number}/{shard.name}") for shard in source.shards)
            sources[number] = replace(source, shards=shards)
    return sources


def fingerprint(sources: Sequence[Source]) -> str:
    """64 hexadecimal digits that change with any shard's name or count, their order, or a factor."""
    lines = [[source.factor, [[shard.name, shard.samples] for shard in source.shards]] for source in sources]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def contents(sources: Sequence[Source]) -> str:
    """64 hexadecimal digits that change with the bytes of a shard, as far as a manifest or its size tells."""
    lines = [[shard.sha256 or shard.bytes for shard in source.shards] for source in sources]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def recorded_counts(sources: Sequence[Source]) -> dict[str, int]:
    """Samples by address of the shards that had to be read to be counted."""
    return {shard.address: shard.samples for source in sources if source.counted for shard in source.shards}


def _factors(text: str, number: int) -> list[float]:
    if not text:
        return [1.0] * number
    try:
        factors = [float(word) for word in text.split("::")]
    except ValueError:
        factors = []
    if len(factors) != number or not all(0 < factor <= MOST_TIMES for factor in factors):
        raise SettingsError(
            f"--train-data-upsampling-factors must be {number} positive numbers up to {MOST_TIMES:,} joined by ::, one "
            f"for each source of --train-data, found {text!r}"
        )
    return factors


def _open_source(word: str, factor: float, allow_pipe: bool, counts: Mapping[str, int], folder: Path | None) -> Source:
    if word.startswith(PIPE):
        if not allow_pipe:
            raise SettingsError(f"--train-data {word!r} would run a command; give --allow-pipe if you trust it")
        return _pattern(word, "pipe", factor, counts, folder)
    if "://" in word:
        if word.endswith(".tar") or "{" in word:
            return _pattern(word, "remote", factor, counts, folder)
        return Source(word, factor, _remote_manifest(word))
    path = Path(word)
    if path.is_dir() or path.name == MANIFEST:
        parent = path if path.is_dir() else path.parent
        entries = read_manifest(parent)
        shards = [Shard(e.shard, "file", str(parent / e.shard), e.samples, e.bytes, e.sha256) for e in entries]
        return Source(word, factor, tuple(shards))
    return _pattern(word, "file", factor, counts, folder)


def _remote_manifest(word: str) -> tuple[Shard, ...]:
    """The shards of a manifest at an address; they stand beside it."""
    base = word.removesuffix(MANIFEST).rstrip("/")
    text = _read_text("remote", f"{base}/{MANIFEST}")
    if text is None:
        raise DataError(
            f"{base}/{MANIFEST} does not exist: name a finished shard folder, its manifest, or a .tar pattern"
        )
    is_http = base.startswith(("http://", "https://"))  # there # ? and % in a file's name would mean something else
    return tuple(
        Shard(e.shard, "remote", f"{base}/{quote(e.shard) if is_http else e.shard}", e.samples, e.bytes, e.sha256)
        for e in parse_manifest(text, f"{base}/{MANIFEST}")
    )


def _pattern(word: str, kind: Kind, factor: float, counts: Mapping[str, int], folder: Path | None) -> Source:
    """The shards of an OpenCLIP pattern, with their counts."""
    try:
        addresses = list(braceexpand.braceexpand(word.removeprefix(PIPE)))
    except ValueError as error:
        raise DataError(f"--train-data {word!r} is no pattern: {error}") from error
    if len(set(addresses)) < len(addresses):
        raise DataError(f"--train-data {word!r} names a shard twice; --train-data-upsampling-factors repeats a source")
    if kind == "file" and (missing := [address for address in addresses if not os.path.isfile(address)]):
        raise DataError(
            f"--train-data {word}: {missing[0]} does not exist ({len(missing)} of {len(addresses)} are missing); "
            "name a folder with a manifest, or shards that are all there"
        )
    # Names are what follows the folder that all share; addresses are no paths, so commonpath would not do.
    prefix = 0 if kind == "pipe" else os.path.commonprefix(addresses).rfind("/") + 1  # noqa: RUF071
    sizes = [os.path.getsize(address) if kind == "file" else 0 for address in addresses]
    shards = [Shard(a[prefix:], kind, a, bytes=size) for a, size in zip(addresses, sizes, strict=True)]
    if counted := all(address in counts for address in addresses):
        found = [counts[address] for address in addresses]
    else:
        beside = [None] * len(shards) if kind == "pipe" else _counts_beside(shards)
        found = [count for count in beside if count is not None]
        if counted := len(found) < len(shards):
            found = _count_by_reading(shards, word, folder)
    return Source(word, factor, tuple(replace(s, samples=n) for s, n in zip(shards, found, strict=True)), counted)


def _counts_beside(shards: Sequence[Shard]) -> list[int | None]:
    """Counts from sizes.json or NNNNN_stats.json beside the shards, None where neither says one."""
    folders = {shard.address.rpartition("/")[0] for shard in shards}
    sizes = {folder: _read_json(shards[0].kind, os.path.join(folder, "sizes.json")) for folder in folders}

    def count_of(shard: Shard) -> int | None:
        folder, _, name = shard.address.rpartition("/")
        count = sizes[folder].get(name)
        if count is None:
            stats = os.path.join(folder, f"{name.removesuffix('.tar')}_stats.json")
            count = _read_json(shard.kind, stats).get("successes")
        if count is not None and (not isinstance(count, int | str) or not str(count).isdecimal()):
            raise DataError(f"{shard.address}: the file beside it says {count!r} samples; correct or remove it")
        return None if count is None else int(count)

    return list(_in_threads(count_of, shards))


def _count_by_reading(shards: Sequence[Shard], word: str, folder: Path | None) -> list[int]:
    """Each shard's samples, by reading all of those whose counts the folder does not keep from an earlier start."""
    file = folder / COUNTS if folder else None
    counts = _read_json("file", str(file)) if file else {}
    names = [_counted_as(shard) for shard in shards]
    if left := {name: shard for name, shard in zip(names, shards, strict=True) if name not in counts}:
        spared = f'; a manifest, or sizes.json beside them ({{"{shards[0].name}": 1000, …}}), would spare this'
        print(
            f"{word}: counting the samples of {len(left)} shards by reading them once, since no file says how many "
            f"they hold{'' if shards[0].kind == 'pipe' else spared}",
            flush=True,
        )
        _count_into(counts, left, file)
    return [counts[name] for name in names]


def _count_into(counts: dict[str, int], left: Mapping[str, Shard], file: Path | None) -> None:
    """Add the counts of shards, and write them to the file now and then, since this may take hours."""

    def keep() -> None:
        if file:
            atomic.write_text(file, json.dumps(counts))

    kept = time.monotonic()
    bar = tqdm(_in_threads(_count, list(left.values())), "counting", len(left), disable=None, unit="shard")
    try:
        for number, (name, count) in enumerate(zip(left, bar, strict=True), start=1):
            counts[name] = count
            if time.monotonic() - kept > 60:
                kept = time.monotonic()
                keep()
                if bar.disable:
                    print(f"counted {number} of {len(left)} shards", flush=True)
    finally:  # what was counted before an error or a signal
        keep()


def _counted_as(shard: Shard) -> str:
    """What a shard is kept under when it was counted: of a file that changed, another than before."""
    if shard.kind != "file":
        return shard.address
    stat = os.stat(shard.address)
    return f"{os.path.abspath(shard.address)} {stat.st_size} {stat.st_mtime_ns}"


def _count(shard: Shard) -> int:
    """The samples that can be read, in a shard that is damaged or cut those before; it is said then."""
    count = 0
    try:
        for _ in read_samples(shard.kind, shard.address):
            count += 1
    except Exception as error:  # see read_samples
        reason = f"{type(error).__name__}: {error}"
        if not count or not isinstance(error, tarfile.TarError):  # a lost connection is no damage
            raise DataError(f"{shard.address} cannot be read as a shard ({reason})") from error
        tqdm.write(f"{shard.address} is damaged, and counts with the {count} samples before that ({reason})")
    return count


def _in_threads(function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
    """`function` of each shard, in order; it waits for disks and networks, so several go at a time.

    Not by an executor: when a signal ends the process, that would wait for reads that may be stalled.
    """
    with ThreadPool(16) as pool:
        yield from pool.imap(function, shards)


def _read_json(kind: Kind, address: str) -> dict[str, Any]:
    """A JSON object, empty where there is no such file."""
    text = _read_text(kind, address)
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise DataError(f"{address} is not JSON ({error}); correct or remove it") from error
    if not isinstance(value, dict):
        raise DataError(f"{address} must hold a JSON object, found {type(value).__name__}; correct or remove it")
    return value


def _read_text(kind: Kind, address: str) -> str | None:
    """A file's text, None where there is none."""
    try:
        with open_stream(kind, address) as stream:
            return stream.read().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{address} cannot be read ({error})") from error
