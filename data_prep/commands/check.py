"""``python -m data_prep check``: whether the shards of a manifest still have the bytes that it recorded."""

import argparse
import json
from pathlib import Path

from data_prep.errors import DataError, UsageError
from data_prep.pool import default_workers
from data_prep.words import many

NAME = "check"
HELP = "compare the shards that a manifest names with the sizes and SHA-256 that it recorded"
DESCRIPTION = """\
Reads every shard that the manifest names, where it lies, and compares its size and SHA-256 with what was recorded.
"""
EXAMPLE = """\
example:
  python -m data_prep check laion/shards/manifest.jsonl

exit code: 0 all are as recorded, 1 one is not (a line each says which) or there is no such manifest, 2 wrong usage,
130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("manifest", type=Path, metavar="MANIFEST", help="the manifest, or its folder")
    parser.add_argument(
        "--workers", type=int, default=default_workers(), help="processes (default: one a core, %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> None:
    """The check subcommand."""
    from data_prep.laion.check import check
    from data_prep.laion.findings import printable

    if args.workers < 1:
        raise UsageError(f"--workers must be at least 1, found {args.workers}")
    result = check(args.manifest, args.workers)
    wrong = result["wrong"]
    if args.json:
        print(json.dumps(result))
    else:
        for shard, problem in wrong.items():
            print(f"{printable(shard)} {problem}")
        good = f"{result['shards'] - len(wrong):,} of {many(result['shards'], 'shard')} as recorded"
        speed = f"{result['megabytes_per_second']:.0f} MB/s"
        print(f"{good} ({many(result['samples'], 'sample')}, {result['bytes']:,} bytes, {speed})")
    if wrong:
        raise DataError(
            f"{len(wrong):,} of {many(result['shards'], 'shard')} not as recorded; copy them again or make them again"
        )
