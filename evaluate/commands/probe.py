"""``python -m evaluate probe``: linear probe and nearest neighbours on frozen picture features."""

import argparse
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
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
    from evaluate.data.pictures import Pictures
    from evaluate.models import LoadedModel
    from evaluate.probe import Features

NAME = "probe"
HELP = "linear probe and k-NN on frozen picture features"
DESCRIPTION = (
    "Fits scikit-learn's logistic regression (C chosen on a fifth of the training pictures) and nearest neighbours to "
    "the features of training pictures, and measures them on the test pictures. Writes JSON and prints a table."
)
EXAMPLE = """example:
  python -m evaluate probe --model tiny-emoji-eq7mean --pretrained runs/quickstart/checkpoint.pt \\
      --dataset emoji --train-root data/emoji --root data/emoji --method knn --output runs/quickstart/probe.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the subcommand takes."""
    checkpoint_arguments(parser)
    parser.add_argument("--dataset", required=True, help="what to measure: any data set of zero-shot")
    parser.add_argument(
        "--train-root",
        required=True,
        metavar="DIR",
        help="where the training pictures are: a tree of class folders, or a folder with train/ in CLIP_benchmark's "
        "layout or the emoji set's",
    )
    parser.add_argument("--root", required=True, metavar="DIR", help="where the test pictures are, as for zero-shot")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.json", help="where the result goes")
    parser.add_argument(
        "--method", choices=("linear", "knn", "both"), default="both", help="what to fit (default both)"
    )
    parser.add_argument("--limit", type=positive, help="pictures of each part, evenly spread, for a quick look")
    parser.add_argument("--seed", type=int, default=0, help="which training pictures C is chosen on (default 0)")
    parser.add_argument(
        "--max-bad", type=share, default=0.01, metavar="SHARE", help="unreadable pictures that are let pass (0.01)"
    )
    common_arguments(parser)


def run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The probe subcommand: all refusals, then the features, then the fits, then the JSON, then the table."""
    from data_prep.atomic import write_text
    from evaluate.models import check_checkpoint, load_model, model_config
    from evaluate.probe import check_installed
    from evaluate.ranks import from_first, is_first, joined, together
    from evaluate.result import check_writable

    with joined():
        together(check_installed)
        device = together(lambda: own_device(args.device))
        together(lambda: model_config(args.model))
        together(lambda: check_checkpoint(args.pretrained))
        from_first(lambda: check_writable(args.output, keep=(args.pretrained,)))
        parts = from_first(lambda: read_parts(args))
        shared = from_first(lambda: refuse_shared(parts))
        loaded = together(lambda: load_model(args.model, args.pretrained, device=device))
        features = {name: encode(args, loaded, name, pictures, device) for name, pictures in parts.items()}
        figures = from_first(lambda: probe(args, features))
        if is_first():
            result = result_of(args, loaded, parts, features, figures, device, argv) | {"shared": shared}
            write_text(args.output, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
            print(table(result))
            print(f"written: {args.output}")


def read_parts(args: argparse.Namespace) -> "dict[str, Pictures]":
    """The `training` and the `test` pictures. Raises RefusedError where one cannot be measured by the other."""
    from evaluate.data.read import read_dataset
    from evaluate.data.sets import get_dataset, training_part

    dataset = get_dataset(args.dataset)
    _, folders = read_dataset(dataset, args.root, limit=args.limit, per_class=None, seed=args.seed)
    try:
        _, (folder,) = read_dataset(
            training_part(dataset), args.train_root, limit=args.limit, per_class=None, seed=args.seed
        )
    except RefusedError as error:
        raise RefusedError(f"training pictures: {error}") from error
    test, training = folders[0].pictures, folder.pictures
    if training.classes != test.classes:
        raise RefusedError(
            f"--train-root has {len(training.classes):,} classes and --root {len(test.classes):,}, which are not the "
            "same ones in the same order. Give two parts of one data set."
        )
    return {"training": training, "test": test}


def refuse_shared(parts: "dict[str, Pictures]") -> list[str]:
    """Names of the test pictures that are also training pictures. Raises RefusedError where they are many."""
    from evaluate.probe import MOST_SHARED, shared_pictures

    test = parts["test"]
    shared = [test.names[number] for number in shared_pictures(parts["training"], test)]
    if len(shared) > MOST_SHARED * len(test):
        raise RefusedError(
            f"{len(shared):,} of the {len(test):,} test pictures are also training pictures of their class, first "
            f"{shared[0]}: a probe would be tested on what it learnt. Give two parts that share none."
        )
    return shared


def encode(args: argparse.Namespace, loaded: "LoadedModel", name: str, pictures: "Pictures", device: str) -> "Features":
    """The features of one part, the same on every rank."""
    import torch

    from evaluate.encode import full_float32
    from evaluate.probe import labelled_features

    with full_float32(loaded.model), shown(len(pictures), name, "image") as advance:
        return labelled_features(
            loaded.model,
            loaded.preprocess,
            pictures,
            batch_size=args.batch_size,
            device=torch.device(device),
            threads=own_threads(),
            most_bad=args.max_bad,
            advance=advance,
        )


def probe(args: argparse.Namespace, features: "dict[str, Features]") -> dict[str, Any]:
    """The figures of the methods that were asked for."""
    from evaluate.probe import linear_probe, nearest_neighbours

    figures: dict[str, Any] = {}
    if args.method in ("linear", "both"):
        figures["linear"] = linear_probe(features["training"], features["test"], seed=args.seed)
    if args.method in ("knn", "both"):
        figures |= nearest_neighbours(features["training"], features["test"])
    return figures


def result_of(
    args: argparse.Namespace,
    loaded: "LoadedModel",
    parts: "dict[str, Pictures]",
    features: "dict[str, Features]",
    figures: dict[str, Any],
    device: str,
    argv: Sequence[str],
) -> dict[str, Any]:
    """The whole result as JSON values."""
    from evaluate.result import command_line, model_facts, versions, without_password

    return {
        **model_facts(loaded),
        "dataset": args.dataset,
        "root": without_password(args.root),
        "train_root": without_password(args.train_root),
        "list_sha256": parts["test"].list_sha256,
        "train_list_sha256": parts["training"].list_sha256,
        "classes": len(parts["test"].classes),
        "pictures": {name: len(found.labels) for name, found in features.items()},
        "limit": args.limit,
        "seed": args.seed,
        "protocol": "scikit-learn on unit image embeddings: logistic regression (L-BFGS), k-NN by cosine",
        "image_size": loaded.image_size,
        "precision": "fp32",
        "batch_size": args.batch_size,
        "device": device,
        "bad_images": {name: [vars(b) for b in found.bad] for name, found in features.items()},
        "results": figures,
        "versions": versions() | {"scikit-learn": metadata.version("scikit-learn")},
        "command": command_line(argv),
    }


def table(result: Mapping[str, Any]) -> str:
    """The figures for a terminal."""
    head = f"{'probe':<12}{'top-1 %':>9}{'95 % interval':>16}{'top-5 %':>9}{'per class':>11}"
    lines = [head, "-" * len(head)]
    for name, row in result["results"].items():
        low, high = row["interval"]
        top5 = f"{row['top5']:.2f}" if "top5" in row else ""
        lines.append(
            f"{name:<12}{row['top1']:>9.2f}{f'{low:.1f}-{high:.1f}':>16}{top5:>9}{row['mean_per_class']:>11.2f}"
        )
    pictures = result["pictures"]
    lines.append(f"{pictures['training']} training and {pictures['test']} test pictures of {result['classes']} classes")
    if linear := result["results"].get("linear"):
        ended = f"after {linear['iterations']} iterations" + ("" if linear["converged"] else ", not converged")
        lines.append(f"linear: C = {linear['c']:g}, best on {linear['validation']} pictures set aside; {ended}")
    bad = sum(map(len, result["bad_images"].values()))
    if bad:
        lines.append(f"{bad} unreadable pictures were left out.")
    if result["shared"]:
        lines.append(f"{len(result['shared'])} test pictures are also training pictures, first {result['shared'][0]}.")
    if result["limit"]:
        lines.append(f"A quick look at {result['limit']} pictures of each part (--limit).")
    return "\n".join(lines)
