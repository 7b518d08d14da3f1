"""Looks at every shard under a folder, in several processes, and says which are sound and what is wrong with the rest.

    result = verify(Path("laion"), Options(workers=8))
    result.unsound                      # [Verdict(report=…, against={"tar cut or damaged": "…"}), …]

What was found is kept in `verify.jsonl` (journal.py), so that a run that was ended goes on and shards that have not
changed since are not read again. The verdict is made anew each time, from what was found and from the limits.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_prep.errors import DataError
from data_prep.laion import findings, renewed
from data_prep.laion.duplicates import in_earlier
from data_prep.laion.journal import Journal
from data_prep.laion.manifests import entries_in
from data_prep.laion.names import QUARANTINE, SHARDS
from data_prep.laion.ours import is_manifest
from data_prep.laion.shard import Job, Report, check_shard, look
from data_prep.manifest import MANIFEST, ShardEntry
from data_prep.pool import default_workers, unordered
from data_prep.progress import progress

MOST_COPIES = 0.5  # a shard with more of its pictures in earlier shards is a copy of them
FLAWED = 0.01  # from this share on something made the flaws; fewer come with pictures from the web
_MB = 1_000_000


@dataclass(frozen=True)
class Options:
    """How to verify. The shares are of a shard's samples.

    Args:
        max_broken: the share of broken samples (findings.BROKEN) that a sound shard may have.
        max_flawed: each flaw (findings.FLAWS) must hold for less than this share; 1 is no limit. None is FLAWED, and
            no limit for a shard that a manifest names with the very bytes: it was taken in with its flaws.
        max_aspect: the longer side of a picture over the shorter one.
        again: look at shards that are known and have not changed, too.
        state: the folder of the journal, None for the shards' own.
        adopting: pass over a manifest.jsonl that data_prep did not write.
    """

    workers: int = field(default_factory=default_workers)
    max_broken: float = 0.0
    max_flawed: float | None = None
    max_aspect: float = 3.0
    again: bool = False
    state: Path | None = None
    adopting: bool = False


@dataclass(frozen=True)
class Verdict:
    """A shard, and what speaks against it: a sentence by reason, nothing for a sound one."""

    report: Report
    against: dict[str, str]


@dataclass(frozen=True)
class Result:
    """All verdicts by name, how many pictures are in an earlier shard too, and the speed of what was read now."""

    verdicts: list[Verdict]
    repeated: int
    bytes_read: int
    samples_read: int
    seconds: float

    @property
    def unsound(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.against]

    @property
    def counts(self) -> Counter[str]:
        """Every finding of every shard."""
        total: Counter[str] = Counter()
        for verdict in self.verdicts:
            total.update(verdict.report.counts)
        return total


def verify(root: Path, options: Options, names: Sequence[str] | None = None) -> Result:
    """Verify the shards of these names below `root`; every `*.tar` but for its quarantine's where None.

    Raises:
        DataError: no such folder, no shard, another process that verifies or re-encodes it, or a worker that was
            killed.
    """
    names = shards_under(root) if names is None else names
    if not names:
        raise DataError(f"{root} has no *.tar below it; name the folder of the shards, or download them first")
    with renewed.steady(root, names):
        return _verify(root, options, names)


def _verify(root: Path, options: Options, names: Sequence[str]) -> Result:
    started = time.monotonic()
    with Journal(options.state or root) as journal:
        if options.again:
            journal.clear()
        found = ((name, journal.find(name, look(root / name), options.max_aspect)) for name in names)
        reports = {name: known for name, known in found if known}
        fresh = [name for name in names if name not in reports]
        _check(root, fresh, options, journal, reports)
        repeated = in_earlier(journal.hashes(names))
    recorded = _recorded(root, names, options.adopting)
    verdicts = [
        Verdict(reports[name], against(reports[name], copies, recorded.get(name), options))
        for name, copies in zip(names, repeated, strict=True)
    ]
    verdicts += [_passed_over(root, name) for name in sorted(recorded.keys() - set(names))]
    read = [reports[name] for name in fresh]
    seconds = time.monotonic() - started
    return Result(verdicts, sum(repeated), sum(r.bytes for r in read), sum(r.samples for r in read), seconds)


def shards_under(root: Path) -> list[str]:
    """The shards' names below `root`, in order, those that were collected first: of copies the later one is unsound.

    Linked folders are followed. Hidden names are someone's drafts.

    Raises:
        DataError: it is no folder.
    """
    if not root.is_dir():
        raise DataError(f"{root} is no folder; name the one that holds the shards")
    return sorted(_walk(root), key=lambda name: (not name.startswith(f"{SHARDS}/"), name))


def _walk(root: Path) -> Iterator[str]:
    """Every folder once: by its own name where it has one below `root`, before links to it are followed."""
    seen: set[str] = set()
    linked = [str(root)]
    for start in linked:
        for folder, folders, files in os.walk(start):
            real = os.path.realpath(folder)
            below = Path(folder).relative_to(root)
            if real in seen or below == Path(QUARANTINE):
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            linked += [path for name in folders if os.path.islink(path := os.path.join(folder, name))]
            yield from (str(below / name) for name in files if name.endswith(".tar") and not name.startswith("."))


def _check(root: Path, names: Sequence[str], options: Options, journal: Journal, reports: dict[str, Report]) -> None:
    """Look at these shards; each is kept as it is done."""
    sizes = sum(os.path.getsize(root / name) for name in names if os.path.exists(root / name))
    jobs = (Job(root, name, options.max_aspect) for name in names)
    with progress(-(-sizes // _MB), "verify", "MB") as advance:
        done = told = 0
        for report, hashes in unordered(check_shard, jobs, min(options.workers, max(1, len(names)))):
            journal.add(report, hashes)
            reports[report.name] = report
            done += report.bytes
            advance(-(-done // _MB) - told)
            told = -(-done // _MB)


def _recorded(root: Path, names: Sequence[str], adopting: bool) -> dict[str, ShardEntry]:
    """What manifests beside or above the shards say of them, by name; some may not be there."""
    entries: dict[str, ShardEntry] = {}
    for folder in {parent for name in names for parent in Path(name).parents}:
        path = root / folder / MANIFEST
        if path.is_file() and (not adopting or is_manifest(path)):
            entries |= {str(folder / entry.shard): entry for entry in entries_in(root / folder)}
    if others := entries.keys() - set(names):
        real = {os.path.realpath(root / name): name for name in names}  # a folder may be linked from another one
        for other in sorted(others):
            entry = entries.pop(other)
            name = real.get(os.path.realpath(root / other), other)
            entries[other if name in entries else name] = entry  # training would read one named twice twice
    return entries


def _passed_over(root: Path, name: str) -> Verdict:
    """What the manifest names, and training would read, and is not among the shards."""
    there = os.path.lexists(root / name)
    what = "hidden, put aside, no file or another name of one that is named too" if there else "missing"
    words = {findings.UNREADABLE: f"it is {what}, and the manifest names it"}
    return Verdict(Report(name, 0, [], 0.0, counts={findings.UNREADABLE: 1}, examples=words), words)


def against(report: Report, copies: int, recorded: ShardEntry | None, options: Options) -> dict[str, str]:
    """What makes a shard unsound, by reason."""
    found: dict[str, str] = {}
    same = recorded is not None and (recorded.sha256, recorded.bytes) == (report.sha256, report.bytes)
    most = options.max_flawed if options.max_flawed is not None else 1.0 if same else FLAWED
    for reason, count in report.counts.items():
        example = f"{count} times, first: {report.examples[reason]}" if count > 1 else report.examples[reason]
        if reason in findings.FLAWS:
            bad = most < 1 and count >= most * report.samples
        else:
            bad = reason in findings.DAMAGE or count > options.max_broken * report.samples
        if bad:
            found[reason] = example
    if most < 1 and copies > MOST_COPIES * report.samples:
        found[findings.COPY] = f"{copies} of {report.samples}"
    if recorded and not same:
        found[findings.OTHER_BYTES] = f"{report.bytes} bytes of SHA-256 {report.sha256}"
    if recorded and recorded.samples != report.samples:
        found[findings.COUNT] = f"{report.samples}, the manifest says {recorded.samples}"
    return found


def as_json(result: Result) -> dict[str, Any]:
    """The result for a program."""
    seconds = max(result.seconds, 1e-9)
    return {
        "sound": not result.unsound,
        "shards": len(result.verdicts),
        "samples": sum(verdict.report.samples for verdict in result.verdicts),
        "bytes": sum(verdict.report.bytes for verdict in result.verdicts),
        "findings": dict(result.counts),
        "pictures_in_earlier_shards": result.repeated,
        "read": {
            "bytes": result.bytes_read,
            "samples": result.samples_read,
            "seconds": round(result.seconds, 3),
            "megabytes_per_second": round(result.bytes_read / _MB / seconds, 3),
            "images_per_second": round(result.samples_read / seconds, 3),
        },
        "unsound": {verdict.report.name: verdict.against for verdict in result.unsound},
        "reports": [asdict(verdict.report) for verdict in result.verdicts],
    }
