"""``python -m evaluate scaling``: how the loss falls with size, over several runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from evaluate.commands.options import model_configs_argument

NAME = "scaling"
HELP = "how the loss falls with size: L = a·N^-α (+ c) over several runs, a fit for each attention kind"
DESCRIPTION = (
    "Reads settings.json, metrics.jsonl and train.json of finished runs of at least two sizes a kind, "
    "better three or more; c is fitted from four on. L is the validation loss where every run has one, else the "
    "mean training loss of the last tenth of the steps."
)
EXAMPLE = """example:
  python -m evaluate scaling runs/vit-{s,b,l}-eq7mean runs/vit-{s,b,l}-softmax --output scaling.json --plot scaling.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folders of runs; several of a size are seeds"
    )
    parser.add_argument(
        "--over",
        choices=("parameters", "samples", "compute"),
        default="parameters",
        help="what N is (default: the model's parameters)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="where the fits go as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg|png", help="where the plot goes")
    model_configs_argument(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The scaling subcommand."""
    from evaluate.scaling import write_scaling

    print(write_scaling(args.runs, args.over, args.output, args.plot, argv))
    for path in filter(None, (args.output, args.plot)):
        print(f"written: {path}")
