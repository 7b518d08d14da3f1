"""``python -m data_prep verify``: which shards under a folder are sound, and what is wrong with the others."""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.errors import DataError, UsageError
from data_prep.pool import default_workers
from data_prep.words import many

if TYPE_CHECKING:
    from data_prep.laion.verify import Options, Result

NAME = "verify"
HELP = "look at every shard under a folder: its tar, counts, pictures and captions"
DESCRIPTION = """\
Looks at every *.tar under DIR: the tar from its first byte to its last, its members' names, the counts against what the
download or a manifest recorded beside it, every picture (decoded whole), caption and JSON. What was found is kept in
DIR/verify.jsonl: run again, it goes on, and passes over shards that have not changed.

A shard is unsound with any damage (of its tar, its names, its counts, its checksum), and with broken samples (picture
undecodable, no caption, JSON of another sample …). Flaws (one colour, lying by a lost EXIF rotation, 16 bits, long and
thin, there before, control characters …) come with the web: they are counted, and make a shard unsound from 1 % of its
samples on, unless a manifest names the shard as it is, as `run` does: then it was taken in with them. --json names
every reason.
"""
EXAMPLE = """\
examples:
  python -m data_prep verify laion
  python -m data_prep verify /data/cc12m --state checks/cc12m --json > cc12m.json      # writes nothing in it
  python -m data_prep verify old_set --max-broken 0.001 --max-flawed 0.1

exit code: 0 every shard is sound, 1 one is not or DIR cannot be verified, 2 wrong usage, 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with shards, at any depth")
    add_limits(parser)
    parser.add_argument(
        "--quarantine",
        action="store_true",
        help="move unsound shards to DIR/quarantine, with a JSON that says why",
    )
    parser.add_argument(
        "--reencode",
        action="store_true",
        help="write shards anew in which pictures are to be turned or have 16 bits, with those as upright JPEG",
    )
    parser.add_argument("--state", type=Path, metavar="DIR", help="where verify.jsonl is kept (default: DIR itself)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def add_limits(parser: argparse.ArgumentParser) -> None:
    """What every command that verifies takes; see `options_of`."""
    parser.add_argument(
        "--workers", type=int, default=default_workers(), help="processes (default: one a core, %(default)s)"
    )
    add_shares(parser)
    parser.add_argument(
        "--max-aspect", type=float, default=3.0, metavar="X", help="longer side over the shorter (default: %(default)s)"
    )
    parser.add_argument("--again", action="store_true", help="look at shards that have not changed, too")


def add_shares(parser: argparse.ArgumentParser) -> None:
    """How much of a shard may be bad."""
    parser.add_argument(
        "--max-broken",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of a shard's samples that may be broken: undecodable, without caption … (default: %(default)s)",
    )
    parser.add_argument(
        "--max-flawed",
        type=float,
        metavar="SHARE",
        help="share from which on a flaw makes any shard unsound; 1 is no limit (default: 0.01, but no limit for "
        "shards that a manifest names as they are, nor in `run`)",
    )


def options_of(args: argparse.Namespace, state: Path | None) -> "Options":
    """The options of `add_limits`, or UsageError."""
    from data_prep.laion.verify import Options

    if args.workers < 1:
        raise UsageError(f"--workers must be at least 1, found {args.workers}")
    for name in ("max_broken", "max_flawed"):
        if not 0 <= (getattr(args, name) or 0) <= 1:
            raise UsageError(f"--{name.replace('_', '-')} must be 0 to 1, found {getattr(args, name)}")
    if not args.max_aspect >= 1:
        raise UsageError(f"--max-aspect must be at least 1, found {args.max_aspect}")
    return Options(args.workers, args.max_broken, args.max_flawed, args.max_aspect, args.again, state)


def run(args: argparse.Namespace) -> None:
    """The verify subcommand."""
    from data_prep.laion.alone import alone
    from data_prep.laion.names import PARTS
    from data_prep.laion.quarantine import set_aside
    from data_prep.laion.reencode import repair
    from data_prep.laion.verify import as_json, verify

    options = options_of(args, args.state)
    ours = (args.quarantine or args.reencode) and (args.folder / PARTS).is_dir()
    with alone(args.folder) if ours else nullcontext():
        result = verify(args.folder, options)
        if args.reencode:
            result = repair(args.folder, result, options)
        if args.quarantine:
            set_aside(args.folder, result.unsound)
    print(json.dumps(as_json(result)) if args.json else summary(result))
    refuse_unsound(result)


def findings_of(result: "Result") -> list[str]:
    """A line for each finding of all shards."""
    lines = [f"  {count} x {reason}" for reason, count in result.counts.most_common()]
    return lines + ([f"  {result.repeated} x picture is in an earlier shard too"] if result.repeated else [])


def refuse_unsound(result: "Result") -> None:
    """Raise DataError where a shard is not sound."""
    if result.unsound:
        raise DataError(
            f"{len(result.unsound):,} of {many(len(result.verdicts), 'shard')} unsound; make them again, leave them "
            "out, or allow more with --max-broken and --max-flawed"
        )


def summary(result: "Result") -> str:
    """The unsound shards, the findings of all, and the speed."""
    from data_prep.laion.findings import printable

    lines = [
        f"{printable(verdict.report.name)}: {reason} ({example})"
        for verdict in result.unsound
        for reason, example in verdict.against.items()
    ]
    samples = sum(verdict.report.samples for verdict in result.verdicts)
    lines += findings_of(result)
    sound = len(result.verdicts) - len(result.unsound)
    lines.append(f"{sound:,} of {many(len(result.verdicts), 'shard')} sound; {many(samples, 'sample')} in all")
    seconds = max(result.seconds, 1e-9)
    if result.bytes_read:
        megabytes, images = result.bytes_read / 1e6 / seconds, result.samples_read / seconds
        lines.append(f"read {result.bytes_read:,} bytes at {megabytes:.1f} MB/s, {images:.0f} images/s")
    return "\n".join(lines)
