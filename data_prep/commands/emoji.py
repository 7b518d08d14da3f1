"""``python -m data_prep emoji``: the embedded real set."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.commands.summary import headline, left_out
from data_prep.emoji.settings import Catalogue, Settings
from data_prep.errors import DataError, UsageError
from data_prep.pool import default_workers

NAME = "emoji"
HELP = "build the embedded real set: emoji artwork with Unicode names"
DESCRIPTION = """\
Builds the embedded real data set: emoji artwork by several vendors with the names Unicode gives it, as three folders
of shards: train, heldout-vendor and heldout-concepts. Run again, it finds the set built and does nothing.
"""
EXAMPLE = """\
examples:
  python -m data_prep emoji --output data/emoji
  python -m data_prep emoji --output data/emoji-val --heldout-vendor emojione     # to choose models; no twemoji in it

exit code: 0 the set is there, 1 it could not be built (one sentence says why), 2 wrong usage,
130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    defaults = Settings()
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to build the set in")
    parser.add_argument(
        "--cache", type=Path, default=Path("data/npm"), metavar="DIR", help="downloaded packages (default: %(default)s)"
    )
    parser.add_argument(
        "--image-size",
        type=int,
        default=defaults.image_size,
        metavar="PX",
        help="side of a picture (default: %(default)s)",
    )
    parser.add_argument(
        "--heldout-vendor",
        default=defaults.heldout_vendor,
        metavar="NAME",
        help=f"vendor never trained on, one of {', '.join(v.name for v in Catalogue().vendors)} (default: %(default)s, "
        "which takes no part when another is named)",
    )
    parser.add_argument(
        "--no-share-alike", dest="share_alike", action="store_false", help="leave out artwork under share-alike terms"
    )
    parser.add_argument(
        "--seed", type=int, default=defaults.seed, help="chooses the held-out concepts (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=default_workers(), help="rendering processes (default: one a core, %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> None:
    """The emoji subcommand."""
    from data_prep.emoji.build import build

    catalogue = Catalogue()
    settings = Settings(args.image_size, args.heldout_vendor, args.share_alike, args.seed)
    try:
        settings.check(catalogue)
    except DataError as error:
        raise UsageError(str(error)) from None
    if args.workers < 1:
        raise UsageError(f"--workers must be at least 1, found {args.workers}")
    stats = build(args.output, args.cache, settings, args.workers, catalogue)
    print(json.dumps(stats) if args.json else _summary(args.output, stats))


def _summary(output: Path, stats: Mapping[str, Any]) -> str:
    """A few lines for a person."""
    lines = [headline(output, stats)]
    for name, part in stats["sets"].items():
        vendors = ", ".join(f"{vendor} {count}" for vendor, count in part["vendors"].items())
        lines.append(f"  {name}: {part['pictures']} pictures of {part['concepts']} concepts ({vendors})")
    return "\n".join(lines + left_out(stats))
