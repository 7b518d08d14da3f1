"""What `evaluate scaling` takes from a training's folder, and which runs it refuses to put on one curve.

L is the in-run validation loss where every run has one over the same held-out pairs, and else the mean training loss of
the last tenth of the steps, whose noise is known from the rows. Compute is 3 · 2 · multiply-adds of one picture and one
text · samples: a backward pass counts as two forward passes, and the linear kinds are counted by what they compute (see
``open_clip_linear list``).
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import open_clip

from evaluate.errors import RefusedError
from evaluate.runs import METRICS, SETTINGS, TRAIN, read_json, read_losses
from open_clip_linear import add_model_configs
from open_clip_linear.listing import attention_kind, pair_macs

TAIL = 0.1  # of the steps: the learning rate is low there and the loss nearly level
BLOCKS = 10  # of the tail: means of neighbouring steps are what its noise is taken from
ALIKE = 0.02  # counts that differ by less are one size; runs lose a few samples to damaged files


@dataclass(frozen=True)
class Point:
    """One run as the fit sees it."""

    run: str
    model: str
    kind: str
    parameters: int
    samples: int
    compute: float | None  # only where it was asked for
    global_batch: int
    objective: str
    image_size: tuple[int, ...]
    train_data: str
    val_data: str
    training_loss: float
    training_error: float  # its standard error
    validation_loss: float | None


def read_point(folder: Path, over: str) -> Point:
    """Read one run. Raises RefusedError: a file is missing or malformed, the run is short, or its model is unknown."""
    if not folder.is_dir():
        raise RefusedError(f"run {folder}: no such folder. Give folders that `python -m training` wrote.")
    settings = read_json(folder / SETTINGS, ("model", "batch_size"))
    train = read_json(folder / TRAIN, ("model", "parameters", "samples_seen", "world_size"))
    steps, losses, _ = read_losses(folder / METRICS)
    tail = [loss for step, loss in zip(steps, losses, strict=True) if step > (1 - TAIL) * steps[-1]]
    if len(tail) < BLOCKS:
        raise RefusedError(
            f"{folder / METRICS} has {len(tail)} rows in the last tenth of its steps; the loss is measured on at least "
            f"{BLOCKS}. Train for {BLOCKS / TAIL:.0f} steps or more."
        )
    config = model_config(folder, settings)
    samples = int(train["samples_seen"])
    return Point(
        run=str(folder),
        model=str(train["model"]),
        kind=kind_of(config),
        parameters=int(train["parameters"]),
        samples=samples,
        compute=6.0 * macs_of_pair(folder, settings) * samples if over == "compute" else None,
        global_batch=settings["batch_size"] * settings.get("accum_freq", 1) * train["world_size"],
        objective=objective(settings),
        image_size=image_size(config, settings),
        train_data=settings.get("train_data", ""),
        val_data=settings.get("val_data", ""),
        training_loss=statistics.fmean(tail),
        training_error=standard_error(tail),
        validation_loss=validation_loss(folder / METRICS, steps[-1]),
    )


def standard_error(losses: Sequence[float]) -> float:
    """Of the mean of successive losses, from the means of ten blocks of them: neighbours need not be independent."""
    length = len(losses) // BLOCKS
    blocks = np.reshape(losses[len(losses) - length * BLOCKS :], (BLOCKS, length)).mean(axis=1)
    return float(blocks.std(ddof=1) / math.sqrt(BLOCKS))


def validation_loss(path: Path, last_step: float) -> float | None:
    """The last row's "val_loss" in the last tenth of the steps, if there is one. The file was read before."""
    found = None
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n") and (row := json.loads(line)).get("val_loss") and row["step"] > (1 - TAIL) * last_step:
            found = float(row["val_loss"])
    return found


def objective(settings: dict[str, Any]) -> str:
    """The name of the training loss: losses of different objectives are different quantities."""
    if teacher := settings.get("distill_model"):
        return f"distillation from {teacher}"
    return "SigLIP" if settings.get("siglip") else "CLIP"


def image_size(config: dict[str, Any], settings: dict[str, Any]) -> tuple[int, ...]:
    """Height and width of the pictures that the run was trained on."""
    size = settings.get("force_image_size") or config["vision_cfg"].get("image_size", 224)
    sides = tuple(size) if isinstance(size, list | tuple) else (size,)
    return sides * 2 if len(sides) == 1 else sides


def model_config(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The config of the run's model. Raises RefusedError where it is not registered."""
    if own := settings.get("model_configs"):
        try:
            add_model_configs(Path(own))
        except ValueError as error:
            raise RefusedError(f"{folder} was trained with --model-configs {own}: {error}.") from error
    config: dict[str, Any] | None = open_clip.get_model_config(settings["model"])
    if config is None:
        raise RefusedError(f"{folder}: its model {settings['model']!r} is not registered. Give --model-configs DIR.")
    return config


def kind_of(config: dict[str, Any]) -> str:
    """The vision tower's attention, and the text tower's where it is not softmax."""
    vision, text = attention_kind(config["vision_cfg"]), attention_kind(config["text_cfg"])
    return vision if text == "softmax" else f"{vision} / text {text}"


def macs_of_pair(folder: Path, settings: dict[str, Any]) -> int:
    """Multiply-adds of one picture and one text, forward, at the image size the run was trained at."""
    macs = pair_macs(settings["model"], settings.get("force_image_size") or ())
    if not macs:
        raise RefusedError(f"{folder}: the multiply-adds of its model cannot be counted. Use --over samples.")
    return sum(macs.values())


def has_validation(points: Sequence[Point]) -> bool:
    """Whether all runs have a validation loss over the same pairs."""
    return all(p.validation_loss is not None for p in points) and len({p.val_data for p in points}) == 1


def measured(points: Sequence[Point]) -> str:
    """What the loss of these runs is, in words."""
    if has_validation(points):
        return f"validation loss over {points[0].val_data}"
    return f"mean training loss of the last {TAIL:.0%} of the steps"


def loss_of(point: Point, on_validation: bool) -> tuple[float, float]:
    """A run's loss and its standard error, 0 where it is not known."""
    if on_validation and point.validation_loss is not None:
        return point.validation_loss, 0.0
    return point.training_loss, point.training_error


def refuse_what_differs(points: Sequence[Point], over: str) -> None:
    """Raise RefusedError where runs are one and the same, or differ in what would be taken for the effect of N."""
    folders = [Path(point.run).resolve() for point in points]
    if twice := next((f for i, f in enumerate(folders) if f in folders[:i]), None):
        raise RefusedError(f"run {twice} is given twice. Give each run once.")
    on_validation = has_validation(points)
    if not on_validation:
        refuse_mixture(
            points,
            "global batch sizes",
            lambda p: p.global_batch,
            "The contrastive loss depends on the batch it is taken over. Fit runs of one batch size, or train with "
            "--val-data: the validation loss is taken over the same pairs whatever the batch size.",
        )
    refuse_mixture(points, "image sizes", lambda p: p.image_size, "Fit runs of one image size.")
    if not on_validation:
        advice = "Fit runs on one set of data, or train with --val-data."
        refuse_mixture(points, "training data", lambda p: p.train_data, advice)
    # A distilled model's validation loss is CLIP's; SigLIP's is its own.
    refuse_mixture(
        points,
        "objectives",
        lambda p: "CLIP" if on_validation and p.objective != "SigLIP" else p.objective,
        "Fit runs of one objective.",
    )
    for kind in kinds_of(points):
        own = [point for point in points if point.kind == kind]
        if over == "parameters":
            advice = "Give runs of one length, or use --over compute."
            refuse_mixture(own, "samples seen", lambda p: p.samples, advice, slack=ALIKE)
        elif over == "samples":
            refuse_mixture(own, "parameters", lambda p: p.parameters, "Give runs of one model, or use --over compute.")


def refuse_mixture(
    points: Sequence[Point], name: str, value: Callable[[Point], Any], advice: str, slack: float = 0.0
) -> None:
    """Raise RefusedError, naming a run of each value, unless all values are equal or, with ``slack``, nearly."""
    runs: dict[Any, str] = {}
    for point in points:
        runs.setdefault(value(point), point.run)
    if len(runs) > 1 and not (slack and max(runs) <= (1 + slack) * min(runs)):
        found = ", ".join(f"{v:,}" if isinstance(v, int) else str(v) for v in runs)
        named = ", ".join(runs.values())
        raise RefusedError(f"the runs differ in {name}: {found} ({named}). {advice}")


def kinds_of(points: Sequence[Point]) -> list[str]:
    """The kinds in the order in which they are first given."""
    return list(dict.fromkeys(point.kind for point in points))
