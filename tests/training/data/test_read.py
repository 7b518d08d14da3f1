import builtins
import dataclasses
import io
import multiprocessing
import tarfile
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from data_prep.errors import DataError
from data_prep.shards import ShardWriter
from training.data import read
from training.data.order import Deal, Mixture
from training.data.read import Bad, Held, _read, follow, read_shard
from training.data.source import Shard, open_sources
from training.data.stream import WAITS, UnreachableError, read_samples


def shards_of(folder):
    return open_sources(str(folder))[0].shards


def named(samples):
    """Numbers and keys, or reasons."""
    return [(number, s.reason if isinstance(s, Bad) else s["__key__"]) for number, s in samples]


@pytest.fixture
def opened(monkeypatch):
    """The names of the files that are opened, in order."""
    names = []

    def opener(path, *arguments, **keywords):
        names.append(str(path).rpartition("/")[2])
        return builtins.open(path, *arguments, **keywords)

    monkeypatch.setattr("training.data.stream.open", opener, raising=False)
    return names


def test_only_the_wanted_samples_come(tmp_path, make_set):
    (shard,) = shards_of(make_set(tmp_path, [6]))
    assert named(read_shard(shard, np.array([1, 4]))) == [(1, "s0-1"), (4, "s0-4")]
    assert named(read_shard(shard, np.array([5]))) == [(5, "s0-5")]


def test_reading_stops_at_the_last_wanted_sample(tmp_path, make_set):
    """Behind it the shard may be damaged."""
    (shard,) = shards_of(make_set(tmp_path, [6]))
    content = bytearray((tmp_path / "00000.tar").read_bytes())
    content[len(content) // 2 :] = b"\xff" * len(content[len(content) // 2 :])
    (tmp_path / "00000.tar").write_bytes(content)
    assert named(read_shard(shard, np.array([0, 1]))) == [(0, "s0-0"), (1, "s0-1")]


def damaged(content, how):
    """A tar of six samples, three members of 1024 bytes each."""
    at = 4 * 3 * 1024  # where sample 4 begins
    match how:
        case "missing":
            return None
        case "empty":
            return b""
        case "no tar":
            return b"\x00no tar" * 400
        case "cut between members":
            return content[:at]
        case "cut inside a member":
            return content[: at - 300]
        case "zeroed to the end":
            return content[:at] + bytes(len(content) - at)
        case "header overwritten":
            return content[:at] + b"\xff" * 512 + content[at + 512 :]


@pytest.mark.parametrize(
    ("how", "whole", "reason"),
    [
        ("missing", 0, "cannot be read: FileNotFoundError"),
        ("empty", 0, "cannot be read: ReadError"),
        ("no tar", 0, "cannot be read: ReadError"),
        ("cut between members", 4, "ends early"),
        ("cut inside a member", 3, "cannot be read: ReadError"),
        ("zeroed to the end", 4, "ends early"),
        ("header overwritten", 3, "cannot be read: ReadError"),
    ],
)
def test_what_a_damaged_shard_lacks_comes_out_as_bad(tmp_path, make_set, how, whole, reason):
    (shard,) = shards_of(make_set(tmp_path, [6]))
    content = damaged((tmp_path / "00000.tar").read_bytes(), how)
    (tmp_path / "00000.tar").unlink()
    if content is not None:
        (tmp_path / "00000.tar").write_bytes(content)
    samples = list(read_shard(shard, np.arange(6)))
    assert [number for number, _ in samples] == list(range(6))
    assert all(sample["__key__"] == f"s0-{number}" for number, sample in samples[:whole])
    for _, bad in samples[whole:]:
        assert isinstance(bad, Bad)
        assert reason in bad.reason


def test_more_samples_than_the_manifest_says_end_the_run(tmp_path, make_set):
    (shard,) = shards_of(make_set(tmp_path, [6]))
    shard = dataclasses.replace(shard, samples=5)
    with pytest.raises(DataError, match=r"00000.tar holds more than the 5 samples that it should"):
        list(read_shard(shard, np.arange(5)))


def hostile(folder, members):
    path = folder / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name in members:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    return str(path)


@pytest.mark.parametrize(
    ("members", "samples", "wanted"),
    [
        # Interleaved members make more samples than there were: the count finds them.
        (["a.jpg", "b.jpg", "a.txt", "b.txt"], 2, None),
        (["a.jpg", "a.__bad__", "b.jpg"], 2, "ends early"),
        (["a.__key__"], 1, "two members of a suffix"),
        (["../../a.jpg", "../../a.txt"], 1, ""),
    ],
)
def test_hostile_members(tmp_path, members, samples, wanted):
    shard = Shard("x.tar", "file", hostile(tmp_path, members), samples)
    if wanted is None:
        with pytest.raises(DataError, match=r"holds more"):
            list(read_shard(shard, np.arange(samples)))
        return
    found = [sample for _, sample in read_shard(shard, np.arange(samples))]
    assert [wanted in s.reason for s in found if isinstance(s, Bad)] == [True] * bool(wanted)


def test_a_sample_with_two_members_of_a_suffix_is_bad_and_the_rest_goes_on(tmp_path):
    members = ["a.jpg", "a.txt", "b.jpg", "b.txt", "b.JPG", "b.jpg", "c.jpg", "c.txt"]
    shard = Shard("x.tar", "file", hostile(tmp_path, members), 3)
    found = [sample for _, sample in read_shard(shard, np.arange(3))]
    assert found[1] == Bad("x.tar", "b", "two members of a suffix")
    assert [set(sample) - {"__url__"} for sample in found[::2]] == [{"__key__", "jpg", "txt"}] * 2


def test_a_key_that_goes_on_in_the_next_shard_makes_two_samples(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    shards = [
        Shard("one", "file", hostile(tmp_path / "one", ["a.jpg"]), 1),
        Shard("two", "file", hostile(tmp_path / "two", ["a.txt"]), 1),
    ]
    found = [sample for shard in shards for _, sample in read_shard(shard, np.arange(1))]
    assert [set(sample) - {"__key__", "__url__"} for sample in found] == [{"jpg"}, {"txt"}]


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("taken", [0, 1, 7, 13])
def test_following_gives_the_order_and_skips_what_was_taken(tmp_path, make_set, opened, readers, taken):
    shards = shards_of(make_set(tmp_path, [9, 3, 12, 1, 20]))
    deal = Deal(Mixture([[shard.samples for shard in shards]], [1.0], seed=2), readers, 4)
    for reader in range(readers):
        first, second = list(deal.order(0, reader)), list(deal.order(1, reader))
        wanted = [(0, ref) for ref in first[taken:]] + [(1, ref) for ref in second]
        opened.clear()
        found = list(islice(follow(deal, shards, reader, 0, taken), len(wanted)))
        assert [(epoch, ref) for epoch, ref, _ in found] == wanted
        assert all(sample["__key__"] == f"s{shard}-{index}" for _, (shard, index), sample in found)
        finished = {shard for shard, _ in first[:taken]} - {shard for shard, _ in first[taken:]}
        # In epoch 0, then 1, each shard is opened once if it has something left.
        needed = [shard for shard, _ in deal.share(0, reader) if shard not in finished]
        assert opened[: len(needed)] == [f"{shard:05d}.tar" for shard in needed]


@pytest.fixture
def answers(monkeypatch):
    """answers[address] lists what a remote shard does next: "whole", "broken" after some of it, or "gone"."""
    planned, asked = {}, []

    def remote(kind, address, waits):
        asked.append((address, waits))
        what = planned.get(address, ["whole"]).pop(0)
        with closing(read_samples("file", address)) as samples:
            yield from islice(samples, {"whole": None, "broken": 2, "gone": 0}[what])
        if what != "whole":
            raise UnreachableError("ConnectionError: refused") from ConnectionError("refused")

    monkeypatch.setattr(read, "read_samples", remote)
    planned["asked"] = asked
    return planned


def remote_shards(folder):
    return [dataclasses.replace(shard, kind="remote") for shard in shards_of(folder)]


@pytest.mark.parametrize("lost", [[], [1], [0, 1], [3, 4], [0, 1, 3, 4]])
def test_shards_that_storage_does_not_give_are_bad_amid_good_ones(tmp_path, make_set, answers, lost):
    """In the planned order, whenever it is known that they are lost; after one the next is not waited for as long."""
    shards = remote_shards(make_set(tmp_path, [4] * 5))
    for number in lost:
        answers[shards[number].address] = ["broken" if number == 1 else "gone"]
    found = list(_read(((number, np.arange(4)) for number in range(5)), shards))
    assert {ref for ref, _ in found} == {(number, index) for number in range(5) for index in range(4)}
    assert len(found) == 20
    for (number, index), sample in found:
        if number in lost and not (number == 1 and index < 2):
            assert sample == Bad(f"{number:05d}.tar", f"sample {index}", "the shard cannot be read: ConnectionError")
        else:
            assert sample["__key__"] == f"s{number}-{index}"
    expected = [WAITS[:1] if number - 1 in lost else WAITS for number in range(5)]
    assert [waits for _, waits in answers["asked"]] == expected


def test_storage_that_is_gone_ends_reading_at_once(tmp_path, make_set, answers):
    shards = remote_shards(make_set(tmp_path, [4] * 9))
    for number in range(3, 9):
        answers[shards[number].address] = ["broken" if number == 3 else "gone"]
    found = []
    message = (
        r"the storage is gone: 3 shards in a row could not be reached, with 10 samples: 10 x the shard cannot be read: "
        r"ConnectionError; they are 00003.tar \(2\), 00004.tar \(4\), 00005.tar \(4\)\. "
        r"The last error: ConnectionError: refused"
    )
    with pytest.raises(DataError, match=message):
        found.extend(_read(((number, np.arange(4)) for number in range(9)), shards))
    assert [sample["__key__"] for _, sample in found] == [f"s{n}-{i}" for n in range(4) for i in range(4)][:14]
    assert len(answers["asked"]) == 6


def test_memory_is_the_buffer(tmp_path, make_set, monkeypatch):
    """Reading is never further ahead than the shuffle buffer asks for."""
    shards = shards_of(make_set(tmp_path, [50, 50]))
    deal = Deal(Mixture([[50, 50]], [1.0], seed=2), 1, 10)
    came = 0

    def counting(*arguments):
        nonlocal came
        for item in _read(*arguments):
            came += 1
            yield item

    monkeypatch.setattr(read, "_read", counting)
    for given, _ in enumerate(islice(follow(deal, shards, 0, 0, 0), 100), start=1):
        assert came <= given + 10


def test_a_held_set_knows_its_values_and_its_bad_samples(tmp_path, make_set):
    folder = make_set(tmp_path, [9, 2])
    shards = shards_of(folder)
    held = Held(shards, "concept")
    assert held.value((0, 8)) == "1"
    assert held.sample((3, 1))["__key__"] == "s1-1"  # the second copy of the second shard
    assert held.bad == []
    (folder / "00001.tar").write_bytes(b"")
    assert [bad.shard for bad in Held(shards, "concept").bad] == ["00001.tar"] * 2
    assert {bad.reason for bad in Held(shards[:1], "colour").bad} == {"no JSON field 'colour'"}


def test_a_forked_process_shares_a_held_set(tmp_path):
    """It would copy 16 MB, had each sample a reference count beside its bytes."""
    with ShardWriter(tmp_path / "00000.tar") as writer:
        for index in range(4000):
            writer.write(str(index), {"jpg": bytes(4000), "json": b'{"concept": %d}' % index})
    held = Held([Shard("00000.tar", "file", str(tmp_path / "00000.tar"), 4000)], "concept")

    def own_megabytes():
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Private_Dirty:"))) / 1000

    def look(result):
        before = own_megabytes()
        assert all(len(held.sample((0, index))["jpg"]) == 4000 for index in range(4000))
        result.send(own_megabytes() - before)

    context = multiprocessing.get_context("fork")
    result, end = context.Pipe(duplex=False)
    process = context.Process(target=look, args=(end,))
    process.start()
    assert result.recv() < 4
    process.join()


@pytest.mark.parametrize("known", [True, False])
def test_a_set_too_large_to_hold_is_refused(tmp_path, make_set, monkeypatch, known):
    shards = [dataclasses.replace(s, bytes=s.bytes * known) for s in shards_of(make_set(tmp_path, [9]))]
    monkeypatch.setattr(read, "HELD_BYTES", 100)
    with pytest.raises(DataError, match=r"holds the set in memory.*leave it out"):
        Held(shards, "concept")
