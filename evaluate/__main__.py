"""``python -m evaluate``: zero-shot accuracy and retrieval of a checkpoint, a run's report, and scaling laws over runs.

Exit codes: 0 done, 1 refused or failed (one sentence on stderr), 2 the command line is wrong.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluate.errors import RefusedError

ZERO_SHOT_EXAMPLE = """example:
  python -m evaluate zero-shot --model tiny-emoji-eq7mean --pretrained runs/quickstart/checkpoint.pt \\
      --dataset emoji --root data/emoji --output runs/quickstart/zero-shot.json
"""
RETRIEVAL_EXAMPLE = """example:
  python -m evaluate retrieval --model tiny-emoji-eq7mean --pretrained runs/quickstart/checkpoint.pt \\
      --data data/emoji/heldout-vendor/manifest.jsonl
"""
REPORT_EXAMPLE = """example:
  python -m evaluate report --run runs/quickstart --root data/emoji --beside runs/quickstart-softmax
"""
SCALING_EXAMPLE = """example:
  python -m evaluate scaling runs/vit-{s,b,l}-eq7mean runs/vit-{s,b,l}-softmax --output scaling.json --plot scaling.svg
"""

MOST_THREADS = 8  # that decode pictures; more gain nothing beside one model


def positive(text: str) -> int:
    """An argument that is a whole number above 0."""
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m evaluate", description="Evaluate a CLIP checkpoint.")
    commands = top.add_subparsers(dest="subcommand", required=True)

    zero_shot = commands.add_parser(
        "zero-shot",
        help="top-1, top-5 and mean per class by class names alone",
        description="Zero-shot classification by OpenCLIP's protocol. Writes JSON and prints a table.",
        epilog=ZERO_SHOT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    checkpoint_arguments(zero_shot)
    zero_shot.add_argument("--dataset", required=True, help="what to measure: emoji")
    zero_shot.add_argument("--root", required=True, type=Path, metavar="DIR", help="the data set's folder")
    zero_shot.add_argument("--output", required=True, type=Path, metavar="FILE.json", help="where the result goes")
    zero_shot.add_argument("--image-size", type=positive, help="pixels a side, if not the model config's")
    common_arguments(zero_shot)

    retrieval = commands.add_parser(
        "retrieval",
        help="recall@1, 5 and 10 and the contrastive loss on held-out pairs",
        description="Image-text retrieval on a shard set of pairs, from picture to caption and back.",
        epilog=RETRIEVAL_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    checkpoint_arguments(retrieval)
    retrieval.add_argument(
        "--data", required=True, type=Path, metavar="MANIFEST", help="manifest.jsonl of the pairs, or its folder"
    )
    retrieval.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    common_arguments(retrieval)

    report = commands.add_parser(
        "report",
        help="one HTML page and result.json from a finished run",
        description="Reads RUN/settings.json, metrics.jsonl, train.json, checkpoint.pt and zero-shot.json; "
        "writes RUN/report.html (one file, nothing fetched) and RUN/result.json.",
        epilog=REPORT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("--run", required=True, type=Path, metavar="RUN", help="the run's folder")
    report.add_argument("--root", required=True, type=Path, metavar="DIR", help="the emoji set's folder")
    report.add_argument(
        "--beside", nargs="+", action="extend", type=Path, default=[], metavar="RUN", help="runs to show beside it"
    )
    common_arguments(report)

    scaling = commands.add_parser(
        "scaling",
        help="how the loss falls with size: L = a·N^-α (+ c) over several runs, a fit for each attention kind",
        description="Reads settings.json, metrics.jsonl and train.json of finished runs of at least two sizes a kind, "
        "better three or more; c is fitted from four on. L is the validation loss where every run has one, else the "
        "mean training loss of the last tenth of the steps.",
        epilog=SCALING_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    scaling.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folders of runs; several of a size are seeds"
    )
    scaling.add_argument(
        "--over",
        choices=("parameters", "samples", "compute"),
        default="parameters",
        help="what N is (default: the model's parameters)",
    )
    scaling.add_argument("--output", type=Path, metavar="FILE.json", help="where the fits go as JSON")
    scaling.add_argument("--plot", type=Path, metavar="FILE.svg|png", help="where the plot goes")
    model_configs_argument(scaling)
    return top


def checkpoint_arguments(command: argparse.ArgumentParser) -> None:
    """What those that measure one checkpoint take: which."""
    command.add_argument("--model", required=True, help="a registered model's name")
    command.add_argument("--pretrained", required=True, type=Path, metavar="FILE", help="its checkpoint file")


def common_arguments(command: argparse.ArgumentParser) -> None:
    """What those that run a model take: where and how many at once."""
    command.add_argument("--batch-size", type=positive, default=64, help="pictures a forward pass (default 64)")
    model_configs_argument(command)
    command.add_argument("--device", help="cpu or cuda[:N] (default: cuda if there is one)")


def model_configs_argument(command: argparse.ArgumentParser) -> None:
    """The option that all subcommands have."""
    command.add_argument(
        "--model-configs", type=Path, metavar="DIR", help="folder of further model-config JSON files to know"
    )


def pick_device(name: str | None) -> str:
    """The device to run on. Raises RefusedError for one that is not there."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RefusedError(f"--device {name!r} cannot be used: {reason} Try --device cpu.") from error
    return name


def add_model_configs(folder: Path | None) -> None:
    """Let OpenCLIP know a user's own model configs. Raises RefusedError where one of them cannot be used."""
    import open_clip_linear

    if folder is None:
        return
    try:
        open_clip_linear.add_model_configs(folder)
    except ValueError as error:
        raise RefusedError(f"--model-configs: {error}.") from error


def run_zero_shot(args: argparse.Namespace, argv: Sequence[str]) -> None:
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


def run_retrieval(args: argparse.Namespace, argv: Sequence[str]) -> None:
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


def run_report(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The report subcommand."""
    from evaluate.report import write_report

    written = write_report(
        args.run, args.root, args.beside, batch_size=args.batch_size, device=pick_device(args.device), argv=argv
    )
    for path in written:
        print(f"written: {path}")


def run_scaling(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """The scaling subcommand."""
    from evaluate.scaling import write_scaling

    print(write_scaling(args.runs, args.over, args.output, args.plot, argv))
    for path in filter(None, (args.output, args.plot)):
        print(f"written: {path}")


SUBCOMMANDS = {"zero-shot": run_zero_shot, "retrieval": run_retrieval, "report": run_report, "scaling": run_scaling}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code. Command-line mistakes end in SystemExit(2), as argparse does."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        add_model_configs(args.model_configs)
        SUBCOMMANDS[args.subcommand](args, argv)
    except (RefusedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was written before is whole", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
