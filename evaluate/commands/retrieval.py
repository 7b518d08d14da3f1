"""``python -m evaluate retrieval``: recall on held-out pairs of picture and captions."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluate.commands.options import checkpoint_arguments, common_arguments, own_device, own_threads, share, shown
from evaluate.errors import RefusedError

if TYPE_CHECKING:
    from evaluate.data.pairs import Pair
    from evaluate.models import LoadedModel

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
    parser.add_argument(
        "--max-bad", type=share, default=0.01, metavar="SHARE", help="unreadable pictures that are let pass (0.01)"
    )
    common_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The retrieval subcommand: all refusals, then the evaluation, then the JSON or the table."""
    from data_prep.atomic import write_text
    from evaluate.models import check_checkpoint, load_model, model_config
    from evaluate.ranks import from_first, is_first, joined, together
    from evaluate.result import check_writable

    with joined():
        device = together(lambda: own_device(args.device))
        together(lambda: model_config(args.model))
        together(lambda: check_checkpoint(args.pretrained))
        if args.output:
            from_first(lambda: check_writable(args.output, keep=(args.pretrained,)))
        pairs = from_first(lambda: pairs_of(args.data))
        loaded = together(lambda: load_model(args.model, args.pretrained, device=device))
        result = measure(args, loaded, pairs, device, argv)
        if is_first():
            as_json = json.dumps(result, indent=2, ensure_ascii=False)
            if args.output:
                write_text(args.output, as_json + "\n")
            print(as_json if args.json else table(result))


def pairs_of(data: str) -> "list[Pair]":
    """The pairs. Raises RefusedError for what is wrong with them."""
    from data_prep.errors import DataError
    from evaluate.data.pairs import read_pairs

    try:
        return read_pairs(data)
    except DataError as error:
        raise RefusedError(f"--data: {error}.") from error


def measure(
    args: argparse.Namespace, loaded: "LoadedModel", pairs: "list[Pair]", device: str, argv: Sequence[str]
) -> dict[str, Any]:
    """The whole result as JSON values, the same on every rank."""
    import torch

    from data_prep.manifest import sha256_file
    from evaluate.data.pairs import duplicates, list_sha256, manifest_file
    from evaluate.encode import full_float32
    from evaluate.result import command_line, model_facts, versions, without_password
    from evaluate.retrieval import evaluate_pairs, intervals

    sigmoid = getattr(loaded.model, "logit_bias", None) is not None  # only SigLIP's loss trains a bias
    with full_float32(loaded.model), shown(len(pairs), NAME, "image") as advance:
        figures, bad = evaluate_pairs(
            loaded.model,
            loaded.tokenizer,
            loaded.preprocess,
            pairs,
            sigmoid=sigmoid,
            batch_size=args.batch_size,
            device=torch.device(device),
            threads=own_threads(),
            most_bad=args.max_bad,
            advance=advance,
        )
    manifest = manifest_file(Path(args.data))
    return {
        **model_facts(loaded),
        "data": without_password(args.data),
        "manifest_sha256": sha256_file(manifest) if manifest.is_file() else None,
        "list_sha256": list_sha256(pairs),
        "protocol": "a right one among the k best of all, ties in the pairs' order; model's own eval transform",
        "loss_kind": "sigmoid" if sigmoid else "softmax",
        "image_size": loaded.image_size,
        "precision": "fp32",
        "batch_size": args.batch_size,
        "device": device,
        "duplicate_captions": duplicates(pairs),
        "bad_images": [vars(b) for b in bad],
        "results": figures,
        "intervals": intervals(figures),
        "versions": versions(),
        "command": command_line(argv),
    }


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
