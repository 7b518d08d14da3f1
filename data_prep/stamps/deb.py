"""Fetches a Debian package by apt and reads what is in it, without unpacking: nothing of it is run or written to disk.

A .deb is an `ar` archive of `control.tar.*` (what the package is) and `data.tar.*` (its files).
"""

import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from data_prep.errors import DataError

_MAGIC = b"!<arch>\n"
_HEADER = 60  # bytes: name 16, …, size 10 at 48, end mark 2
_MOST_BYTES = 1 << 26  # of one file; a damaged or hostile package may claim any size


def download(package: str, folder: Path) -> Path:
    """Let apt fetch the package into an empty `folder` (apt compares its hash with Debian's signed list).

    Raises:
        DataError: there is no apt here, or it does not get the package.
    """
    other = f"take it from https://packages.debian.org/{package} where there is one, and give it as --deb FILE"
    try:
        done = subprocess.run(
            ["apt-get", "download", package], cwd=folder, capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        raise DataError(f"this machine has no apt-get to download {package}; {other}") from None
    found = sorted(folder.glob("*.deb"))
    if done.returncode or len(found) != 1:
        said = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()
        reason = said[-1].strip() if said else f"exit code {done.returncode}"
        raise DataError(f"apt-get download {package} failed: {reason}; run apt-get update and try again, or {other}")
    return found[0]


def control(path: Path) -> dict[str, str]:
    """The package's fields ("Package", "Version", …), one line each.

    Raises:
        DataError: the file is no Debian package, or is cut short or damaged.
    """
    for _, content in files(path, lambda name: name == "control", part="control.tar"):
        lines = content.decode("utf-8", "replace").splitlines()
        pairs = [line.partition(":") for line in lines if not line.startswith((" ", "\t"))]
        return {name: value.strip() for name, _, value in pairs}
    raise DataError(f"{path} is no Debian package: it has no control file")


def files(path: Path, wanted: Callable[[str], bool], part: str = "data.tar") -> Iterator[tuple[str, bytes]]:
    """(name without "./", content) of the wanted plain files, in the package's order.

    Raises:
        DataError: the file is no Debian package, is cut short or damaged, or packed in a way Python cannot read.
    """
    try:
        with open(path, "rb") as file:
            _find_part(file, path, part)
            with tarfile.open(fileobj=file, mode="r|*") as tar:
                for info in tar:
                    name = info.name.removeprefix("./")
                    if not info.isreg() or not wanted(name):
                        continue
                    if info.size > _MOST_BYTES:
                        raise DataError(f"{path}: {name} is of {info.size:,} bytes, more than {_MOST_BYTES:,}")
                    content = tar.extractfile(info)
                    assert content is not None  # a plain file
                    yield name, content.read()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path}: its {part} is damaged or packed in a way that Python cannot read: {error}") from error


def _find_part(file: BinaryIO, path: Path, part: str) -> None:
    """Leave `file` at the first byte of the archive's member whose name starts with `part`."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise DataError(f"{path} is no Debian package: it does not start with {_MAGIC!r}")
    total = path.stat().st_size
    while header := file.read(_HEADER):
        name, size = header[:16].decode("ascii", "replace"), header[48:58].strip()
        if len(header) < _HEADER or header[58:] != b"`\n" or not size.isdigit():
            raise DataError(f"{path} is damaged: no readable header at byte {file.tell() - len(header)}")
        end = file.tell() + int(size)
        if end > total:
            raise DataError(f"{path} is cut short: {total:,} bytes, and {name.strip()} ends at {end:,}")
        if name.startswith(part):
            return
        file.seek(end + end % 2)  # members start at even bytes
    raise DataError(f"{path} is no Debian package: it has no {part}")
