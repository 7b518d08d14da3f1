"""``python -m data_prep download``: fetches what a plan names, by img2dataset."""

import argparse
import json
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.errors import UsageError
from data_prep.laion.download import Settings, download
from data_prep.laion.http import Limits
from data_prep.laion.memory import available
from data_prep.laion.plan import check_metadata
from data_prep.laion.tally import shares
from data_prep.laion.watch import Bounds
from data_prep.words import many

NAME = "download"
HELP = "download the pictures of a plan"
DESCRIPTION = """\
Downloads the pictures that DIR/plan names to DIR/parts, by img2dataset, one process group a part: watched, ended and
run again where it stalls, and its result compared with the plan. It may be stopped at any time; run again, it goes on.
"""
EXAMPLE = """\
examples:
  python -m data_prep download --output laion
  python -m data_prep download --output laion --processes 16 --memory-limit 48G --disk-floor 100G
  python -m data_prep download --output laion --part 2/8          # the second of eight machines; copy parts/ together

img2dataset needs Python 3.11 or 3.12 and older packages than training may: an environment of its own is fine, named by
--img2dataset-python. Its output stands in DIR/logs. With --distributor spark or ray, workers on other machines need the
same checkout, environment and DIR at the same paths, and an environment variable says where they are: RAY_ADDRESS, or
PYSPARK_SUBMIT_ARGS='--master spark://HOST:7077 pyspark-shell' (without it, Spark uses this machine alone).

Proxies of the environment (http_proxy, https_proxy, all_proxy) are not used, as they would look up names themselves and
could be sent to private addresses: run it where the internet is reached directly.

exit code: 0 all is there, 1 stopped or refused (one sentence says why), 2 wrong usage, 130 interrupted
"""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    add_place_arguments(parser)
    add_download_arguments(parser)


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """What `download` and `retry` take beside the options of the download itself."""
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder with the plan")
    parser.add_argument("--metadata", type=Path, nargs="+", metavar="PATH", help="what the plan was made of; compared")
    parser.add_argument("--allow-private", action="store_true", help="fetch from loopback and private addresses too")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_download_arguments(parser: argparse.ArgumentParser) -> None:
    """How to download, for every subcommand that does; `settings_of` wants --allow-private as well."""
    settings, bounds, limits = Settings(), Settings().bounds, Limits()

    def number(name: str, kind: Any, default: Any, text: str, metavar: str = "N") -> None:
        parser.add_argument(name, type=kind, default=default, metavar=metavar, help=f"{text} (default: %(default)s)")

    number("--image-size", int, settings.image_size, "shorter side of larger pictures as stored", "PX")
    number("--processes", int, settings.processes, "processes of img2dataset: the cores")
    number("--threads", int, settings.threads, "pictures that each process fetches at a time")
    number("--timeout", int, settings.timeout, "for a server that sends nothing", "S")
    number("--deadline", float, limits.deadline, "for one picture, redirects and all", "S")
    number("--retries", int, settings.retries, "further tries at once, of what may pass with time")
    number("--max-bytes", size, "32M", "largest picture that is fetched", "SIZE")
    number("--stall", float, bounds.stall, "without a byte written, once it has begun, before it is run again", "S")
    memory = f"{available() * 3 // 4 >> 20}M"
    number("--memory-limit", size, memory, "of all its processes: 3/4 of the machine's or container's", "SIZE")
    number("--disk-floor", size, "1G", "room that is left on the disk", "SIZE")
    number(
        "--min-success", float, bounds.min_success, "least share of the newest shards that comes; a retry: any", "SHARE"
    )
    number("--attempts", int, settings.attempts, "runs of a part without a new shard before it is given up")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="every N-th part, from the I-th")
    parser.add_argument(
        "--distributor",
        choices=("multiprocessing", "spark", "ray"),
        default=settings.distributor,
        help="img2dataset's (default: %(default)s)",
    )
    parser.add_argument(
        "--img2dataset-python",
        default=sys.executable,
        metavar="PYTHON",
        help="the Python that has img2dataset (default: the running one)",
    )


def settings_of(args: argparse.Namespace) -> Settings:
    """The settings that the options say.

    Raises:
        UsageError: a number out of its range.
    """
    for name in ("image_size", "processes", "threads", "timeout", "deadline", "max_bytes", "memory_limit", "attempts"):
        if getattr(args, name) <= 0:
            raise UsageError(f"--{name.replace('_', '-')} must be greater than 0, found {getattr(args, name)}")
    if args.retries < 0:
        raise UsageError(f"--retries must not be negative, found {args.retries}")
    if not 0 <= args.min_success <= 1:
        raise UsageError(f"--min-success is a share, 0 to 1, found {args.min_success}")
    longest = args.deadline + args.timeout * args.retries
    if args.stall <= longest:
        raise UsageError(
            f"--stall {args.stall} ends img2dataset while it may still wait for one picture: give more than {longest} "
            "(--deadline and --timeout times --retries)"
        )
    return Settings(
        image_size=args.image_size,
        processes=args.processes,
        threads=args.threads,
        timeout=args.timeout,
        retries=args.retries,
        limits=Limits(args.max_bytes, args.deadline, args.allow_private),
        bounds=Bounds(args.stall, args.memory_limit, args.disk_floor, args.min_success),
        attempts=args.attempts,
        part=args.part,
        distributor=args.distributor,
        python=args.img2dataset_python,
    )


def run(args: argparse.Namespace) -> None:
    """The download subcommand."""
    settings = settings_of(args)
    refuse_other_metadata(args)
    interrupt_on_term()
    show(args, download(args.output, settings))


def refuse_other_metadata(args: argparse.Namespace) -> None:
    """Raise DataError where --metadata was given and the plan was made of other metadata."""
    if args.metadata:
        check_metadata(args.metadata, args.output)


def show(args: argparse.Namespace, result: Mapping[str, Any]) -> None:
    """Print what came of the rows."""
    size = f"{many(result['shards'], 'shard')} of {many(result['rows'], 'row')}"
    said = f"{args.output}: {size}, {shares(result['reasons'])}"
    print(json.dumps(result) if args.json else said)


def interrupt_on_term() -> None:
    """Let SIGTERM end the work as Ctrl-C does, also where Ctrl-C is ignored: in what a script starts with `&`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def size(text: str) -> int:
    """Bytes from "500M" or "2.5G": powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a size such as 500M or 2.5G, found {text!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _part(text: str) -> tuple[int, int]:
    """ "2/8" to (2, 8)."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 1 to N, found {text!r}")
    return int(found[1]), int(found[2])
