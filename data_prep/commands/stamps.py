"""``python -m data_prep stamps``: pictures with English descriptions, from Debian's package."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.commands.summary import headline, left_out
from data_prep.errors import UsageError

NAME = "stamps"
HELP = "build a set of described pictures: Tux Paint's stamps from Debian"
DESCRIPTION = """\
Builds a set of Tux Paint's stamps, 949 pictures with English descriptions, from Debian's package of them, for retrieval
and for zero-shot classification. Where apt-get is, it downloads the package (161 MB). Run again, it does nothing.
"""
EXAMPLE = """\
examples:
  python -m data_prep stamps --output data/stamps
  python -m data_prep stamps --output data/stamps --deb tuxpaint-stamps-default_2022.06.04-1_all.deb

exit code: as for emoji
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to build the set in")
    parser.add_argument("--deb", type=Path, metavar="FILE", help="the package, where it is there already")
    parser.add_argument(
        "--image-size", type=int, default=224, metavar="PX", help="side of a picture (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> None:
    """The stamps subcommand."""
    from data_prep.stamps.build import build

    if not 8 <= args.image_size <= 4096:
        raise UsageError(f"--image-size must be 8 to 4096, found {args.image_size}")
    stats = build(args.output, args.deb, args.image_size)
    print(json.dumps(stats) if args.json else _summary(args.output, stats))


def _summary(output: Path, stats: Mapping[str, Any]) -> str:
    """A few lines for a person."""
    found = f"{stats['pictures']} pictures with {stats['descriptions']} descriptions"
    return "\n".join([headline(output, stats), f"  {found} ({stats['package']} {stats['version']})", *left_out(stats)])
