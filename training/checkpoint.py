"""A run's checkpoints: each whole or not there, checked when read, written while training goes on.

    checkpoints/step-00001000.pt          OpenCLIP's training-checkpoint form: `create_model(pretrained=FILE)` loads it
    checkpoints/step-00001000.pt.sha256   its checksum, as `sha256sum --check` reads it

The checksum's file is in place before the checkpoint's own, so a checkpoint that can be seen can be checked.
Cost: training waits for the copy to host memory, and for an earlier write that is not done yet.
"""

import hashlib
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

from data_prep import atomic
from data_prep.manifest import sha256_file

_NAME = re.compile(r"step-(\d{8,})\.pt")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or used; the message names the file and the reason."""


class Writer:
    """Writes checkpoints of a run into `folder` on a thread of its own and keeps the newest `keep` (0: all)."""

    def __init__(self, folder: Path, keep: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in (".step-*.tmp", ".*.sha256.*.tmp"):  # of a process that was killed in the middle of a write
            for left in folder.glob(pattern):
                left.unlink(missing_ok=True)
        self.folder = folder
        self.keep = keep
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Copy `state` to host memory and write it beside the training as the checkpoint of `step`.

        Raises CheckpointError where an earlier write failed: what cannot be saved should not be computed.
        """
        self.wait()
        copy = on_host(state)
        self._thread = threading.Thread(target=self._write, args=(step, copy), name=f"checkpoint of step {step}")
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        """Whether a write has failed already; the next `save` or `wait` raises it."""
        return self._error is not None

    def wait(self) -> None:
        """Return when the last checkpoint is on the disk. Raises CheckpointError where it could not be written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise CheckpointError(f"{self.folder}: the checkpoint could not be written: {error}") from error

    def _write(self, step: int, state: dict[str, Any]) -> None:
        try:
            write(self.folder / f"step-{step:08d}.pt", state)
            for old in found(self.folder)[self.keep :] if self.keep else []:
                old.unlink(missing_ok=True)
                _checksum_file(old).unlink(missing_ok=True)
        except BaseException as error:  # it is raised in the training's own thread, by wait()
            self._error = error


def write(path: Path, state: dict[str, Any]) -> None:
    """Write one checkpoint and its checksum; a reader sees all of it or nothing."""
    with atomic.writing(path) as file:
        hashing = _HashingFile(file)
        try:
            torch.save(state, cast(IO[bytes], hashing))
        except RuntimeError as error:  # torch's own words say nothing of the disk
            raise hashing.error or error from error
        atomic.write_text(_checksum_file(path), f"{hashing.sha256.hexdigest()}  {path.name}\n")


def on_host(value: Any) -> Any:
    """A copy of nested dicts, lists and tuples whose tensors are on the CPU and share no memory with the original."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)  # the very tensors of a training on CPUs change in its next step
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_host(item) for item in value)
    return value


def step_of(path: Path) -> int:
    """The step in a checkpoint's name; -1 where it is no checkpoint's name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def found(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first, unchecked."""
    return sorted((path for path in folder.glob("step-*.pt") if step_of(path) >= 0), key=step_of, reverse=True)


def newest(folder: Path, passed_over: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that equals its checksum; `passed_over` is told of each newer one and why.

    Raises CheckpointError where there are checkpoints and none verifies: starting anew would be a surprise.
    """
    paths = found(folder)
    for path in paths:
        reason = damage(path)
        if reason is None:
            return path
        passed_over(f"{path} is passed over: {reason}")
    if paths:
        raise CheckpointError(
            f"{folder}: none of its {len(paths)} checkpoints can be used. Remove the folder to start the run anew"
        )
    return None


def put_aside(folder: Path, step: int) -> list[Path]:
    """Rename the checkpoints of steps after `step`, so that none is taken for this run's; returns the new names."""
    renamed = []
    for path in found(folder):
        if step_of(path) > step:
            aside = path.with_name(path.name + ".aside")
            path.replace(aside)
            renamed.append(aside)
    return renamed


def damage(path: Path) -> str | None:
    """Why a checkpoint cannot be trusted; None where its content equals its checksum."""
    try:
        words = _checksum_file(path).read_text(encoding="utf-8", errors="replace").split()
        if not words:
            return f"{_checksum_file(path).name} is empty"
        equal = sha256_file(path) == words[0]
        return None if equal else "its content does not equal its checksum (damaged or cut short)"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def load(path: Path) -> dict[str, Any]:
    """The state in a checkpoint, tensors on the CPU (mapped from the file), never unpickling code.

    Raises CheckpointError where the file is no checkpoint of this trainer.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises many kinds for files that are not its own
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}") from error
    if not isinstance(state, dict) or not {"state_dict", "optimizer", "rng", "data", "step"} <= set(state):
        raise CheckpointError(f"{path} holds weights alone; to start a run from them use --init-from")
    return state


def _checksum_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


class _HashingFile:
    """Passes what is written on to `file` and hashes it on the way, so that no checkpoint is read again for it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()
