"""``python -m evaluate report``: one HTML page of a finished run."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from evaluate.commands.options import common_arguments, pick_device

NAME = "report"
HELP = "one HTML page and result.json from a finished run"
DESCRIPTION = (
    "Reads RUN/settings.json, metrics.jsonl, train.json, checkpoint.pt and zero-shot.json; "
    "writes RUN/report.html (one file, nothing fetched) and RUN/result.json."
)
EXAMPLE = """example:
  python -m evaluate report --run runs/quickstart --root data/emoji --beside runs/quickstart-softmax
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("--run", required=True, type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument("--root", required=True, type=Path, metavar="DIR", help="the emoji set's folder")
    parser.add_argument(
        "--beside", nargs="+", action="extend", type=Path, default=[], metavar="RUN", help="runs to show beside it"
    )
    common_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The report subcommand."""
    from evaluate.report import write_report

    written = write_report(
        args.run, args.root, args.beside, batch_size=args.batch_size, device=pick_device(args.device), argv=argv
    )
    for path in written:
        print(f"written: {path}")
