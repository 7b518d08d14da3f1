"""``python -m evaluate zero-shot``: accuracy by class names alone."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluate.commands.options import (
    checkpoint_arguments,
    common_arguments,
    own_device,
    own_threads,
    positive,
    share,
    shown,
)
from evaluate.errors import RefusedError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from evaluate.data.read import Readied
    from evaluate.data.sets import Dataset, Templates
    from evaluate.models import LoadedModel
    from evaluate.zero_shot import Measured

NAME = "zero-shot"
HELP = "top-1, top-5 and mean per class by class names alone"
DESCRIPTION = (
    "Zero-shot classification by OpenCLIP's protocol. Writes JSON and prints a table. Under torchrun the pictures and "
    "prompts are shared by the processes, and the figures are the same."
)
EXAMPLE = """examples:
  torchrun --nproc-per-node 8 -m evaluate zero-shot --model ViT-B-16-eq7mean --pretrained runs/b16/checkpoint.pt \\
      --dataset imagenet1k --root /data/imagenet/val --output runs/b16/imagenet1k.json
  python -m evaluate zero-shot --model tiny-emoji-eq7mean --pretrained runs/quickstart/checkpoint.pt \\
      --dataset emoji --root data/emoji --output runs/quickstart/zero-shot.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    checkpoint_arguments(parser)
    parser.add_argument("--dataset", required=True, help="what to measure: emoji, imagenet1k, wds/NAME, …")
    parser.add_argument("--root", required=True, metavar="DIR", help="the data set's folder, or its address")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.json", help="where the result goes")
    parser.add_argument("--predictions", type=Path, metavar="FILE.parquet", help="where each picture's top 5 goes")
    parser.add_argument(
        "--image-size", type=positive, nargs="+", metavar="PX", help="a side, or height and width, if not the config's"
    )
    parser.add_argument("--templates", default="full", metavar="SET", help="full, simple or photo (default full)")
    parser.add_argument("--limit", type=positive, metavar="N", help="a quick look at N pictures, evenly spread")
    parser.add_argument("--per-class", type=positive, metavar="N", help="N pictures a class, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0, help="of --per-class (default 0)")
    parser.add_argument(
        "--max-bad", type=share, default=0.01, metavar="SHARE", help="unreadable pictures that are let pass (0.01)"
    )
    parser.add_argument(
        "--fast-decode", action="store_true", help="decode JPEG by torchvision: faster, pixels differ by rounding"
    )
    parser.add_argument("--classifier-cache", metavar="DIR", help="where class weights are kept; '' for nowhere")
    common_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The zero-shot subcommand: all refusals, then the evaluation, then the JSON, then the table."""
    from data_prep.atomic import write_text
    from evaluate import result
    from evaluate.data.read import read_dataset
    from evaluate.data.sets import get_dataset
    from evaluate.models import check_checkpoint, check_image_size, load_model, model_config
    from evaluate.predictions import check_predictions, write_predictions
    from evaluate.ranks import from_first, is_first, joined, rank_and_size, together

    with joined():
        dataset, image_size = get_dataset(args.dataset), forced_size(args.image_size)
        device = together(lambda: own_device(args.device))
        # A misspelled name or path is cheap to find; the data is not cheap to read.
        together(lambda: check_image_size(model_config(args.model), image_size))
        together(lambda: check_checkpoint(args.pretrained))
        from_first(lambda: result.check_writable(args.output, keep=(args.pretrained, args.predictions)))
        if args.predictions:
            from_first(lambda: check_predictions(args.predictions, keep=(args.pretrained,)))
        dataset, folders = from_first(
            lambda: read_dataset(dataset, args.root, limit=args.limit, per_class=args.per_class, seed=args.seed)
        )
        templates = pick_templates(dataset, args.templates)
        loaded = together(lambda: load_model(args.model, args.pretrained, device=device, image_size=image_size))
        measured, prompts = measure_all(args, loaded, folders, templates, device)
        protocol = result.Protocol(
            templates=templates,
            batch_size=args.batch_size,
            device=device,
            ranks=rank_and_size()[1],
            fast=args.fast_decode,
            max_bad=args.max_bad,
            limit=args.limit,
            per_class=args.per_class,
            seed=args.seed,
            forced_image_size=list(image_size) if isinstance(image_size, tuple) else image_size,
        )
        if is_first():
            found = result.zero_shot_result(loaded, dataset, args.root, measured, protocol, prompts=prompts, argv=argv)
            if args.predictions:
                facts = {"checkpoint_sha256": loaded.sha256, "list_sha256": found["list_sha256"]}
                write_predictions(args.predictions, dataset.sets, measured, facts)
            write_text(args.output, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
            print(result.table(found, dataset.sets))
            for path in filter(None, (args.output, args.predictions)):
                print(f"written: {path}")


def forced_size(sides: Sequence[int] | None) -> int | tuple[int, int] | None:
    """The image size as OpenCLIP takes it. Raises RefusedError for more than two sides."""
    if sides is None or len(sides) == 1:
        return sides[0] if sides else None
    if len(sides) > 2:
        raise RefusedError(f"--image-size takes one side, or height and width; found {len(sides)} numbers")
    return sides[0], sides[1]


def pick_templates(dataset: "Dataset", name: str) -> "Templates":
    """The data set's prompts of that name. Raises RefusedError that says which it has."""
    if name not in dataset.templates:
        others = " or ".join(f"--templates {other}" for other in dataset.templates)
        raise RefusedError(f"--templates {name!r}: {dataset.name} has no such prompts. Give {others}.")
    return dataset.templates[name]


def measure_all(
    args: argparse.Namespace, loaded: "LoadedModel", folders: "Sequence[Readied]", templates: "Templates", device: str
) -> "tuple[dict[str, Measured], tuple[int, float]]":
    """Every folder measured, by name; and how many prompts were encoded in how many seconds."""
    import torch

    from evaluate.decode import fast_transform
    from evaluate.encode import full_float32
    from evaluate.zero_shot import measure

    place = torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    preprocess = fast_transform(loaded.preprocess) if args.fast_decode else loaded.preprocess
    measured, prompts, seconds = {}, 0, 0.0
    with full_float32(loaded.model):
        for folder in folders:
            weights_DC, own_prompts, own_seconds = class_weights_of(args, loaded, folder, templates, place)
            prompts, seconds = prompts + own_prompts, seconds + own_seconds
            label = folder.name or args.dataset
            with shown(len(folder.pictures), label, "image") as advance:
                measured[folder.name] = measure(
                    loaded.model,
                    preprocess,
                    folder,
                    weights_DC,
                    batch_size=args.batch_size,
                    device=place,
                    threads=own_threads(),
                    most_bad=args.max_bad,
                    fast=args.fast_decode,
                    advance=advance,
                )
    return measured, (prompts, seconds)


def class_weights_of(
    args: argparse.Namespace, loaded: "LoadedModel", folder: "Readied", templates: "Templates", device: "torch.device"
) -> "tuple[Tensor, int, float]":
    """Class weights (D, C) from the cache or by the text tower; and the prompts and seconds that took."""
    import time

    from evaluate import classifier_cache
    from evaluate.classifier import class_weights
    from evaluate.ranks import from_first, is_first

    cache = classifier_cache.default_folder() if args.classifier_cache is None else Path(args.classifier_cache)
    keep, facts = args.classifier_cache != "", classifier_cache.facts_of(loaded, folder.class_names, templates.texts)
    found: Any = from_first(lambda: classifier_cache.read(cache, facts)) if keep else None
    if found is not None:
        return found.to(device), 0, 0.0
    total = len(set(folder.class_names)) * len(templates.texts)
    started = time.perf_counter()
    with shown(total, "class names", "prompt") as advance:
        weights_DC = class_weights(
            loaded.model,
            loaded.tokenizer,
            folder.class_names,
            templates.texts,
            device=device,
            advance=advance,
        )
    if keep and is_first():
        classifier_cache.write(cache, facts, weights_DC)
    return weights_DC, total, time.perf_counter() - started
