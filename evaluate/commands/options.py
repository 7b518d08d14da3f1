"""Options that several subcommands share, and what they stand for."""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from evaluate.errors import RefusedError

MOST_THREADS = 8  # that decode pictures; more gain nothing beside one model


def positive(text: str) -> int:
    """An argument that is a whole number above 0."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, found {text!r}")
    return value


def share(text: str) -> float:
    """An argument between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a share, 0 or more and below 1, found {text!r}")
    return value


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


def own_device(name: str | None) -> str:
    """This process's device: under torchrun each has a GPU of its own."""
    from evaluate.ranks import local_rank, rank_and_size

    device = pick_device(name)
    if device == "cuda" and rank_and_size()[1] > 1:
        device = pick_device(f"cuda:{local_rank()}")
    return device


def own_threads() -> int:
    """How many threads of this process decode pictures, beside those of the other processes of its group."""
    import os

    from evaluate.ranks import rank_and_size

    return max(1, min((os.cpu_count() or 1) // rank_and_size()[1], MOST_THREADS))


def shown(total: int, label: str, unit: str) -> AbstractContextManager[Callable[[int], object]]:
    """Progress of what the ranks share, shown by the first."""
    from data_prep.progress import progress
    from evaluate.ranks import is_first, rank_and_size

    return progress(total, label, unit, rank_and_size()[1]) if is_first() else nullcontext(lambda count: None)


def add_model_configs(folder: Path | None) -> None:
    """Let OpenCLIP know a user's own model configs. Raises RefusedError where one of them cannot be used."""
    import open_clip_linear

    if folder is None:
        return
    try:
        open_clip_linear.add_model_configs(folder)
    except ValueError as error:
        raise RefusedError(f"--model-configs: {error}.") from error
