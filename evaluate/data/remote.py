"""Brings a set in CLIP_benchmark's layout from an address to this machine, once: its later readers find it here.

    root = bring("https://huggingface.co/datasets/clip-benchmark/wds_vtab-cifar10/tree/main")
    root = bring("s3://bucket/wds/imagenetv2")         # any address that fsspec knows

The copy lies in ~/.cache/open_clip_linear/webdatasets (or $XDG_CACHE_HOME/…); remove the folder to free the room.
Its small files are read anew each time; a shard is kept while its size and its server's mark (ETag or time) stay.
"""

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]

from data_prep import atomic
from evaluate.data.webdataset import NAMES, SHARDS, TEMPLATES, TEST, TYPE, shards_of
from evaluate.errors import RefusedError

# A data set's page on Hugging Face: USER/REPO, perhaps /tree/BRANCH; its files are at USER/REPO/resolve/BRANCH.
_PAGE = re.compile(r"(https://huggingface\.co/datasets/[^/]+/[^/]+)(?:/(?:tree|blob|raw|resolve)/(.+))?")

MARKS = ("ETag", "Last-Modified", "LastModified", "mtime")  # what file systems call a version of a file


def is_address(root: str) -> bool:
    """Whether `root` is an address and not a folder."""
    return "://" in root


def bring(address: str, split: str = TEST) -> Path:
    """The folder of this machine that holds one split of what `address` does.

    Raises:
        RefusedError: nothing in the layout is there, it cannot be reached, or a package for its protocol is missing.
    """
    address = address.rstrip("/")
    page = _PAGE.fullmatch(address)
    files = Files(f"{page[1]}/resolve/{page[2] or 'main'}" if page else address)
    folder = cache() / hashlib.sha256(address.encode()).hexdigest()[:16]
    try:
        (folder / split).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(
            f"{folder}, where {address} would be copied to, cannot be made ({error.strerror}). Set XDG_CACHE_HOME to "
            "a folder with room."
        ) from error
    if not files.small(f"{split}/{SHARDS}", folder):
        raise RefusedError(f"{address} has no {split}/{SHARDS}, so no set in CLIP_benchmark's webdataset layout.")
    for name in (NAMES, TEMPLATES, TYPE):
        files.small(name, folder)
    shards = shards_of(folder, split)
    for extra in {path.name for path in (folder / split).glob("*.tar")} - set(shards):
        (folder / split / extra).unlink()  # of an earlier, larger version of the set
    for number, shard in enumerate(shards):
        files.large(f"{split}/{shard}", folder, f"shard {number + 1} of {len(shards)}")
    return folder


def cache() -> Path:
    """Where copies lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "open_clip_linear" / "webdatasets"


class Files:
    """The files below an address."""

    def __init__(self, address: str) -> None:
        self._web = address.startswith(("http://", "https://"))
        # The proxy of the environment, as curl and pip use it; whole files forwards, which every server can.
        options: dict[str, Any] = {"client_kwargs": {"trust_env": True}} if self._web else {}
        self._reading: dict[str, Any] = {"block_size": 0} if self._web else {}
        try:
            self._system, self._base = fsspec.core.url_to_fs(address, **options)
        except ImportError as error:
            raise RefusedError(
                f"{address} needs a package that is not installed ({error}): aiohttp for https, s3fs for s3, gcsfs for "
                "gs. Install it with pip."
            ) from error
        except ValueError as error:
            raise RefusedError(f"{address} cannot be opened ({error}).") from error

    def small(self, name: str, folder: Path) -> bool:
        """Copy a file to `folder`; False, and none there, where the address has none."""
        try:
            content = self._system.cat_file(f"{self._base}/{name}")
        except FileNotFoundError as error:
            self._refuse_hidden_failure(f"{self._base}/{name}", error)
            (folder / name).unlink(missing_ok=True)
            return False
        except Exception as error:  # every file system has its own exceptions
            raise _unreachable(f"{self._base}/{name}", error) from error
        atomic.write_bytes(folder / name, content)
        return True

    def large(self, name: str, folder: Path, what: str) -> None:
        """Copy a file to `folder` unless that version of it is there. The whole file is there or none."""
        address, final, mark = f"{self._base}/{name}", folder / name, folder / f"{name}.mark"
        try:
            info = self._system.info(address)
            size = info.get("size")
            version = " ".join([str(size), *(str(info[mark]) for mark in MARKS if mark in info)])
            if final.exists() and mark.exists() and mark.read_text(encoding="utf-8") == version:
                return
            print(f"{what}: {address}, {size or 0:,} bytes", file=sys.stderr, flush=True)
            mark.unlink(missing_ok=True)
            with self._system.open(address, "rb", **self._reading) as source, atomic.writing(final) as file:
                shutil.copyfileobj(source, file, 1 << 20)
                if size is not None and file.tell() != size:
                    raise EOFError(f"{file.tell():,} of {size:,} bytes came")
        except FileNotFoundError as error:
            self._refuse_hidden_failure(address, error)
            raise RefusedError(f"{address} is missing, though {SHARDS} counts it.") from error
        except Exception as error:
            raise _unreachable(address, error) from error
        if size is not None:
            atomic.write_text(mark, version)

    def _refuse_hidden_failure(self, address: str, error: FileNotFoundError) -> None:
        """fsspec's http calls whatever fails while it asks a missing file; only the server's word for it is taken."""
        cause = error.__cause__
        if self._web and isinstance(cause, Exception) and getattr(cause, "status", None) not in (404, 410):
            raise _unreachable(address, cause) from error


def _unreachable(address: str, error: Exception) -> RefusedError:
    """What to do after a failed download."""
    return RefusedError(
        f"{address} cannot be read ({type(error).__name__}: {error}). Run the same command again: shards that came "
        "whole are kept."
    )
