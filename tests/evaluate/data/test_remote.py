"""A set at an address: copied once, kept while the server's file is the same, and every failure said."""

import functools
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from evaluate.data import remote
from evaluate.data.remote import bring
from evaluate.errors import RefusedError

from .test_webdataset import LABELS, png, read, write_set

pytest.importorskip("aiohttp")


class Server(ThreadingHTTPServer):
    """Serves a folder and remembers what was asked; `failing` paths answer 500, `cut` ones break off."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        self.got: list[str] = []
        self.failing: set[str] = set()
        self.cut: set[str] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(SimpleHTTPRequestHandler):
    """A plain file server without ranges, as many are."""

    server: Server

    def do_GET(self) -> None:
        self.server.got.append(self.path)
        if self.path in self.server.failing:
            self.send_error(500)
        elif self.path in self.server.cut:
            content = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        if self.path in self.server.failing:
            self.send_error(500)
        else:
            super().do_HEAD()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    write_set(tmp_path / "site" / "set", ["cat", "dog", "bird"])
    with Server(tmp_path / "site") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def shards(server: Server) -> list[str]:
    return [path for path in server.got if path.endswith(".tar")]


def test_a_set_is_copied_once(server: Server, tmp_path: Path) -> None:
    address = f"{server.address}/set/"
    dataset, folder = read(address)
    assert folder.pictures.labels == list(LABELS)
    assert [place.read() for place in folder.pictures.places] == [png(i, 8) for i in range(7)]
    assert folder.pictures.root == address
    assert len(dataset.templates["full"].texts) == 2
    assert shards(server) == [f"/set/test/{i}.tar" for i in range(3)]
    assert read(address)[1].pictures.list_sha256 == folder.pictures.list_sha256
    assert len(shards(server)) == 3
    assert str(folder.pictures.places[0].file).startswith(str(remote.cache()))


def test_a_changed_shard_comes_again_and_a_shorter_set_is_shorter(server: Server, tmp_path: Path) -> None:
    read(f"{server.address}/set")
    other = write_set(tmp_path / "other", ["cat", "dog", "bird"], labels=(0, 1, 2, 2, 2, 2))
    site = tmp_path / "site" / "set" / "test"
    (site / "2.tar").unlink()
    (site / "nshards.txt").write_text("2")
    (site / "1.tar").write_bytes((other / "test" / "1.tar").read_bytes() + bytes(512))  # another size
    assert read(f"{server.address}/set")[1].pictures.labels == [0, 2, 1, 2, 2, 2]
    assert shards(server)[3:] == ["/set/test/1.tar"]


def test_a_shard_of_the_same_size_and_another_time_comes_again(server: Server, tmp_path: Path) -> None:
    read(f"{server.address}/set")
    write_set(tmp_path / "other", ["cat", "dog", "bird"], labels=[2] * 7)
    shard = tmp_path / "site" / "set" / "test" / "0.tar"
    shard.write_bytes((tmp_path / "other" / "test" / "0.tar").read_bytes())
    os.utime(shard, (1_000_000_000, 1_000_000_000))
    assert read(f"{server.address}/set")[1].pictures.labels == [2, 2, 2, *LABELS[3:]]


def test_a_cache_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(RefusedError, match="Set XDG_CACHE_HOME"):
        bring("memory://bucket/set")


def test_missing_files(server: Server, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"/elsewhere has no test/nshards\.txt"):
        read(f"{server.address}/elsewhere")
    (tmp_path / "site" / "set" / "test" / "1.tar").unlink()
    with pytest.raises(RefusedError, match=r"1\.tar is missing, though nshards\.txt counts it"):
        read(f"{server.address}/set")


@pytest.mark.parametrize("name", ["test/nshards.txt", "classnames.txt", "test/1.tar"])
def test_a_failing_server_is_no_missing_file(server: Server, name: str) -> None:
    server.failing.add(f"/set/{name}")
    with pytest.raises(RefusedError, match=r"cannot be read .*500.*Run the same command again"):
        read(f"{server.address}/set")
    server.failing.clear()
    assert len(read(f"{server.address}/set")[1].pictures) == 7


def test_a_download_that_breaks_off_leaves_no_shard(server: Server) -> None:
    server.cut.add("/set/test/1.tar")
    with pytest.raises(RefusedError, match=r"1\.tar cannot be read"):
        read(f"{server.address}/set")
    assert {path.name for path in remote.cache().rglob("*.tar*")} == {"0.tar", "0.tar.mark"}
    server.cut.clear()
    assert len(read(f"{server.address}/set")[1].pictures) == 7
    assert shards(server).count("/set/test/0.tar") == 1


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(RefusedError, match="cannot be read"):
        bring("http://127.0.0.1:1/set")


def test_other_protocols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = write_set(tmp_path / "set", ["cat", "dog", "bird"])
    memory = fsspec.filesystem("memory")
    memory.put(str(source), "/bucket/set", recursive=True)
    try:
        assert read("memory://bucket/set")[1].pictures.labels == list(LABELS)
    finally:
        memory.rm("/bucket", recursive=True)
    with pytest.raises(RefusedError, match="cannot be opened"):
        read("nothing://set")


def test_a_protocol_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(RefusedError, match="s3fs for s3, gcsfs for gs"):
        bring("s3://bucket/set")


def test_the_page_of_a_set_is_the_address_of_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def note(address: str, **_: object) -> None:
        asked.append(address)
        raise ValueError("enough")

    monkeypatch.setattr(fsspec.core, "url_to_fs", note)
    for address in ("datasets/a/b", "datasets/a/b/tree/main/", "datasets/a/b/tree/main/sub", "datasets/a/b/resolve/v2"):
        with pytest.raises(RefusedError):
            bring(f"https://huggingface.co/{address}")
    base = "https://huggingface.co/datasets/a/b/resolve"
    assert asked == [f"{base}/main", f"{base}/main", f"{base}/main/sub", f"{base}/v2"]
