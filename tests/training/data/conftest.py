"""Sets of tiny samples, and a decoder whose pictures show which random numbers it drew and how often it was asked."""

import os
import random
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from data_prep.errors import DataError
from data_prep.manifest import write_manifest
from data_prep.shards import ShardWriter
from training.data.loader import Loader
from training.settings import Settings


class FakeDecode:
    """The picture is four random numbers and the caption's length; a sample without `txt` is bad."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def __call__(self, sample):
        self.keys.append(sample["__key__"])
        if "txt" not in sample:
            raise DataError("no caption (txt)")
        drawn = [random.random(), *torch.rand(2).tolist(), float(len(sample["txt"]))]
        return torch.tensor(drawn).expand(3, 1, 4).contiguous(), sample["txt"].decode()


def tokenize(captions: list[str]) -> torch.Tensor:
    return torch.tensor([[len(caption), *caption.encode()[:3].ljust(3)] for caption in captions])


class Holders:
    """Tells which processes live: those that have opened `path` to write hold it, as do all that they start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> bytes:
        """What they wrote next; nothing once there were some and the last of them has ended."""
        assert select.select([self._end], [], [], 60)[0], "nothing was written and nothing has ended"
        return os.read(self._end, 1 << 16)

    def close(self) -> None:
        os.close(self._end)


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[Holders]:
    each = Holders(tmp_path / "holders")
    yield each
    each.close()


class Server:
    """The standard library's, on a folder; it sends files only from their beginning.

    A process of its own: workers that are forked from this one would hold its socket open.
    """

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout
        self.address = re.search(r"http://[\d.:]+", self._process.stdout.readline())[0]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Server]]:
    """serve(folder) starts a server, which ends with the test at the latest."""
    pytest.importorskip("aiohttp")
    with ExitStack() as servers:

        def start(folder: Path) -> Server:
            server = Server(folder)
            servers.callback(server.stop)
            return server

        yield start


@pytest.fixture
def decode() -> FakeDecode:
    return FakeDecode()


@pytest.fixture
def make_set() -> Callable[..., Path]:
    """make_set(folder, counts): shards with so many samples each; keys are sSHARD-NUMBER, as are the captions."""

    def make(folder: Path, counts: Sequence[int], bad: Sequence[str] = (), manifest: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        entries = []
        for number, count in enumerate(counts):
            with ShardWriter(folder / f"{number:05d}.tar") as writer:
                for index in range(count):
                    key = f"s{number}-{index}"
                    value = b'{"concept": "%d"}' % (index % 7)
                    members = {"jpg": b"picture", "txt": key.encode(), "json": value}
                    if key in bad:
                        del members["txt"]
                    writer.write(key, members)
            entries.append(writer.close())
        if manifest:
            write_manifest(folder, entries)
        return folder

    return make


@pytest.fixture
def make_loader(decode: FakeDecode) -> Iterator[Callable[..., Loader]]:
    """make_loader(folder, rank, world, state, **settings); ends its workers after the test."""
    loaders = []

    def make(data, rank=0, world=1, state=None, sources=None, **settings) -> Loader:
        values = {"batch_size": 4, "workers": 0, "seed": 3, "shuffle_buffer": 8, **settings}
        loader = Loader(
            Settings(train_data=str(data), **values), decode, tokenize, rank, world, state=state, sources=sources
        )
        loaders.append(loader)
        return loader

    yield make
    for loader in loaders:
        loader.close()
