"""``python -m evaluate attention``: where each layer of a checkpoint's vision tower looks on a picture."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from evaluate.commands.options import checkpoint_arguments, model_configs_argument, pick_device, positive

NAME = "attention"
HELP = "where each layer of the vision tower looks on a picture, for every kind of attention"
DESCRIPTION = (
    "For each layer and head: a map over the picture of where the class token looks and where the patches do, the "
    "entropy, and the effective number of keys. Writes DIR/attention.json and DIR/attention.html (one file, nothing "
    "fetched) and prints a table. Reads OpenCLIP's own ViT, stock ones too."
)
EXAMPLE = """example:
  python -m evaluate attention --model tiny-emoji-eq7mean --pretrained runs/quickstart/checkpoint.pt \\
      --images cat.jpg dog.jpg --output runs/quickstart/attention
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    checkpoint_arguments(parser)
    parser.add_argument(
        "--images", nargs="+", action="extend", required=True, type=Path, metavar="PATH", help="pictures or folders"
    )
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="where the two files go")
    parser.add_argument("--image-size", type=positive, help="pixels a side, if not the model config's")
    model_configs_argument(parser)
    parser.add_argument("--device", help="cpu or cuda[:N] (default: cuda if there is one)")


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The attention subcommand: all refusals, then picture by picture."""
    from data_prep.progress import progress
    from evaluate import result
    from evaluate.looking.attention import write_attention
    from evaluate.looking.pictures import find_pictures
    from evaluate.models import check_checkpoint, check_image_size, load_model, model_config

    result.check_writable(args.output / "attention.json")
    device = pick_device(args.device)
    check_image_size(model_config(args.model), args.image_size)
    check_checkpoint(args.pretrained)
    files = find_pictures(args.images)
    loaded = load_model(args.model, args.pretrained, device=device, image_size=args.image_size)
    with progress(len(files), "attention") as advance:
        said = write_attention(
            args.output, loaded, files, device=device, image_size=args.image_size, advance=advance, argv=argv
        )
    print(said)
    for name in ("attention.json", "attention.html"):
        print(f"written: {args.output / name}")
