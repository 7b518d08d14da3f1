"""Writes files and folders so that a reader sees all of one or none of it, even after a kill or a power cut.

Everything goes to a temporary name beside the final one, reaches the disk (fsync), and is renamed.

    atomic.write_text("result.json", text)
    with atomic.building("data/emoji") as folder: ...      # appears as data/emoji when the block ends
"""

import contextlib
import errno
import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from data_prep.errors import DataError


def write_text(path: Path | str, text: str) -> None:
    """Write `text` as UTF-8 to `path`, replacing an earlier file in one step; a file name's odd bytes as `\\udce9`."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write `data` to `path`, replacing an earlier file in one step; on failure the earlier file stays."""
    with writing(path) as file:
        file.write(data)


@contextlib.contextmanager
def writing(path: Path | str) -> Iterator[BinaryIO]:
    """Give a file to write; it becomes `path`, replacing an earlier one, when the block ends without an error."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            error.filename = str(path)  # writes do not say where the disk is full
        raise
    fsync(path.parent)


def replace_dir(tmp: Path | str, final: Path | str) -> None:
    """Bring every file of folder `tmp` to the disk and rename it to `final`, replacing an earlier folder.

    An earlier `final` is moved aside first and removed last, so a crash in between leaves both of them whole
    (the earlier one as `.NAME.replaced`).
    """
    tmp, final = Path(tmp), Path(final)
    fsync_tree(tmp)
    aside = final.with_name(f".{final.name}.replaced")
    if final.exists():
        _remove(aside)
        os.rename(final, aside)
    os.rename(tmp, final)
    fsync(final.parent)
    _remove(aside)


@contextlib.contextmanager
def building(final: Path | str) -> Iterator[Path]:
    """Give an empty folder beside `final` to build in; it becomes `final` when the block ends without an error.

    Yields:
        The temporary folder, `.NAME.building`; see `scratch` for what happens when the build is killed.

    Raises:
        DataError: another process is building the same `final` now.
    """
    final = Path(final)
    with scratch(final.with_name(f".{final.name}.building"), f"building {final}") as folder:
        yield folder
        replace_dir(folder, final)


@contextlib.contextmanager
def scratch(folder: Path, purpose: str) -> Iterator[Path]:
    """Give `folder` empty and locked; it is removed when the block ends, unless the block renamed it.

    The lock lives on the folder and goes with the process, so what a killed process left behind is recognised and
    emptied by the next one, and what a living one is using is not touched.

    Raises:
        DataError: another process is using the folder; `purpose` says what it is doing.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    with locked(folder, purpose):
        try:
            for child in folder.iterdir():
                _remove(child)
            yield folder
        finally:
            _remove(folder)


@contextlib.contextmanager
def locked(folder: Path, purpose: str, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a folder while the block runs, or share it; it goes with the process, however that ends.

    Raises:
        DataError: another process holds it; `purpose` says what it is doing.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not _lock(descriptor, folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            raise DataError(f"another process is {purpose} now; wait for it to end and run again")
        yield
    finally:
        os.close(descriptor)


def remove_left(path: Path) -> None:
    """Remove what killed processes left of `writing` this path; the caller knows that no living one writes it."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        left.unlink()


def _lock(descriptor: int, path: Path, how: int) -> bool:
    """Take the lock without waiting; False when it is held, or when the folder was renamed away meanwhile."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove(path: Path) -> None:
    """Remove a file or a folder with its content; nothing when it is not there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fsync_tree(folder: Path) -> None:
    """Bring every file and folder below `folder`, and `folder` itself, to the disk."""
    for root, _, files in os.walk(folder):
        for name in files:
            fsync(Path(root) / name)
        fsync(Path(root))


def fsync(path: Path) -> None:
    """Bring one file's content, or one folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
