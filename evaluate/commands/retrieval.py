"""``python -m evaluate retrieval``: recall on held-out pairs of picture and caption."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from evaluate.commands.options import MOST_THREADS, checkpoint_arguments, common_arguments, pick_device
from evaluate.errors import RefusedError

NAME = "retrieval"
HELP = "recall@1, 5 and 10 and the contrastive loss on held-out pairs"
DESCRIPTION = "Image-text retrieval on a shard set of pairs, from picture to caption and back."
EXAMPLE = """example:
  python -m evaluate retrieval --model tiny-emoji-eq7mean --pretrained runs/quickstart/checkpoint.pt \\
      --data data/emoji/heldout-vendor/manifest.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    checkpoint_arguments(parser)
    parser.add_argument(
        "--data", required=True, type=Path, metavar="MANIFEST", help="manifest.jsonl of the pairs, or its folder"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    common_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The retrieval subcommand: all refusals, then the evaluation, then the JSON or the table."""
    import os

    import torch

    from data_prep.errors import DataError
    from evaluate import result
    from evaluate.data.pairs import manifest_file, read_pairs
    from evaluate.models import check_checkpoint, load_model, model_config
    from evaluate.progress import progress
    from evaluate.retrieval import evaluate_pairs
    from evaluate.zero_shot import full_float32

    device = pick_device(args.device)
    model_config(args.model)
    check_checkpoint(args.pretrained)
    try:
        pairs = read_pairs(args.data)
    except DataError as error:
        raise RefusedError(f"--data: {error}.") from error
    loaded = load_model(args.model, args.pretrained, device=device)
    sigmoid = getattr(loaded.model, "logit_bias", None) is not None  # only SigLIP's loss trains a bias
    with full_float32(loaded.model), progress(len(pairs), "retrieval") as advance:
        figures, bad = evaluate_pairs(
            loaded.model,
            loaded.tokenizer,
            loaded.preprocess,
            pairs,
            sigmoid=sigmoid,
            batch_size=args.batch_size,
            device=torch.device(device),
            threads=min(os.cpu_count() or 1, MOST_THREADS),
            advance=advance,
        )
    found = result.retrieval_result(
        loaded,
        manifest_file(args.data),
        pairs,
        figures,
        bad,
        sigmoid=sigmoid,
        batch_size=args.batch_size,
        device=device,
        argv=argv,
    )
    print(json.dumps(found, indent=2, ensure_ascii=False) if args.json else result.retrieval_table(found))
