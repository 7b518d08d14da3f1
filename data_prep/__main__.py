"""The command line of data_prep: `python -m data_prep emoji --output data/emoji`, run from a checkout."""

import argparse
import errno
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.emoji.build import build
from data_prep.emoji.render import default_workers
from data_prep.emoji.settings import Catalogue, Settings
from data_prep.errors import DataError
from data_prep.stamps.build import build as build_stamps

_EMOJI_HELP = """\
Builds the embedded real data set: emoji artwork by several vendors with the names Unicode gives it, as three folders
of shards: train, heldout-vendor and heldout-concepts. Run again, it finds the set built and does nothing.
"""

_EMOJI_EXAMPLE = """\
examples:
  python -m data_prep emoji --output data/emoji
  python -m data_prep emoji --output data/emoji-val --heldout-vendor emojione     # to choose models; no twemoji in it

exit code: 0 the set is there, 1 it could not be built (one sentence says why), 2 wrong usage,
130 interrupted
"""

_STAMPS_HELP = """\
Builds a set of Tux Paint's stamps, 950 pictures with English descriptions, from Debian's package of them, for retrieval
and for zero-shot classification. Where apt-get is, it downloads the package (161 MB). Run again, it does nothing.
"""

_STAMPS_EXAMPLE = """\
examples:
  python -m data_prep stamps --output data/stamps
  python -m data_prep stamps --output data/stamps --deb tuxpaint-stamps-default_2022.06.04-1_all.deb

exit code: as for emoji
"""


def main(argv: Sequence[str] | None = None, catalogue: Catalogue | None = None) -> int:
    """Run the command line; returns the exit code."""
    catalogue = catalogue or Catalogue()
    parser = argparse.ArgumentParser(prog="python -m data_prep", description="Makes data sets for training.")
    commands = parser.add_subparsers(dest="command", required=True)
    emoji, stamps = _add_emoji(commands, catalogue), _add_stamps(commands)
    args = parser.parse_args(argv)
    if args.command == "stamps":
        if not 8 <= args.image_size <= 4096:
            stamps.error(f"--image-size must be 8 to 4096, found {args.image_size}")
        return _run(args, lambda: build_stamps(args.output, args.deb, args.image_size), _stamps_summary)
    settings = Settings(args.image_size, args.heldout_vendor, args.share_alike, args.seed)
    try:
        settings.check(catalogue)
        if args.workers < 1:
            raise DataError(f"--workers must be at least 1, found {args.workers}")
    except DataError as error:
        emoji.error(str(error))
    return _run(args, lambda: build(args.output, args.cache, settings, args.workers, catalogue), _emoji_summary)


def _add_emoji(commands: Any, catalogue: Catalogue) -> argparse.ArgumentParser:
    """The options of `data_prep emoji`."""
    defaults = Settings()
    parser: argparse.ArgumentParser = commands.add_parser(
        "emoji",
        help="build the embedded real set: emoji artwork with Unicode names",
        description=_EMOJI_HELP,
        epilog=_EMOJI_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
        help=f"vendor never trained on, one of {', '.join(v.name for v in catalogue.vendors)} (default: %(default)s, "
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
    return parser


def _add_stamps(commands: Any) -> argparse.ArgumentParser:
    """The options of `data_prep stamps`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "stamps",
        help="build a set of described pictures: Tux Paint's stamps from Debian",
        description=_STAMPS_HELP,
        epilog=_STAMPS_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to build the set in")
    parser.add_argument("--deb", type=Path, metavar="FILE", help="the package, where it is there already")
    parser.add_argument(
        "--image-size", type=int, default=224, metavar="PX", help="side of a picture (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def _run(
    args: argparse.Namespace, build: Callable[[], dict[str, Any]], summary: Callable[[Path, Mapping[str, Any]], str]
) -> int:
    """Build, and say in one sentence what went wrong if it did."""
    try:
        stats = build()
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = error.filename or args.output
        advice = "free some space" if error.errno == errno.ENOSPC else "correct that"
        print(f"error: {where}: {error.strerror or error}; {advice} and run the same command again", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing half-built is left, run the same command again", file=sys.stderr)
        return 130
    print(json.dumps(stats) if args.json else summary(args.output, stats))
    return 0


def _emoji_summary(output: Path, stats: Mapping[str, Any]) -> str:
    """A few lines for a person."""
    lines = [_headline(output, stats)]
    for name, part in stats["sets"].items():
        vendors = ", ".join(f"{vendor} {count}" for vendor, count in part["vendors"].items())
        lines.append(f"  {name}: {part['pictures']} pictures of {part['concepts']} concepts ({vendors})")
    if stats["failed"]:
        lines.append(f"  left out: {', '.join(stats['failed'])}")
    return "\n".join(lines)


def _stamps_summary(output: Path, stats: Mapping[str, Any]) -> str:
    """A few lines for a person."""
    lines = [
        _headline(output, stats),
        f"  {stats['pictures']} pictures with {stats['descriptions']} descriptions ({stats['package']} "
        f"{stats['version']})",
    ]
    if stats["failed"]:
        lines.append(f"  left out: {', '.join(stats['failed'])}")
    return "\n".join(lines)


def _headline(output: Path, stats: Mapping[str, Any]) -> str:
    """Whether this call built the set."""
    return f"{output}: {'built' if stats['built'] else 'already built with these settings'}"


if __name__ == "__main__":
    sys.exit(main())
