"""From downloaded parts to what training reads: `shards/`, with `manifest.jsonl` and OpenCLIP's `sizes.json`.

    result = collect(Path("laion"), Options())

Shards that `download` has finished are verified; sound ones move to `shards/` as they are, by a rename on the same
disk, and the others to `quarantine/`: `download` then finds them missing and makes them again. Only then is the
manifest written, from all of `shards/`. Killed anywhere, it goes on: a shard is always in one of the three places. One
of which nothing came stays in its part: no manifest names it, and where its table is not, no tar may be empty.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from data_prep import atomic
from data_prep.errors import DataError
from data_prep.laion.alone import alone
from data_prep.laion.findings import printable
from data_prep.laion.journal import Journal
from data_prep.laion.layout import check_disks, read_collected, read_parts
from data_prep.laion.names import PARTS, SHARDS, collected_as, downloaded_as
from data_prep.laion.plan import FOLDER, PLAN
from data_prep.laion.quarantine import set_aside
from data_prep.laion.shard import Report, refuse_changed, state_of
from data_prep.laion.verify import Options, Result, shards_under, verify
from data_prep.manifest import MANIFEST, ShardEntry, write_manifest

SIZES = "sizes.json"


def collect(root: Path, options: Options) -> Result:
    """Verify, move and record.

    Returns:
        The verdicts, with the names that the shards had before. There is no manifest where no sound one has a sample.

    Raises:
        DataError: a download of `root` is running, nothing was downloaded, there is a shard that the plan does not
            have, all is sound and holds no sample, a shard of a name that is collected was downloaded again, or there
            is one to move and the folders are on several disks.
    """
    with alone(root):
        return _collect(root, options)


def _collect(root: Path, options: Options) -> Result:
    names = [name for name in shards_under(root) if name.startswith(f"{SHARDS}/") or _finished(root, name)]
    if not names:
        raise DataError(f"{root} has no downloaded shard; run: python -m data_prep download, first")
    _refuse_strays(root, names)
    before = read_collected(root)
    result = verify(root, options, names)
    moves = [(verdict.report, _place(verdict.report)) for verdict in result.verdicts if not verdict.against]
    moves = [(report, name) for report, name in moves if name != report.name]
    if result.unsound or moves:
        check_disks(root)
    set_aside(root, result.unsound)
    (root / SHARDS).mkdir(exist_ok=True)
    moved = {report.name: _move(root, report, name) for report, name in moves}
    names = [*moved, *(report.name for report in moved.values())]
    for folder in {(root / name).parent for name in names} | {root / SHARDS}:
        atomic.fsync(folder)
    with Journal(options.state or root) as journal:
        journal.move(moved)
    entries = list(_entries(root, result, before))
    if any(entry.samples for entry in entries) or not result.unsound:
        write_lists(root / SHARDS, entries)
    return result


def write_lists(folder: Path, entries: list[ShardEntry], name: str = MANIFEST) -> None:
    """Write the manifest, and before it a `sizes.json` in each folder of shards, where OpenCLIP looks for it.

    Raises:
        DataError: no shard holds a sample.
    """
    entries = [entry for entry in entries if entry.samples]
    if not entries:
        raise DataError(f"{folder}: no sound shard holds a sample; see what was wrong with them (quarantine/*.json)")
    sizes: dict[Path, dict[str, int]] = defaultdict(dict)
    for entry in entries:
        path = folder / entry.shard
        sizes[path.parent][path.name] = entry.samples
    for parent, counts in sizes.items():
        atomic.write_text(parent / SIZES, json.dumps(counts, indent=0) + "\n")
    write_manifest(folder, entries, name)


def failures_of(shard: Path) -> dict[str, int]:
    """What img2dataset's statistics beside a shard say of samples that it could not get, by reason."""
    try:
        counts = json.loads(shard.with_name(f"{shard.stem}_stats.json").read_bytes())["status_dict"]
        return {str(reason): int(count) for reason, count in sorted(counts.items()) if reason != "success"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _finished(root: Path, name: str) -> bool:
    """Whether img2dataset wrote a shard of a part to its end; it may be damaged all the same."""
    path = root / name
    return (
        len(name.split("/")) == 3
        and name.startswith(f"{PARTS}/")
        and path.with_name(f"{path.stem}_stats.json").exists()
    )


def _refuse_strays(root: Path, names: Sequence[str]) -> None:
    """Raise DataError where there is a collected or finished shard that no part of the plan has, as a copy."""
    if (root / FOLDER / PLAN).exists():
        planned = {
            str(path.relative_to(root))
            for part in read_parts(root)
            for shard in range(part.shards)
            for path in (part.file_of(shard, ".tar"), part.collected(shard))
        }
        strays = [name for name in names if name not in planned]
    else:
        strays = [name for name in names if name.startswith(f"{SHARDS}/") and downloaded_as(name) is None]
    if strays:
        raise DataError(
            f"{printable(str(root / strays[0]))} is no shard of this plan, perhaps a copy; move it out of "
            f"{root / strays[0].split('/')[0]} and run the same command again"
        )


def _place(report: Report) -> str:
    """The name that a sound shard should have: with its part if it is empty, among the collected ones otherwise."""
    if report.samples:
        return collected_as(report.name) if report.name.startswith(f"{PARTS}/") else report.name
    return downloaded_as(report.name) or report.name


def _move(root: Path, report: Report, name: str) -> Report:
    """Move a shard to another name below `root`; returns its report there. To rename a file changes its ctime."""
    source, target = root / report.name, root / name
    if target.exists():
        raise DataError(f"{source} was downloaded again though {target} is there; remove one of them")
    refuse_changed(root, report)
    os.rename(source, target)
    return replace(report, name=name, seen=[state_of(target), *report.seen[1:]])


def _entries(root: Path, result: Result, before: Mapping[str, ShardEntry]) -> Iterable[ShardEntry]:
    """Of the sound shards, in the order of their names in `shards/`.

    Args:
        before: of the manifest until now, which knows the failures where the part's folder is gone.
    """
    sound = {verdict.report.name: verdict.report for verdict in result.verdicts if not verdict.against}
    placed = {collected_as(name) if name.startswith(f"{PARTS}/") else name: report for name, report in sound.items()}
    for name, report in sorted(placed.items()):
        shard, downloaded = name.removeprefix(f"{SHARDS}/"), root / (downloaded_as(name) or name)
        known = shard in before and not downloaded.parent.is_dir()
        failures = before[shard].failures if known else failures_of(downloaded)
        yield ShardEntry(shard, report.bytes, report.sha256, report.samples, failures)
