"""``python -m data_prep manifest``: adopts shards that are there already, so that training reads them."""

import argparse
import json
from pathlib import Path

from data_prep.commands.verify import add_limits, options_of, refuse_unsound, summary

NAME = "manifest"
HELP = "adopt shards that are there already: verify them and write the manifest that training reads"
DESCRIPTION = """\
Verifies every *.tar under DIR (see `verify`) and writes FILE, which names them with sizes, SHA-256 and counts, and
sizes.json beside the shards for OpenCLIP. The shards stay as they are. Where FILE is neither in DIR nor above it, links
to the shards are made beside it. With an unsound shard nothing is written, unless --leave-out leaves such shards out.
"""
EXAMPLE = """\
examples:
  python -m data_prep manifest /data/cc12m --output /data/cc12m/manifest.jsonl
  python -m data_prep manifest /readonly/datacomp --output datacomp/manifest.jsonl --leave-out
  python -m training --train-data datacomp ...

exit code: 0 written, 1 a shard is unsound or DIR cannot be verified, 2 wrong usage, 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with shards, at any depth")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the manifest; training looks for manifest.jsonl",
    )
    parser.add_argument("--leave-out", action="store_true", help="write it without the unsound shards")
    add_limits(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> None:
    """The manifest subcommand."""
    from data_prep.laion.adopt import adopt
    from data_prep.laion.verify import as_json

    result = adopt(args.folder, args.output, options_of(args, None), args.leave_out)
    print(json.dumps(as_json(result)) if args.json else summary(result))
    if not args.leave_out:
        refuse_unsound(result)
