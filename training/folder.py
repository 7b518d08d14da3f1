"""A run's folder: who may write in it, what it holds of earlier, and what is left there at the end."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from data_prep import atomic
from training import checkpoint
from training.settings import Settings, SettingsError
from training.state import Parts, Progress

CHECKPOINTS, SUMMARY, WEIGHTS, AVERAGED = "checkpoints", "train.json", "checkpoint.pt", "checkpoint-ema.pt"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; the lock goes with it, also when it is killed.

    A POSIX lock: workers that outlive a killed process by seconds do not inherit it, as they would flock's.
    Raises SettingsError where the folder cannot be written, or another process is training in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise SettingsError(f"--output {folder} cannot be written: {error.strerror}") from error
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise SettingsError(f"{folder}: another process is training there now; choose another --name") from None
        for left in folder.glob(".*.tmp"):  # of a process that was killed in the middle of a write
            left.unlink(missing_ok=True)
        yield
    finally:
        lock.close()


def checkpoint_to_resume(folder: Path, settings: Settings) -> tuple[Path | None, list[str]]:
    """The checkpoint that `--resume` means, checked, and a sentence for each newer one that is damaged.

    Raises:
        SettingsError: the folder holds a run that this one was not asked to continue, or the file is not there.
        CheckpointError: no checkpoint verifies.
    """
    passed_over: list[str] = []
    if settings.resume == "auto":
        return checkpoint.newest(folder / CHECKPOINTS, passed_over.append), passed_over
    if (folder / WEIGHTS).exists():
        raise SettingsError(f"{folder} holds a finished run; choose another --output or --name, or remove it")
    if not settings.resume:
        if checkpoint.found(folder / CHECKPOINTS):
            raise SettingsError(
                f"{folder} holds an unfinished run; --resume auto continues it, or choose another --name"
            )
        return None, []
    path = Path(settings.resume)
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "no such file"
        raise SettingsError(f"--resume {path}: {found}; give a checkpoint's path, or auto")
    if not path.with_name(f"{path.name}.sha256").exists():
        raise SettingsError(
            f"--resume {path}: there is no {path.name}.sha256 beside it, so it is no checkpoint of this trainer, or "
            "was copied without its checksum; to start a run from weights use --init-from"
        )
    if reason := checkpoint.damage(path):
        raise checkpoint.CheckpointError(f"--resume {path}: {reason}")
    return path, []


def check_room(folder: Path, parts: Parts, settings: Settings) -> None:
    """Raise SettingsError where the disk could not hold the checkpoints that are kept and one more."""
    weights = sum(t.numel() * t.element_size() for t in parts.model.state_dict().values())
    one = weights * (4 if settings.ema else 3)  # with an optimizer of two moments
    needed = one * (settings.keep or 1) + one + weights
    held = sum(path.lstat().st_size for path in checkpoint.found(folder / CHECKPOINTS))  # a link may lead nowhere
    free = shutil.disk_usage(folder).free
    if free + held < needed:
        raise SettingsError(
            f"{folder}: the checkpoints of the run take about {needed:,} bytes and {free:,} are free; make room, or "
            "lower --keep"
        )


def is_finished(folder: Path, settings: Settings) -> bool:
    """Whether the run's results are there, of at least as many steps or epochs as these settings ask for."""
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        enough = summary["steps"] >= settings.max_steps and summary["epochs"] >= settings.epochs
        return bool(enough) and (folder / WEIGHTS).exists()
    except (OSError, ValueError, KeyError, TypeError):  # not there, or not as this program writes it
        return False


def put_results_aside(folder: Path) -> None:
    """Rename the weights of a run that was finished and goes on: they are not its end, and mark it as finished."""
    for name in (WEIGHTS, AVERAGED):
        path = folder / name
        if path.exists():
            path.replace(path.with_name(f"earlier-{name}"))


def write_results(
    folder: Path,
    parts: Parts,
    progress: Progress,
    weights: dict[str, Any],
    averages: dict[str, Any],
    settings: Settings,
    facts: dict[str, Any],
) -> None:
    """The summary, then the weights in OpenCLIP's training-checkpoint form: they are what marks a run as finished.

    Args:
        weights: the model's state dict.
        averages: those of its parameters that a moving average was kept of; they go to checkpoint-ema.pt.
        settings: kept beside the weights: --init-from reads the image size there.
        facts: model, command, versions and the like, for the summary.
    """
    summary = {
        "steps": progress.step,
        "train_minutes": progress.seconds / 60,
        "images_per_s": progress.samples_seen / max(progress.seconds, 1e-9),
        "parameters": sum(p.numel() for p in parts.model.parameters()),
        "samples_seen": progress.samples_seen,
        "final_loss": progress.loss,
        "skipped_steps": parts.guard.skipped,
    }
    atomic.write_text(folder / SUMMARY, json.dumps(facts | summary, indent=2) + "\n")
    common = {"name": settings.model, "step": progress.step, "settings": asdict(settings)}
    if averages:
        _save(folder / AVERAGED, common | {"state_dict": weights | averages})
    _save(folder / WEIGHTS, common | {"state_dict": weights})


def _save(path: Path, state: dict[str, Any]) -> None:
    with atomic.writing(path) as file:
        torch.save(state, file)
