"""Reads the folder of a finished run, as ``python -m training`` and ``python -m evaluate zero-shot`` leave it.

RUN/settings.json   resolved settings, with "model", "train_data", "command"
RUN/metrics.jsonl   a row a step: step, loss, lr, samples_seen, …
RUN/train.json      model, steps, train_minutes, images_per_s, parameters, samples_seen, final_loss, …
RUN/checkpoint.pt   OpenCLIP's training-checkpoint form
RUN/zero-shot.json  from ``evaluate zero-shot``
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate.errors import RefusedError

SETTINGS, METRICS, TRAIN, CHECKPOINT, ZERO_SHOT = (
    "settings.json",
    "metrics.jsonl",
    "train.json",
    "checkpoint.pt",
    "zero-shot.json",
)


@dataclass(frozen=True)
class Run:
    """A run's records. The checkpoint is not read here and need not be there."""

    path: Path
    settings: dict[str, Any]
    train: dict[str, Any]
    zero_shot: dict[str, Any]
    steps: list[float]  # of the rows with a finite loss
    losses: list[float]
    non_finite: int  # rows whose loss is NaN or infinite

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.zero_shot["model"])

    @property
    def checkpoint(self) -> Path:
        """Where the run's weights are."""
        return self.path / CHECKPOINT


def read_run(path: Path, sets: tuple[str, ...]) -> Run:
    """Read and check a run whose zero-shot result has the figures of ``sets``.

    Raises RefusedError: a file is missing or malformed, or the files are of different models.
    """
    if not path.is_dir():
        raise RefusedError(f"run {path}: no such folder. Give a folder that `python -m training` wrote.")
    settings = read_json(path / SETTINGS, ("model", "train_data", "command"))
    train = read_json(path / TRAIN, ("model", "steps", "train_minutes", "images_per_s", "samples_seen"))
    zero_shot = read_json(
        path / ZERO_SHOT,
        ("model", "kind", "dataset", "results", "manifests", "checkpoint", "parameters", "image_size", "command"),
    )
    models = {SETTINGS: settings["model"], TRAIN: train["model"], ZERO_SHOT: zero_shot["model"]}
    if len(set(models.values())) > 1:
        raise RefusedError(
            f"{path}: its files are of different models: {models}. Evaluate this run's checkpoint again."
        )
    results, manifests, checkpoint = (zero_shot[name] for name in ("results", "manifests", "checkpoint"))
    if not (isinstance(results, dict) and isinstance(manifests, dict) and isinstance(checkpoint, dict)):
        raise RefusedError(f"{path / ZERO_SHOT} is not as `evaluate zero-shot` writes it. Evaluate the run again.")
    missing = [name for name in sets if not isinstance(results.get(name), dict) or "classes" not in results[name]]
    if missing:
        raise RefusedError(f"{path / ZERO_SHOT} has no figures for {', '.join(missing)}. Evaluate the run again.")
    steps, losses, non_finite = read_losses(path / METRICS)
    return Run(path, settings, train, zero_shot, steps, losses, non_finite)


def read_json(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """A JSON object that has ``names``. Raises RefusedError that says which program writes the file."""
    writer = "python -m evaluate zero-shot" if path.name == ZERO_SHOT else "python -m training"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RefusedError(f"{path} is missing. `{writer}` writes it: run that first.") from None
    except ValueError as error:
        raise RefusedError(f"{path} is not JSON ({error}). `{writer}` writes it: run that again.") from error
    missing = [name for name in names if not isinstance(found, dict) or name not in found]
    if missing:
        raise RefusedError(f"{path} has no {', '.join(missing)}. `{writer}` writes it: run that again.")
    return found


def read_losses(path: Path) -> tuple[list[float], list[float], int]:
    """Steps and losses of the rows with a finite loss, and the number of other rows.

    A last line without its end is left out (a run that was killed). Raises RefusedError: missing, malformed, or no row.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        raise RefusedError(f"{path} is missing. `python -m training` writes it: run that first.") from None
    except UnicodeDecodeError as error:
        raise RefusedError(f"{path} is not UTF-8 text ({error.reason}). Run the training again.") from error
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    by_step: dict[float, float] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            # Should a step be there twice, the later row is the one that counts.
            by_step[float(row["step"])] = float("nan" if row["loss"] is None else row["loss"])
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError(
                f"{path}, line {number}: {type(error).__name__}: {error}. Run the training again."
            ) from error
    points = sorted((step, loss) for step, loss in by_step.items() if math.isfinite(loss))
    if not points:
        raise RefusedError(f"{path} has no row with a finite loss. Look at the training's own output.")
    return [step for step, _ in points], [loss for _, loss in points], len(by_step) - len(points)
