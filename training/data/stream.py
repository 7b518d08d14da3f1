"""A shard's bytes and samples in order: from a file, an address (http, s3 … through fsspec) or a command (pipe:).

    with closing(read_samples("file", "00000.tar")) as samples: ...     # {"__key__": "a", "jpg": b"…", "txt": b"…"}

What kind a shard is was decided by the words of --train-data (source.py), never by the look of its name. Grouping by
key is webdataset's, one shard at a time, so that no sample is put together from two shards; its decoders, which
unpickle members, are not used.
"""

import io
import os
import re
import signal
import subprocess
import tarfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Literal, Self

import fsspec  # type: ignore[import-untyped]
from webdataset.tariterators import base_plus_ext, group_by_keys

from data_prep.errors import DataError
from data_prep.shards import KEY

Sample = dict[str, Any]
Kind = Literal["file", "remote", "pipe"]
_GUARD = ["/bin/sh", "-c", "read -r line; kill -KILL 0"]  # waits for the end of its input, then ends its group
WAITS = (1.0, 4.0, 15.0)  # seconds before each new try; a shard is given up after their sum, if tries take long too
STALL = 15.0  # seconds for which an http server may be silent, as s3fs has it; aiohttp would wait five minutes
BUFFER = 1 << 20
_META = re.compile(r"__[^/]*__($|/)")  # what webdataset takes for data about the shard
LARGEST_MEMBER = 256 << 20  # bytes; no picture or caption comes near it
LARGEST_HEADER = 1 << 20  # bytes of what a tar says of its next member in a member before it, such as a long name
_SAYING_MORE = b"xgXLK"  # the types of those
TWICE = "__twice__"  # the suffix of a member whose own suffix its sample has already
_FINAL = (FileNotFoundError, PermissionError, DataError)  # trying again would not help
_FINAL_STATUS = (401, 403, 404, 410)  # nor after these answers of an http server


class UnreachableError(OSError):
    """Remote storage gave nothing however often it was asked; the cause is the last error."""


def open_stream(kind: Kind, address: str, waits: Sequence[float] = WAITS) -> BinaryIO:
    """The bytes of a shard; they can only be read forwards. Reading raises UnreachableError, `waits` being over.

    Raises:
        OSError: there is no such file.
        DataError: a package that reads this kind of address is not installed, which the message names, or none does.
    """
    if kind == "file":
        return open(address, "rb")
    return io.BufferedReader(_Remote(address, waits) if kind == "remote" else _Pipe(address), BUFFER)


def read_samples(kind: Kind, address: str, waits: Sequence[float] = WAITS) -> Generator[Sample, None, None]:
    """The samples of one shard as webdataset groups them: `__key__`, and bytes by suffix in small letters.

    One with two members of a suffix has the member `TWICE` as well.

    Raises:
        OSError, ValueError, EOFError, tarfile.TarError, zlib.error and others: the shard cannot be opened or read on.
    """
    with open_stream(kind, address, waits) as stream:
        yield from group_by_keys(_unrepeated(_members(stream)))


def _unrepeated(members: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same, but a sample's second member of a suffix, at which webdataset would raise, is its `TWICE`."""
    current, seen = None, set[str]()
    for member in members:
        key, suffix = base_plus_ext(member["fname"])
        if key is None:
            continue
        if key != current:
            current, seen = key, {KEY, "__url__"}
        suffix = TWICE if suffix.lower() in seen else suffix.lower()
        if suffix not in seen:
            seen.add(suffix)
            yield member | {"fname": f"{key}.{suffix}"}


def _members(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    """The plain files of an uncompressed tar, as webdataset's grouping takes them.

    Not webdataset's own iteration: it would give a sparse member the size that it claims, and unpack what is
    compressed, so that a file of kilobytes filled the memory.
    """
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as tar:
        for info in tar:
            tar.members = []  # type: ignore[attr-defined]  # it would remember every member
            if not info.isfile() or _META.match(info.name):
                continue
            if info.issparse() or info.size > LARGEST_MEMBER:
                raise tarfile.ReadError(f"a member of {info.size} bytes, sparse or more than {LARGEST_MEMBER}")
            file = tar.extractfile(info)
            yield {"fname": info.name, "data": file.read() if file else b"", "__url__": ""}
    while stream.read(BUFFER):  # to the end, where a command's failure shows
        pass


class _Header(tarfile.TarInfo):
    """A member's header. A damaged one, which a tar reader takes for the end without a word, is an error here.

    Where nothing more stands, not even the closing zeros, only a count finds what was lost.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _SAYING_MORE and header.size > LARGEST_HEADER:
            raise tarfile.ReadError(f"a header of {header.size} bytes, more than {LARGEST_HEADER}")
        return header

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"at byte {tarfile_.offset}: {error}") from error


class _Remote(io.RawIOBase):
    """An address read through fsspec; what breaks off is opened again and read on where it broke off."""

    def __init__(self, address: str, waits: Sequence[float]) -> None:
        self.address = address
        self.waits = waits
        self.position = 0
        self._options: dict[str, Any] = {}
        self._file: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        began = time.monotonic()
        for wait in (*self.waits, None):
            try:
                self._file = self._file or self._open()
                data = self._file.read(len(buffer))
                break
            except Exception as raised:  # every filesystem has its own exceptions for a lost connection
                self._drop()
                error = self._what_failed(raised)
                if isinstance(error, _FINAL):
                    raise
                if wait is None or time.monotonic() - began > sum(self.waits):
                    raise UnreachableError(f"{type(error).__name__}: {error}") from error
                if isinstance(error, ValueError) and "range" in str(error):
                    self._options = {"block_size": 0}  # a server that sends a file only from its beginning
                else:
                    time.sleep(wait)
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)

    def _what_failed(self, error: Exception) -> Exception:
        """The error; of fsspec's http the one behind it, as it calls whatever fails while it opens a file missing."""
        cause = error.__cause__
        if isinstance(error, FileNotFoundError) and self.address.startswith("http") and isinstance(cause, Exception):
            return error if getattr(cause, "status", 0) in _FINAL_STATUS else cause
        return error

    def _open(self) -> Any:
        try:
            if self.address.startswith("http"):
                _limit_stalls()
            file = fsspec.open(self.address, "rb", **self._options)
        except ImportError as error:
            raise DataError(f"{self.address} needs a package that is not installed: {error}") from error
        except ValueError as error:  # a protocol that nobody knows
            raise DataError(f"{self.address} cannot be opened: {error}") from error
        file = file.open()
        try:
            file.seek(self.position)
        except ValueError:  # a stream without seeking
            left = self.position
            while left and (passed := len(file.read(min(left, BUFFER)))):
                left -= passed
        return file

    def _drop(self) -> None:
        with suppress(Exception):
            if self._file is not None:
                self._file.close()
        self._file = None

    def close(self) -> None:
        self._drop()
        super().close()


def _limit_stalls() -> None:
    """Set `STALL` where fsspec's configuration has no other timeout for http."""
    import aiohttp

    kwargs = fsspec.config.conf.setdefault("http", {}).setdefault("client_kwargs", {})
    kwargs.setdefault("timeout", aiohttp.ClientTimeout(sock_connect=STALL, sock_read=STALL))


class _Pipe(io.RawIOBase):
    """The output of a shell command; a command that fails is an error at the end of what it gave.

    The command, with all that its shell starts, is in a process group of its own that `close` ends. Where this process
    dies instead, a command gets SIGPIPE with its next output, but one that stalls has none: so the group is led by a
    guard whose input ends with this process, and which then ends the group.
    """

    def __init__(self, command: str) -> None:
        self._guard = subprocess.Popen(
            _GUARD, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )
        self._process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=self._guard.pid,
        )

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._process.stdout.read(len(buffer))  # type: ignore[union-attr]
        if not data and (status := self._process.wait()):
            raise OSError(f"the command ended with status {status}")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._process.stdout.close()  # type: ignore[union-attr]
            # Not by ending the guard's input, which a process that was forked since may hold open. The group's number
            # is not given to another while its leader is not waited for.
            os.killpg(self._guard.pid, signal.SIGKILL)
            self._process.wait()
            self._guard.communicate()
        super().close()
