import json
import os
import socket
import time

import fsspec
import pytest

from data_prep.errors import DataError
from data_prep.manifest import ShardEntry
from training.data import source
from training.data.source import fingerprint, open_sources, recorded_counts
from training.data.stream import open_stream, read_samples
from training.settings import SettingsError


def counts(sources):
    return [[shard.samples for shard in each.shards] for each in sources]


def keys(each):
    return [s["__key__"] for shard in each.shards for s in read_samples(shard.kind, shard.address)]


@pytest.mark.parametrize("word", ["{}", "{}/manifest.jsonl", "{}/{{00000..00001}}.tar"])
def test_a_set_by_its_folder_its_manifest_or_a_pattern(tmp_path, make_set, word):
    folder = make_set(tmp_path / "set", [3, 2])
    (folder / "sizes.json").write_text('{"00000.tar": 3, "00001.tar": "2"}')
    (folder / "stray.tar").write_bytes(b"not named, never read")
    (each,) = open_sources(word.format(folder))
    assert [shard.name for shard in each.shards] == ["00000.tar", "00001.tar"]
    assert counts([each]) == [[3, 2]]
    assert keys(each) == ["s0-0", "s0-1", "s0-2", "s1-0", "s1-1"]
    assert each.shards[0].bytes == (folder / "00000.tar").stat().st_size
    assert recorded_counts([each]) == {}


def test_counts_by_img2dataset(tmp_path, make_set):
    folder = make_set(tmp_path, [3, 2], manifest=False)
    for number, count in enumerate([3, 2]):
        (folder / f"{number:05d}_stats.json").write_text(json.dumps({"count": 9, "successes": count}))
    assert counts(open_sources(f"{folder}/{{00000..00001}}.tar")) == [[3, 2]]


def test_without_counts_shards_are_read_once_and_what_was_found_is_recorded(tmp_path, make_set, capsys):
    folder = make_set(tmp_path, [3, 2], manifest=False)
    word = f"{folder}/{{00000..00001}}.tar"
    found = open_sources(word)
    assert counts(found) == [[3, 2]]
    assert "sizes.json" in capsys.readouterr().out
    record = recorded_counts(found)
    (folder / "00000.tar").write_bytes(b"")
    assert counts(open_sources(word, counts=record)) == [[3, 2]]
    assert recorded_counts(open_sources(word, counts=record)) == record
    with pytest.raises(DataError, match=r"00000.tar cannot be read as a shard"):
        open_sources(word)


def test_counts_are_kept_in_the_runs_folder_and_what_changed_is_counted_again(tmp_path, make_set, monkeypatch, capsys):
    one = make_set(tmp_path / "a", [3, 2, 4], manifest=False)
    two = make_set(tmp_path / "b", [6], manifest=False)
    words = f"{one}/{{00000..00002}}.tar::pipe:cat {two}/00000.tar"
    run = tmp_path / "run"
    run.mkdir()
    read = []

    def reading(kind, address):
        read.append(address.rpartition("/")[2])
        return read_samples(kind, address)

    monkeypatch.setattr(source, "read_samples", reading)
    found = open_sources(words, allow_pipe=True, folder=run)
    assert counts(found) == [[3, 2, 4], [6]]
    assert sorted(read) == ["00000.tar", "00000.tar", "00001.tar", "00002.tar"]
    assert [path.name for path in run.iterdir()] == ["counts.json"]
    read.clear()
    capsys.readouterr()
    again = open_sources(words, allow_pipe=True, folder=run)
    assert (again, read, capsys.readouterr().out) == (found, [], "")
    assert recorded_counts(again) == recorded_counts(found)
    make_set(tmp_path / "c", [5], manifest=False)
    (tmp_path / "c" / "00000.tar").replace(one / "00001.tar")
    os.utime(one / "00002.tar", ns=(1, 1))  # another one of the same size, for all that is known
    assert counts(open_sources(words, allow_pipe=True, folder=run)) == [[3, 5, 4], [6]]
    assert sorted(read) == ["00001.tar", "00002.tar"]


def test_a_damaged_shard_counts_with_what_can_be_read_and_is_named(tmp_path, make_set, capsys):
    folder = make_set(tmp_path, [6, 2], manifest=False)
    content = bytearray((folder / "00000.tar").read_bytes())
    at = 4 * 3 * 1024  # the header of sample 4's first member
    content[at : at + 512] = b"\xff" * 512
    (folder / "00000.tar").write_bytes(content)
    assert counts(open_sources(f"{folder}/{{00000..00001}}.tar")) == [[3, 2]]
    assert (
        "00000.tar is damaged, and counts with the 3 samples before that (ReadError: at byte" in capsys.readouterr().out
    )


def test_what_was_counted_before_an_error_is_kept(tmp_path, make_set, monkeypatch):
    folder = make_set(tmp_path / "set", [3, 2], manifest=False)
    whole = (folder / "00001.tar").read_bytes()
    (folder / "00001.tar").write_bytes(b"no tar")
    word = f"{folder}/{{00000..00001}}.tar"
    with pytest.raises(DataError, match=r"00001.tar cannot be read as a shard"):
        open_sources(word, folder=tmp_path)
    (folder / "00001.tar").write_bytes(whole)
    (count,) = json.loads((tmp_path / "counts.json").read_text()).values()
    assert count == 3
    monkeypatch.setattr(source, "_count", lambda shard: 10 if shard.name == "00001.tar" else pytest.fail(shard.name))
    assert counts(open_sources(word, folder=tmp_path)) == [[3, 10]]


def test_mixtures_name_their_shards_apart(tmp_path, make_set):
    one, two = make_set(tmp_path / "a", [3]), make_set(tmp_path / "b", [2, 4])
    first, second = open_sources(f"{one}::{two}", "2::0.5")
    assert (first.factor, second.factor) == (2, 0.5)
    assert [shard.name for each in (first, second) for shard in each.shards] == [
        "0/00000.tar",
        "1/00000.tar",
        "1/00001.tar",
    ]


def test_the_fingerprint_is_of_names_counts_and_factors(tmp_path, make_set):
    one, two = make_set(tmp_path / "a", [3, 4]), make_set(tmp_path / "b", [3, 4])
    other = make_set(tmp_path / "c", [4, 3])
    assert fingerprint(open_sources(str(one))) == fingerprint(open_sources(str(two)))
    assert fingerprint(open_sources(str(one))) != fingerprint(open_sources(str(other)))
    assert fingerprint(open_sources(str(one))) != fingerprint(open_sources(str(one), "2"))


@pytest.mark.parametrize("factors", ["1", "1::x", "1::0", "1::-2", "1::nan", "1::inf", "1::1e9", "1::2::3"])
def test_factors_are_positive_numbers_one_a_source(tmp_path, make_set, factors):
    folder = make_set(tmp_path, [3])
    with pytest.raises(SettingsError, match=r"must be 2 positive numbers up to 10,000 joined by ::"):
        open_sources(f"{folder}::{folder}/manifest.jsonl", factors)


@pytest.mark.parametrize("words", ["{0}::", "::{0}", "{0}::{0}"])
def test_an_empty_source_and_one_twice_are_refused(tmp_path, make_set, words):
    folder = make_set(tmp_path, [3])
    with pytest.raises(SettingsError, match=r"has an empty source, or one twice \(which --train-data-upsampling"):
        open_sources(words.format(folder))


def test_a_command_is_run_only_when_allowed(tmp_path, make_set, capsys):
    make_set(tmp_path, [3, 2], manifest=False)
    word = f"pipe:cat {tmp_path}/{{00000..00001}}.tar && touch {tmp_path}/ran"
    with pytest.raises(SettingsError, match=r"would run a command; give --allow-pipe"):
        open_sources(word)
    assert not (tmp_path / "ran").exists()
    (each,) = open_sources(word, allow_pipe=True)
    assert counts([each]) == [[3, 2]]
    assert (tmp_path / "ran").exists()
    assert len(keys(each)) == 5
    assert "sizes.json" not in capsys.readouterr().out, "of no use to a command"


@pytest.mark.parametrize("name", ["pipe:touch owned", "http:", "a?b#c%41.tar", "{0..3}.tar"])
def test_a_name_in_a_manifest_is_a_file_and_nothing_else(tmp_path, make_set, monkeypatch, name):
    folder = make_set(tmp_path / "set", [2])
    (folder / "00000.tar").rename(folder / name)
    text = (folder / "manifest.jsonl").read_text()
    (folder / "manifest.jsonl").write_text(text.replace("00000.tar", name))
    monkeypatch.chdir(folder)
    (each,) = open_sources(".")
    assert keys(each) == ["s0-0", "s0-1"]
    (remote,) = open_sources(f"file://{folder}")
    assert keys(remote) == ["s0-0", "s0-1"]
    assert not (folder / "owned").exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("{}/none", r"none does not exist \(1 of 1 are missing\)"),
        ("{}/{{00000..00004}}.tar", r"00001.tar does not exist \(4 of 5 are missing\)"),
        ("{}/{{00000,00000}}.tar", r"names a shard twice"),
        ("memory://nowhere/set", r"memory://nowhere/set/manifest.jsonl does not exist"),
        ("s4://bucket/set", r"s4://bucket/set/manifest.jsonl cannot be opened: .*s4"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, make_set, word, message):
    make_set(tmp_path, [1])
    (tmp_path / "sizes.json").write_text('{"00000.tar": 1}')
    with pytest.raises(DataError, match=message):
        open_sources(word.format(tmp_path))


@pytest.mark.parametrize("text", ["{", "[1]", '{"00000.tar": -1}', '{"00000.tar": true}', '{"00000.tar": 1.5}'])
def test_a_file_of_counts_that_is_none_is_named(tmp_path, make_set, text):
    folder = make_set(tmp_path, [1])
    (folder / "sizes.json").write_text(text)
    with pytest.raises(DataError, match=r"correct or remove it"):
        open_sources(f"{folder}/00000.tar")


def test_an_empty_set_is_refused(tmp_path, make_set):
    folder = make_set(tmp_path, [0])
    with pytest.raises(DataError, match=r"holds 0 samples"):
        open_sources(str(folder))
    (folder / "manifest.jsonl").write_text("")
    with pytest.raises(DataError, match=r"names no shard"):
        open_sources(str(folder))


def test_a_package_that_is_missing_is_named(monkeypatch):
    def opener(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "open", opener)
    with pytest.raises(DataError, match=r"s3://b/x/manifest.jsonl needs a package .*: Install s3fs to access S3"):
        open_sources("s3://b/x")


@pytest.mark.parametrize("word", ["memory://set", "memory://set/manifest.jsonl", "memory://set/{00000..00001}.tar"])
def test_a_set_elsewhere(tmp_path, make_set, word):
    folder = make_set(tmp_path, [3, 2])
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe(f"/set/{path.name}", path.read_bytes())
    memory.pipe("/set/sizes.json", b'{"00000.tar": 3, "00001.tar": 2}')
    (each,) = open_sources(word)
    assert counts([each]) == [[3, 2]]
    assert len(keys(each)) == 5
    memory.rm("/set", recursive=True)


def test_a_set_over_http(tmp_path, make_set, serve):
    """One file here is larger than a request."""
    folder = make_set(tmp_path, [3, 2])
    large = bytes(range(256)) * (24 << 10)
    (folder / "large").write_bytes(large)
    address = serve(folder).address
    (each,) = open_sources(f"{address}/")
    assert counts([each]) == [[3, 2]]
    assert len(keys(each)) == 5
    with open_stream("remote", f"{address}/large") as file:
        assert file.read() == large
    with pytest.raises(DataError, match=r"/nothing/manifest.jsonl does not exist"):
        open_sources(f"{address}/nothing")


def test_a_server_that_refuses_is_not_taken_for_a_missing_set(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with socket.socket() as unheard:  # bound and not listening: a connection is refused
        unheard.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unheard.getsockname()[1]}/x"
        with pytest.raises(DataError, match=r"manifest.jsonl cannot be read .*[Cc]onnect"):
            open_sources(address)


def test_names_in_http_addresses_are_quoted(monkeypatch):
    text = json.dumps(vars(ShardEntry("a?b#c%41.tar", 1, "0" * 64, 1)))
    monkeypatch.setattr(source, "_read_text", lambda kind, address: text)
    (each,) = open_sources("https://host/set")
    assert each.shards[0].address == "https://host/set/a%3Fb%23c%2541.tar"
