"""``python -m evaluate report``: one HTML page of results and runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from evaluate.commands.options import common_arguments, pick_device

NAME = "report"
HELP = "one HTML page of results and runs, with tables and plots"
DESCRIPTION = (
    "Reads what the folders, and the folders directly in them, hold: runs (settings.json, metrics.jsonl, train.json) "
    "and the JSON that the other subcommands write. Writes one HTML file that fetches nothing, and beside it "
    "result.json where the first run has figures on emoji."
)
EXAMPLE = """example:
  python -m evaluate report runs/quickstart runs/quickstart-softmax --root data/emoji
  python -m evaluate report results/ --output results.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders of runs or of results")
    parser.add_argument(
        "--output", type=Path, metavar="FILE.html", help="where the page goes (default: report.html in the first DIR)"
    )
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="the emoji set's folder: adds examples of the first run's figures",
    )
    common_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The report subcommand."""
    from evaluate.report import write_report

    written = write_report(
        args.folders,
        args.output or args.folders[0] / "report.html",
        args.root,
        batch_size=args.batch_size,
        device=pick_device(args.device),
        argv=argv,
    )
    for path in written:
        print(f"written: {path}")
