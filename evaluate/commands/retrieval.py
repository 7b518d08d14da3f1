"""``python -m evaluate retrieval``: recall on held-out pairs of picture and captions."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluate.commands.options import MOST_THREADS, checkpoint_arguments, common_arguments, pick_device
from evaluate.errors import RefusedError

NAME = "retrieval"
HELP = "recall@1, 5 and 10 and the contrastive loss on held-out pairs"
DESCRIPTION = "Image-text retrieval on a set of pictures and their captions, from picture to caption and back."
EXAMPLE = """example:
  python -m evaluate retrieval --model tiny-emoji-eq7mean --pretrained runs/quickstart/checkpoint.pt \\
      --data data/emoji/heldout-vendor/manifest.jsonl --output runs/quickstart/retrieval.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    checkpoint_arguments(parser)
    parser.add_argument(
        "--data",
        required=True,
        metavar="MANIFEST|DIR",
        help="manifest.jsonl of the pairs, or its folder; or a folder or address in CLIP_benchmark's webdataset "
        "layout, with several captions a picture",
    )
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="where the result goes as JSON")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    common_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The retrieval subcommand: all refusals, then the evaluation, then the JSON or the table."""
    import os

    import torch

    from data_prep.atomic import write_text
    from data_prep.errors import DataError
    from data_prep.manifest import sha256_file
    from evaluate.data.pairs import duplicates, list_sha256, manifest_file, read_pairs
    from evaluate.encode import full_float32
    from evaluate.models import check_checkpoint, load_model, model_config
    from evaluate.progress import progress
    from evaluate.result import check_writable, command_line, model_facts, versions
    from evaluate.retrieval import evaluate_pairs, intervals

    if args.output:
        check_writable(args.output)
    device = pick_device(args.device)
    model_config(args.model)
    check_checkpoint(args.pretrained)
    try:
        pairs = read_pairs(args.data)
    except DataError as error:
        raise RefusedError(f"--data: {error}.") from error
    loaded = load_model(args.model, args.pretrained, device=device)
    sigmoid = getattr(loaded.model, "logit_bias", None) is not None  # only SigLIP's loss trains a bias
    with full_float32(loaded.model), progress(len(pairs), NAME) as advance:
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
    manifest = manifest_file(Path(args.data))
    facts = {
        **model_facts(loaded),
        "data": args.data,
        "manifest_sha256": sha256_file(manifest) if manifest.is_file() else None,
        "list_sha256": list_sha256(pairs),
        "protocol": "a right one among the k best of all, ties in the pairs' order; model's own eval transform",
        "loss_kind": "sigmoid" if sigmoid else "softmax",
        "image_size": loaded.image_size,
        "precision": "fp32",
        "batch_size": args.batch_size,
        "device": device,
    }
    found = {"bad_images": [vars(b) for b in bad], "results": figures, "intervals": intervals(figures)}
    said = {"duplicate_captions": duplicates(pairs)}
    result = facts | said | found | {"versions": versions(), "command": command_line(argv)}
    as_json = json.dumps(result, indent=2, ensure_ascii=False)
    if args.output:
        write_text(args.output, as_json + "\n")
    print(as_json if args.json else table(result))


def table(result: Mapping[str, Any]) -> str:
    """The figures for a terminal."""
    from evaluate.retrieval import RECALLS

    row = result["results"]
    lines = [f"{'recall %':<16}" + "".join(f"{f'@{k}':>8}" for k in RECALLS)]
    for name in ("image_to_text", "text_to_image"):
        lines.append(f"{name.replace('_', ' '):<16}" + "".join(f"{row[f'{name}_r{k}']:>8.2f}" for k in RECALLS))
    lines.append(f"{row['pairs']} pictures, {row['captions']} captions")
    if "loss" in row:
        lines[-1] += f"; {result['loss_kind']} loss {row['loss']:.4f}"
    if result["duplicate_captions"]:
        lines.append(f"{result['duplicate_captions']} captions are another picture's too, which counts as wrong.")
    if result["bad_images"]:
        named = ", ".join(f"{b['shard']}: {b['key']}" for b in result["bad_images"][:5])
        lines.append(f"{len(result['bad_images'])} unreadable pictures were left out: {named}.")
    return "\n".join(lines)
