"""``python -m evaluate zero-shot``: accuracy by class names alone."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from evaluate.commands.options import checkpoint_arguments, common_arguments, pick_device, positive

NAME = "zero-shot"
HELP = "top-1, top-5 and mean per class by class names alone"
DESCRIPTION = "Zero-shot classification by OpenCLIP's protocol. Writes JSON and prints a table."
EXAMPLE = """example:
  python -m evaluate zero-shot --model tiny-emoji-eq7mean --pretrained runs/quickstart/checkpoint.pt \\
      --dataset emoji --root data/emoji --output runs/quickstart/zero-shot.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    checkpoint_arguments(parser)
    parser.add_argument("--dataset", required=True, help="what to measure: emoji")
    parser.add_argument("--root", required=True, type=Path, metavar="DIR", help="the data set's folder")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.json", help="where the result goes")
    parser.add_argument("--image-size", type=positive, help="pixels a side, if not the model config's")
    common_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The zero-shot subcommand: all refusals, then the evaluation, then the JSON, then the table."""
    from data_prep.atomic import write_text
    from evaluate import result
    from evaluate.data.sets import get_dataset
    from evaluate.models import check_checkpoint, load_model, model_config
    from evaluate.zero_shot import evaluate_folders, read_folders

    dataset = get_dataset(args.dataset)
    result.check_writable(args.output)
    device = pick_device(args.device)
    model_config(args.model)  # a misspelled name or path is cheap to find; the data is not cheap to read
    check_checkpoint(args.pretrained)
    folders = read_folders(dataset, args.root)
    loaded = load_model(args.model, args.pretrained, device=device, image_size=args.image_size)
    figures, encoded = evaluate_folders(
        loaded.model, loaded.tokenizer, loaded.preprocess, dataset, folders, batch_size=args.batch_size, device=device
    )
    found = result.zero_shot_result(
        loaded,
        dataset,
        args.root,
        figures,
        encoded,
        batch_size=args.batch_size,
        device=device,
        image_size=args.image_size,
        argv=argv,
    )
    write_text(args.output, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    print(result.table(found, dataset))
    print(f"written: {args.output}")
