import io
import os
import random
import subprocess
import sys
import tarfile
from contextlib import closing
from importlib import metadata
from itertools import islice
from pathlib import Path

import fsspec
import pytest
from webdataset.tariterators import group_by_keys

from training.data import stream
from training.data.stream import UnreachableError, open_stream, read_samples


class Opened:
    """What fsspec.open gives."""

    def __init__(self, file):
        self.open = file


@pytest.mark.parametrize("can_seek", [True, False])
def test_a_connection_that_breaks_off_is_taken_up_where_it_broke(monkeypatch, can_seek):
    data = bytes(range(256)) * 17
    limits = iter([1000, 2500, 10**9])
    waits = []

    class File(io.BytesIO):
        def __init__(self):
            super().__init__(data)
            self.left = next(limits)

        def seek(self, *arguments):
            if not can_seek:
                raise ValueError("Cannot seek streaming HTTP file")
            return super().seek(*arguments)

        def read(self, size=-1):
            if not self.left:
                raise ConnectionResetError("gone")
            found = super().read(min(size, self.left))
            self.left -= len(found)
            return found

    monkeypatch.setattr(stream.time, "sleep", waits.append)
    monkeypatch.setattr(fsspec, "open", lambda *_, **__: Opened(File))
    with open_stream("remote", "any://address") as file:
        assert file.read() == data
    assert waits == [stream.WAITS[0]] * 2
    assert next(limits, None) is None


def test_an_address_that_gives_nothing_is_given_up(monkeypatch):
    def broken():
        raise ConnectionResetError("gone")

    waits = []
    monkeypatch.setattr(stream.time, "sleep", waits.append)
    monkeypatch.setattr(fsspec, "open", lambda *_, **__: Opened(broken))
    message = r"ConnectionResetError: gone"
    with open_stream("remote", "any://address") as file, pytest.raises(UnreachableError, match=message):
        file.read()
    assert waits == list(stream.WAITS)


def test_tries_that_take_long_count_as_waiting(monkeypatch):
    """A filesystem that tries again by itself, or a server that is silent."""
    now, waits = 0.0, []

    def broken():
        nonlocal now
        now += 11
        raise TimeoutError("silent")

    monkeypatch.setattr(stream.time, "monotonic", lambda: now)
    monkeypatch.setattr(stream.time, "sleep", waits.append)
    monkeypatch.setattr(fsspec, "open", lambda *_, **__: Opened(broken))
    with open_stream("remote", "any://address") as file, pytest.raises(UnreachableError, match=r"TimeoutError: silent"):
        file.read()
    assert waits == [stream.WAITS[0]]


class AnswerError(Exception):
    """What an http server answers."""

    def __init__(self, status):
        super().__init__(str(status))
        self.status = status


@pytest.mark.parametrize(
    ("cause", "is_there"),
    [
        (AnswerError(404), False),
        (AnswerError(403), False),
        (AnswerError(503), True),
        (ConnectionRefusedError("no"), True),
        (None, False),
    ],
)
def test_http_that_does_not_answer_is_not_taken_for_a_missing_file(monkeypatch, cause, is_there):
    """fsspec raises FileNotFoundError for all of them."""
    answers = []

    def opener():
        answers.append(cause)
        if len(answers) == 1:
            raise FileNotFoundError("http://host/x") from cause
        return io.BytesIO(b"data")

    monkeypatch.setattr(stream.time, "sleep", lambda _: None)
    monkeypatch.setattr(fsspec, "open", lambda *_, **__: Opened(opener))
    with open_stream("remote", "http://host/x") as file:
        if is_there:
            assert file.read() == b"data"
        else:
            with pytest.raises(FileNotFoundError):
                file.read()


def test_a_server_without_ranges_is_read_from_the_beginning(monkeypatch):
    data, options = bytes(5000), []

    def opener(address, mode, **given):
        class File(io.BytesIO):
            def read(self, size=-1):
                if not given and self.tell() >= 2000:
                    raise ValueError("The HTTP server doesn't appear to support range requests")
                return super().read(min(size, 2000 - self.tell() if not given else size))

        options.append(given)
        return Opened(lambda: File(data))

    monkeypatch.setattr(fsspec, "open", opener)
    with open_stream("remote", "http://address") as file:
        assert file.read() == data
    assert options == [{}, {"block_size": 0}]


@pytest.mark.parametrize("error", [FileNotFoundError("no such key"), PermissionError("not yours")])
def test_what_is_not_there_is_not_asked_for_again(monkeypatch, error):
    def opener(*_, **__):
        raise error

    monkeypatch.setattr(fsspec, "open", opener)
    with pytest.raises(type(error)), open_stream("remote", "any://address") as file:
        file.read()


def test_a_command_that_fails_is_an_error_after_what_it_gave():
    with open_stream("pipe", "printf abc; exit 3") as file:
        assert file.read(2) == b"ab"
        with pytest.raises(OSError, match=r"status 3"):
            file.read()


@pytest.mark.parametrize(
    "command", ["yes", "yes | cat; true", "printf 'y\\ny\\n'; sleep 1000; true", "yes & sleep 1000 &"]
)
def test_a_command_that_is_not_read_to_its_end_ends_with_all_that_it_started(holders, command):
    file = open_stream("pipe", f"exec 3>{holders.path}; {command}")
    assert file.raw.read(4) == b"y\ny\n"
    file.close()
    assert holders.read() == b""
    assert file.raw._process.returncode is not None
    assert file.raw._guard.returncode is not None


def test_samples_are_grouped_in_one_shard_and_members_are_bytes(tmp_path):
    """A key that the next shard goes on with, upper case, folders, names without a dot, and no member unpickled."""
    path = tmp_path / "a.tar"
    members = ["a.JPG", "a.txt", "dir/b.jpg", "README", "__meta__/x.json", "c.pickle", "c.pyd", "c.b.jpg"]
    with tarfile.open(path, "w") as tar:
        for name in members:
            info = tarfile.TarInfo(name)
            info.size = 5
            tar.addfile(info, io.BytesIO(b"cos\n."))
    with closing(read_samples("file", str(path))) as samples:
        found = [{key: value for key, value in sample.items() if key != "__url__"} for sample in samples]
    assert found == [
        {"__key__": "a", "jpg": b"cos\n.", "txt": b"cos\n."},
        {"__key__": "dir/b", "jpg": b"cos\n."},
        {"__key__": "c", "pickle": b"cos\n.", "pyd": b"cos\n.", "b.jpg": b"cos\n."},
    ]


def test_samples_are_those_of_webdataset(monkeypatch):
    """Where it raises for two members of a suffix, the samples before that are."""
    rng, raised = random.Random(0), 0
    keys, suffixes = ["a", "b", "d.e/a"], ["", ".jpg", ".JPG", ".b.jpg", ".txt", ".json", "."]
    for _ in range(300):
        names = [rng.choice(keys) + rng.choice(suffixes) for _ in range(rng.randrange(20))]
        members = [{"fname": name, "data": b"", "__url__": ""} for name in names]
        wanted = []
        monkeypatch.setattr(stream, "_members", lambda _, members=members: iter(members))
        found = list(read_samples("file", os.devnull))
        try:
            for sample in group_by_keys(iter(members)):
                wanted.append(sample)
        except ValueError:
            raised += 1
            assert stream.TWICE in found[len(wanted)]
            found = found[: len(wanted)]
        assert found == wanted
    assert 50 < raised < 250, "both ways are tried"


def test_reading_can_stop_early(tmp_path, make_set):
    make_set(tmp_path, [5])
    with closing(read_samples("file", str(tmp_path / "00000.tar"))) as samples:
        assert [s["__key__"] for s in islice(samples, 2)] == ["s0-0", "s0-1"]


@pytest.mark.slow
@pytest.mark.parametrize("version", sorted({"0.2.86", "0.2.111", "1.0.2"} - {metadata.version("webdataset")}))
def test_every_release_line_of_webdataset(tmp_path, version):
    """The tests of reading on the others, which pip puts beside; where it cannot, the test is skipped."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    installed = subprocess.run([*pip, f"webdataset=={version}"], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip cannot install webdataset {version} here: {installed.stderr.strip()[-200:]}")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import webdataset, pytest; "
        f"assert webdataset.__file__.startswith({str(tmp_path)!r}); "
        "sys.exit(pytest.main(['-m', 'not slow', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
    )
    tests = [f"tests/training/data/test_{name}.py" for name in ("stream", "source", "read", "loader")]
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program, *tests], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_member_that_claims_more_than_it_holds_is_refused_before_it_is_read(tmp_path):
    """A sparse member of a terabyte takes no room in the file."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.jpg")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
        content = b"0\n".ljust(512, b"\0")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    with pytest.raises(tarfile.ReadError, match="sparse or more than"):
        list(read_samples("file", str(path)))


@pytest.mark.parametrize("kind", ["one member's", "all members'", "a long name"])
def test_a_header_of_megabytes_is_refused_before_it_is_read(tmp_path, kind):
    long, path = "x" * (2 << 20), tmp_path / "x.tar"
    form = tarfile.GNU_FORMAT if kind == "a long name" else tarfile.PAX_FORMAT
    with tarfile.open(path, "w", format=form, pax_headers={"comment": long} if kind == "all members'" else None) as tar:
        info = tarfile.TarInfo(long if kind == "a long name" else "a.jpg")
        info.pax_headers = {"comment": long} if kind == "one member's" else {}
        tar.addfile(info)
    with pytest.raises(tarfile.ReadError, match=r"a header of 2\d+ bytes, more than 1048576"):
        list(read_samples("file", str(path)))


def test_what_is_compressed_is_not_unpacked(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    with pytest.raises(tarfile.ReadError):
        list(read_samples("file", str(tmp_path / "x.tar")))
