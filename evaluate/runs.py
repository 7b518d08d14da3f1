"""Reads the folder of a run, as ``python -m training`` leaves it, finished or not.

RUN/settings.json   resolved settings, with "model", "train_data", "command"
RUN/metrics.jsonl   a row a step: step, loss, lr, samples_seen, …
RUN/train.json      of a finished run: model, steps, train_minutes, images_per_s, parameters, samples_seen, …
RUN/checkpoint.pt   OpenCLIP's training-checkpoint form
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate.errors import RefusedError

SETTINGS, METRICS, TRAIN, CHECKPOINT = "settings.json", "metrics.jsonl", "train.json", "checkpoint.pt"
NUMBERS = ("steps", "train_minutes", "images_per_s", "samples_seen")  # of train.json


@dataclass(frozen=True)
class Run:
    """A run's records. The checkpoint is not read here and need not be there."""

    path: Path
    settings: dict[str, Any]
    train: dict[str, Any]  # empty where the run is not finished
    steps: list[float]  # of the rows with a finite loss
    losses: list[float]
    non_finite: int  # rows whose loss is NaN or infinite

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.settings["model"])

    @property
    def checkpoint(self) -> Path:
        """Where the run's weights are."""
        return self.path / CHECKPOINT


def is_run(path: Path) -> bool:
    """Whether the folder is that of a run."""
    return (path / SETTINGS).is_file() and (path / METRICS).is_file()


def read_run(path: Path) -> Run:
    """Read and check a run.

    Raises RefusedError: a file is missing or malformed, or the files are of different models.
    """
    settings = read_json(path / SETTINGS, ("model", "train_data", "command"))
    steps, losses, non_finite = read_losses(path / METRICS)
    train = {}
    if (path / TRAIN).exists():
        train = read_json(path / TRAIN, ("model", *NUMBERS))
        if train["model"] != settings["model"]:
            raise RefusedError(
                f"{path}: {SETTINGS} is of {settings['model']!r}, {TRAIN} of {train['model']!r}. "
                "Run the training again."
            )
        wrong = [name for name in NUMBERS if not is_number(train[name])]
        if wrong:
            raise RefusedError(f"{path / TRAIN}: {', '.join(wrong)} should be numbers. Run the training again.")
    return Run(path, settings, train, steps, losses, non_finite)


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_json(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """A JSON object of the training that has ``names``. Raises RefusedError that says what to do."""
    writer = "python -m training"
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
