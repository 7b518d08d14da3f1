"""``python -m data_prep stats``: what a data set holds and what was lost, as JSON and as a page to look at."""

import argparse
import json
from pathlib import Path

from data_prep.commands.download import refuse_other_metadata
from data_prep.errors import UsageError
from data_prep.pool import default_workers
from data_prep.words import many

NAME = "stats"
HELP = "count what came and what was lost, and draw pairs to look at"
DESCRIPTION = """\
Writes DIR/stats.json and DIR/stats.html: rows by what came of them and by host, histograms of size, aspect, caption
length and similarity, and 100 pairs drawn at random from the verified shards. DIR is the folder of plan and download,
or one with a manifest.jsonl: of adopted shards without img2dataset's tables the shards themselves are read.
"""
EXAMPLE = """\
examples:
  python -m data_prep stats --output laion
  python -m data_prep stats --metadata relaion400m/ --output laion     # refuses if that is not the plan's metadata
  python -m data_prep stats --output /data/cc12m --json

exit code: 0 written, 1 nothing to count or something is damaged, 2 wrong usage, 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of the data set")
    parser.add_argument("--metadata", type=Path, nargs="+", metavar="PATH", help="what the plan was made of; compared")
    parser.add_argument("--seed", type=int, default=0, help="chooses the pairs (default: %(default)s)")
    parser.add_argument(
        "--workers", type=int, default=default_workers(), help="processes (default: one a core, %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the content of stats.json")


def run(args: argparse.Namespace) -> None:
    """The stats subcommand."""
    from data_prep.laion.stats import HTML, stats
    from data_prep.laion.tally import shares

    if args.workers < 1:
        raise UsageError(f"--workers must be at least 1, found {args.workers}")
    refuse_other_metadata(args)
    record = stats(args.output, args.seed, args.workers)
    if args.json:
        print(json.dumps(record))
        return
    print(f"{many(record['rows'], 'row')}, {shares(record['reasons'])}; {many(record['samples'], 'sample')} verified")
    for sentence in record["not_known"]:
        print(f"  {sentence}")
    print(f"look at {args.output / HTML}")
