"""``python -m evaluate dispersion``: how the weight of one key falls as keys become more, for every kind."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from evaluate.commands.options import common_arguments, pick_device
from evaluate.errors import RefusedError

NAME = "dispersion"
HELP = "how the weight of one key falls as keys become more, for ten kinds of attention"
DESCRIPTION = (
    "For 64 to 262,144 keys: the largest and the median share of one key, the entropy, and fitted exponents, on "
    "features from a compact set and on Gaussian ones; with --model, --pretrained and --images on a checkpoint's own "
    "too. Writes DIR/dispersion.json and DIR/dispersion.svg and prints a table. Takes minutes."
)
EXAMPLE = """examples:
  python -m evaluate dispersion --output runs/dispersion
  python -m evaluate dispersion --output runs/dispersion --model tiny-emoji-softmax \\
      --pretrained runs/softmax/checkpoint.pt --images my_pictures/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="where the two files go")
    parser.add_argument("--model", help="a registered model's name, to measure on a checkpoint's own q and k too")
    parser.add_argument("--pretrained", type=Path, metavar="FILE", help="its checkpoint file")
    parser.add_argument(
        "--images",
        nargs="+",
        action="extend",
        type=Path,
        default=[],
        metavar="PATH",
        help="pictures or folders of them, whose tokens are pooled; 262,144 tokens are the most that is used",
    )
    common_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The dispersion subcommand: all refusals, then the checkpoint's features, then the measure."""
    from data_prep.progress import progress
    from evaluate import result
    from evaluate.looking import dispersion
    from evaluate.looking.pictures import find_pictures, pixel_batches
    from evaluate.models import check_checkpoint, load_model, model_config

    result.check_writable(args.output / "dispersion.json")
    sources, checkpoint = [dispersion.drawn(compact=True), dispersion.drawn(compact=False)], None
    if args.model or args.pretrained or args.images:
        if not (args.model and args.pretrained and args.images):
            raise RefusedError("a checkpoint's own features take all three of --model, --pretrained and --images.")
        device = pick_device(args.device)
        model_config(args.model)
        check_checkpoint(args.pretrained)
        files = find_pictures(args.images)
        loaded = load_model(args.model, args.pretrained, device=device)
        checkpoint = result.model_facts(loaded)
        with progress(len(files), "features") as advance:
            batches = pixel_batches(loaded.preprocess, files, args.batch_size, device, advance)
            sources.append(dispersion.trained(loaded.model, batches))
    with progress(dispersion.SEEDS * len(sources), "dispersion", unit="seed") as advance:
        print(dispersion.write_dispersion(args.output, sources, advance, checkpoint, argv))
    for name in ("dispersion.json", "dispersion.svg"):
        print(f"written: {args.output / name}")
