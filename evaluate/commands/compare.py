"""``python -m evaluate compare``: two zero-shot results on the same pictures, with a paired test."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from evaluate.commands.options import model_configs_argument

NAME = "compare"
HELP = "two zero-shot results on the same pictures: differences, with McNemar's test"
DESCRIPTION = (
    "Differences in top-1, top-5 and mean per class between two results of `evaluate zero-shot` on the same pictures, "
    "and McNemar's exact test of whether they may be chance."
)
EXAMPLE = """example:
  python -m evaluate compare runs/softmax/zero-shot.json runs/eq7mean/zero-shot.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("a", type=Path, metavar="A.json", help="a result of evaluate zero-shot")
    parser.add_argument("b", type=Path, metavar="B.json", help="another one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    model_configs_argument(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The compare subcommand."""
    from evaluate.compare import compare, differences, read_result, table

    a, b = read_result(args.a), read_result(args.b)
    found = compare(a, b)
    document = {"a": a["path"], "b": b["path"], "sets": found, "differences": differences(a, b)}
    print(json.dumps(document, indent=2) if args.json else table(found, a, b))
