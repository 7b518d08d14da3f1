"""Downloads the parts of a plan: one img2dataset process a part, watched, and its result compared with the plan.

    summary = download(Path("laion"), Settings())      # run again, it goes on where it stopped

What is finished stands in `DIR/download.json`, written after each run of img2dataset; whatever that does not name is
compared again with the plan at the start, so nothing depends on how the last call ended. Finished shards are not
touched again; a shard that img2dataset reports but that is not whole is removed and made anew.
"""

import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from data_prep.errors import DataError
from data_prep.laion.alone import alone
from data_prep.laion.finished import SUFFIXES, UnfinishedError, check, discard, refuse_lost, urls_of
from data_prep.laion.group import Group, end_marked
from data_prep.laion.http import Limits
from data_prep.laion.layout import Part, check_disks, check_plan, later_files, read_parts
from data_prep.laion.program import check_program, environment, warn_of_proxies
from data_prep.laion.state import State
from data_prep.laion.tally import Tally
from data_prep.laion.watch import Bounds, DiskFullError, NothingComesError, Outcome, Watch, check_disk
from data_prep.words import many

AGENT = "img2dataset"  # the robot's name that owners know and address in their headers
_KEPT = ("similarity", "nsfw", "license", "id")  # the plan's columns that go into each sample's json
# Crops are taken from real pixels: no white borders are added (`border`), and nothing is enlarged, which would make
# 38400 x 256 of 3000 x 20. 256 pixels, JPEG at 95, is how LAION-400M was made; a side under 16 shows nothing.
_PICTURES = {
    "resize_mode": "keep_ratio",
    "resize_only_if_bigger": True,
    "encode_format": "jpg",
    "encode_quality": 95,
    "max_aspect_ratio": 3,
    "min_image_size": 16,
    "extract_exif": False,  # rotation is applied (fetch.py); the rest is where and with what strangers took pictures
    "compute_hash": "sha256",
}
_DISTRIBUTORS = {"multiprocessing": "multiprocessing", "spark": "pyspark", "ray": "ray"}


@dataclass(frozen=True)
class Settings:
    """How to download. `part` (i, n): of every n parts the i-th (from 1) with its retries, for n machines."""

    image_size: int = 256
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    threads: int = 32
    timeout: int = 10
    retries: int = 2
    limits: Limits = Limits()
    bounds: Bounds = Bounds(stall=300, memory_limit=1 << 62, disk_floor=1 << 30, min_success=0.05)
    attempts: int = 3
    part: tuple[int, int] = (1, 1)
    distributor: Literal["multiprocessing", "spark", "ray"] = "multiprocessing"
    python: str = sys.executable


def download(output: Path, settings: Settings) -> dict[str, Any]:
    """Bring every part to its end.

    Returns:
        "parts", "shards", "rows", and "reasons": the count of rows by what came of them in the end, a row that was
        retried counted by its retry alone.

    Raises:
        DataError: no plan, another download at work here, no img2dataset, a disk nearly full, folders on several
            disks, collected shards that would be fetched again, no network, or a shard that did not get finished in
            `attempts` runs.
    """
    parts = read_parts(output)
    later = later_files(parts)
    index, of = settings.part
    chosen = [part for part in parts if int(part.number) % of == index - 1]
    check_program(settings.python)
    warn_of_proxies()
    with alone(output):
        end_marked(_mark(output))
        state = State.read(output, settings.image_size)
        for part in chosen:
            with suppress(OSError):  # an emptied folder says no more than one that is gone
                part.folder.rmdir()
        state.recall(chosen)
        tally = Tally(sum(part.shards for part in chosen), sum(part.rows for part in chosen))
        todo = [(part, missing) for part in chosen if (missing := _missing(part, state, tally))]
        state.write()
        if todo:
            check_disks(output)  # and not after days, when what came is to be moved
        for part, _ in todo:
            refuse_lost(part)
        failed = []
        for part, missing in todo:
            check_plan(part)
            try:
                settings, failure = _finish(part, missing, later[part.name], settings, state, tally)
            except DiskFullError as error:
                raise DataError(
                    f"{error}; what is finished stays: free some space{_needed(state, tally)} and run the same command "
                    "again"
                ) from None
            failed += [failure] if failure else []
        print(tally.line(time.monotonic()), file=sys.stderr, flush=True)
    if failed:
        raise DataError(f"not finished: {many(len(failed), 'part')}, the others are: {failed[0]}")
    reasons = _outcome(chosen, state)
    return {
        "parts": len(chosen),
        "shards": sum(part.shards for part in chosen),
        "rows": reasons.total(),
        "reasons": dict(reasons.most_common()),
    }


def _needed(state: State, tally: Tally) -> str:
    """How much room the rows to come will take, if they are as those that came; nothing where none came yet."""
    finished = [found for part in state.parts.values() for found in part.values()]
    if not (rows := sum(found["rows"] for found in finished)):
        return ""
    size = sum(found["bytes"] for found in finished) * tally.left // rows
    return f" (about {size:,} bytes for {many(tally.left, 'row')} to come)"


def _outcome(parts: Sequence[Part], state: State) -> Counter[str]:
    """What came of the rows of `parts`, each counted where it was asked for last."""
    reasons = Counter[str]()
    for part in parts:
        for found in state.of(part).values():
            reasons.update(found["reasons"])
        reasons.subtract(part.reasons)
    return +reasons


def _finish(
    part: Part, missing: Sequence[int], later: Sequence[Path], settings: Settings, state: State, tally: Tally
) -> tuple[Settings, str | None]:
    """Run img2dataset on a part until every shard is whole.

    Args:
        later: the files of the part's retries; what they have asked for again is left to them.

    Returns:
        The settings, with fewer processes where the memory did not do, and what is wrong where a shard would not get
        finished though others did.

    Raises:
        DataError: no shard got finished at all, so the next part will fare no better.
        DiskFullError: the disk is nearly full.
    """
    urls = urls_of(part)
    runs, wanted = 0, len(missing)  # runs in turn without a new shard
    outcomes: set[Outcome] = set()
    log = part.output / "logs" / f"{part.name}.log"
    log.parent.mkdir(exist_ok=True)
    part.folder.mkdir(exist_ok=True)
    while missing and runs < settings.attempts:
        check_disk(part.output, settings.bounds.disk_floor)
        watch = Watch(part, settings.bounds, tally)
        try:
            with Group(_command(part, later, settings), environment(settings.python), log, _mark(part.output)) as group:
                outcome = watch.follow(group)
        except NothingComesError:
            watch.forget()
            raise
        except DiskFullError:  # what is half made goes, and what is finished says how much room the rest takes
            tally.running.clear()
            _take(part, missing, urls, state, tally)
            raise
        tally.running.clear()
        problems = _take(part, missing, urls, state, tally)
        state.write()
        outcomes.add(outcome)
        runs = runs + 1 if len(problems) == len(missing) else 0
        missing = sorted(problems)
        if outcome == "memory":
            settings = _smaller(settings)
        if missing:
            said = f"{_OUTCOMES[outcome]}; {many(len(missing), 'shard')} left, {missing[0]:05d}: {problems[missing[0]]}"
            print(f"part {part.name}: {said}", file=sys.stderr, flush=True)
    if not missing:
        shutil.rmtree(part.folder / "_tmp", ignore_errors=True)  # what killed runs of img2dataset leave
        return settings, None
    advice = "give a higher --memory-limit" if "memory" in outcomes else "run the same command again"
    failure = f"part {part.name} after {runs} runs in vain: {said} (see {log}); {advice}"
    if len(missing) == wanted:
        raise DataError(failure)
    return settings, failure


_OUTCOMES = {
    "ended": "img2dataset ended",
    "stalled": "img2dataset wrote nothing for too long (--stall) and was ended",
    "memory": "img2dataset held more than --memory-limit and was ended",
}


def _missing(part: Part, state: State, tally: Tally) -> list[int]:
    """The shards of a part that are still to be made; those that an unrecorded run finished are compared first."""
    recorded = state.of(part)
    unknown = []
    for shard in range(part.shards):
        found = recorded.get(f"{shard:05d}")
        files = [part.file_of(shard, suffix) for suffix in SUFFIXES]
        whole = all(file.exists() for file in files) and found and files[0].stat().st_size == found["bytes"]
        if found and (part.collected(shard).is_file() or whole):
            tally.add(found["reasons"], earlier=True)
        else:
            unknown.append(shard)
    if not any(part.file_of(shard, "_stats.json").exists() for shard in unknown):
        return unknown
    return sorted(_take(part, unknown, urls_of(part), state, tally, earlier=True))


def _take(
    part: Part, shards: Sequence[int], urls: Sequence[str], state: State, tally: Tally, earlier: bool = False
) -> dict[int, str]:
    """Record the shards that are whole and remove the others; returns what those lack."""
    problems = {}
    for shard in shards:
        try:
            found = check(part, shard, urls)
            state.of(part)[f"{shard:05d}"] = found
            tally.add(found["reasons"], earlier)
        except UnfinishedError as error:
            problems[shard] = str(error)
            state.of(part).pop(f"{shard:05d}", None)
            discard(part, shard)
    return problems


def _smaller(settings: Settings) -> Settings:
    """Half the processes, or half the threads of the last one."""
    if settings.processes > 1:
        return replace(settings, processes=settings.processes // 2)
    return replace(settings, threads=max(settings.threads // 2, 1))


def _command(part: Part, later: Sequence[Path], settings: Settings) -> list[str]:
    """The line that starts img2dataset on a part."""
    from pyarrow import parquet

    columns = parquet.read_schema(part.plan).names
    order = {
        "url_list": str(part.plan.resolve()),
        "output_folder": str(part.folder.resolve()),
        "input_format": "parquet",
        "url_col": "url",
        "caption_col": "caption",
        "save_additional_columns": [name for name in _KEPT if name in columns] or None,
        "output_format": "webdataset",
        "number_sample_per_shard": part.shard_size,
        "image_size": settings.image_size,
        "processes_count": settings.processes,
        "thread_count": settings.threads,
        "timeout": settings.timeout,
        "retries": settings.retries,
        "user_agent_token": AGENT,
        "incremental_mode": "incremental",
        "distributor": _DISTRIBUTORS[settings.distributor],
        **_PICTURES,
    }
    again = [str(file.resolve()) for file in later]
    text = json.dumps({"download": order, "limits": asdict(settings.limits), "again": again})
    return [settings.python, "-m", "data_prep.laion.fetch", text]


def _mark(output: Path) -> str:
    return f"download:{output.resolve()}"
