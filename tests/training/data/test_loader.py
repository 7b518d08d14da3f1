"""The loader whole: sets on disk, worker processes, states through torch.save."""

import gc
import io
import json
import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest
import torch
from open_clip.transform import PreprocessCfg
from PIL import Image

from data_prep.errors import DataError
from data_prep.manifest import write_manifest
from data_prep.shards import ShardWriter
from training.data import read
from training.data.batches import FIRST, IN_A_ROW, Tally
from training.data.decode import Decode
from training.data.loader import Loader
from training.data.read import Bad
from training.data.source import Shard, Source
from training.settings import Settings, SettingsError


def saved(loader, *others):
    """The merged state as a checkpoint gives it back."""
    buffer = io.BytesIO()
    torch.save(loader.merge([each.state() for each in (loader, *others)]), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def content(batch):
    return batch.images.tolist(), batch.texts.tolist(), batch.keys


@pytest.fixture(params=["streamed", "planned"])
def kind(request):
    return {"unique_key": "concept"} if request.param == "planned" else {}


def test_a_batch(tmp_path, make_set, make_loader):
    loader = make_loader(make_set(tmp_path, [5, 6]))
    batch = next(loader)
    assert batch.images.shape == (4, 3, 1, 4)
    assert batch.texts.shape == (4, 4)
    assert batch.texts.dtype == torch.int64
    assert all(key.split(":")[0] in ("00000.tar", "00001.tar") for key in batch.keys)
    assert (loader.samples, loader.shards) == (11, 2)
    assert loader.description() == "11 samples in 2 shards"
    assert loader.notes == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2])
def test_the_run_after_a_resume_is_the_run_without_one(tmp_path, make_set, make_loader, kind, workers, world):
    data = make_set(tmp_path, [7, 30, 1, 22])
    options = {"workers": workers, "batch_size": 3, **kind}
    loaders = [make_loader(data, rank, world, **options) for rank in range(world)]
    whole, states = [], []
    for _ in range(24):
        states.append(saved(*loaders))
        whole.append([content(next(loader)) for loader in loaders])
    # Every batch without workers; with them, which take a moment to start, those around the ends of epochs.
    for taken in range(21) if not workers else (1, 4, 5, 10, 19):
        loaders = [make_loader(data, rank, world, states[taken], **options) for rank in range(world)]
        assert [[content(next(loader)) for loader in loaders] for _ in range(3)] == whole[taken : taken + 3]
        assert all(loader.notes == [] for loader in loaders)
        assert str(saved(*loaders)) == str(states[taken + 3])


def test_an_epoch_is_every_sample_once_and_the_next_in_another_order(tmp_path, make_set, make_loader):
    loader = make_loader(make_set(tmp_path, [7, 12, 1, 4]), batch_size=6)
    epochs = [[key for batch in islice(loader, 4) for key in batch.keys] for _ in range(3)]
    assert all(len(set(epoch)) == 24 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("other", [(1, 0), (1, 2), (3, 0)])
def test_what_is_left_is_dealt_to_another_number_of_processes(tmp_path, make_set, make_loader, kind, other):
    data = make_set(tmp_path, [20, 30, 10, 12, 33])
    first = [make_loader(data, rank, 2, workers=2, batch_size=2, **kind) for rank in range(2)]
    keys = [key for _ in range(9) for loader in first for key in next(loader).keys]
    state = saved(*first)
    world, workers = other
    then = [make_loader(data, rank, world, state, workers=workers, batch_size=2, **kind) for rank in range(world)]
    assert "dealt anew" in then[0].notes[0]
    assert "of epoch 0, 36 samples were used and 69 are left" in then[0].notes[0]
    while not kind and len(keys) + 2 * world <= 105:
        keys += [key for loader in then for key in next(loader).keys]
    while kind and then[0].state()["readers"][0]["taken"] < (69 // (2 * world)) - 2:
        keys += [key for loader in then for key in next(loader).keys]
    assert len(set(keys)) == len(keys) >= 84


def test_nothing_that_was_used_is_decoded_again(tmp_path, make_set, make_loader, decode):
    data = make_set(tmp_path, [40, 40])
    loader = make_loader(data)
    used = {key.split(":")[1] for batch in islice(loader, 12) for key in batch.keys}
    state = saved(loader)
    decode.keys.clear()
    again = [key.split(":")[1] for batch in islice(make_loader(data, state=state), 8) for key in batch.keys]
    assert decode.keys == again
    assert {*again} | used == {f"s{shard}-{index}" for shard in range(2) for index in range(40)}


def test_a_sample_looks_the_same_whoever_prepares_it(tmp_path, make_set, make_loader):
    data = make_set(tmp_path, [9, 15])
    seen = []
    for workers, batch_size in [(0, 4), (2, 3), (1, 2)]:
        loader = make_loader(data, workers=workers, batch_size=batch_size)
        batches = list(islice(loader, 24 // batch_size - 2))
        seen.append({k: i.tolist() for b in batches for k, i in zip(b.keys, b.images, strict=True)})
    for other in seen[1:]:
        both = seen[0].keys() & other.keys()
        assert len(both) > 8
        assert all(seen[0][key] == other[key] for key in both)
    assert len({str(image) for image in seen[0].values()}) == len(seen[0])


@pytest.mark.parametrize("workers", [0, 1])
def test_the_process_keeps_its_random_numbers(tmp_path, make_set, make_loader, kind, workers):
    loader = make_loader(make_set(tmp_path, [20]), workers=workers, **kind)
    before = random.getstate(), torch.get_rng_state()
    next(loader)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


# --- mixtures ---------------------------------------------------------------------------------------------------------


def test_a_mixture_counts_exactly(tmp_path, make_set, make_loader):
    one, two = make_set(tmp_path / "a", [6, 6]), make_set(tmp_path / "b", [8, 4, 8])
    loader = make_loader(f"{one}::{two}", train_data_upsampling_factors="2::0.5", batch_size=2)
    assert loader.samples == 34
    assert loader.description() == "34 samples in 5 shards of 2 sources"
    epochs = [Counter(key for batch in islice(loader, 17) for key in batch.keys) for _ in range(2)]
    for epoch in epochs:
        assert sum(n for key, n in epoch.items() if key.startswith("0/")) == 24
        assert {n for key, n in epoch.items() if key.startswith("0/")} == {2}
        assert {n for key, n in epoch.items() if key.startswith("1/")} == {1}
    halves = [{key for key in epoch if key.startswith("1/")} for epoch in epochs]
    assert len(halves[0] | halves[1]) == 20


# --- unique values ----------------------------------------------------------------------------------------------------


def value(key):
    return int(key.rpartition("-")[2]) % 7


def test_no_two_samples_of_a_step_share_a_value(tmp_path, make_set, make_loader):
    """Over two processes and the two forward passes of a step; the number of workers changes nothing."""
    data = make_set(tmp_path, [16, 12])
    streams = []
    for workers in (0, 2):
        options = {"unique_key": "concept", "batch_size": 1, "accum_freq": 2, "workers": workers}
        loaders = [make_loader(data, rank, 2, **options) for rank in range(2)]
        streams.append([[next(loader).keys[0] for loader in loaders for _ in range(2)] for _ in range(15)])
    assert streams[0] == streams[1]
    assert all(len({value(key) for key in step}) == 4 for step in streams[0])
    epoch = [key for step in streams[0][:7] for key in step]
    assert len(set(epoch)) == 28


def test_only_the_slice_depends_on_the_number_of_processes(tmp_path, make_set, make_loader):
    data = make_set(tmp_path, [16, 12])
    one = make_loader(data, batch_size=6, unique_key="concept")
    two = [make_loader(data, rank, 2, batch_size=3, unique_key="concept") for rank in range(2)]
    for _ in range(8):
        assert next(one).keys == [key for loader in two for key in next(loader).keys]
    resumed = make_loader(data, 0, 1, saved(*two), batch_size=6, unique_key="concept")
    assert resumed.notes == []
    assert [next(resumed).keys for _ in range(6)] == [next(one).keys for _ in range(6)]


def test_what_fits_no_step_is_left_out_and_counted(tmp_path, make_set, make_loader):
    loader = make_loader(make_set(tmp_path, [10]), batch_size=7, unique_key="concept")
    assert [loader.left_out for _ in range(3) if next(loader)] == [0, 3, 6]
    again = make_loader(tmp_path, 0, 1, saved(loader), batch_size=7, unique_key="concept")
    next(again)
    assert again.left_out == 9


def test_too_few_values_for_a_step_are_refused(tmp_path, make_set, make_loader):
    with pytest.raises(SettingsError, match=r"7 distinct values of 'concept', fewer than the 8"):
        make_loader(make_set(tmp_path, [30]), 0, 2, batch_size=4, unique_key="concept")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_unreadable_picture_of_a_planned_step_is_replaced(tmp_path, make_set, make_loader, size):
    data = make_set(tmp_path, [30, 30], bad=["s0-5", "s0-12", "s0-7"])
    options = {"batch_size": size, "unique_key": "concept", "max_bad_samples": 0.2}
    loaders = [make_loader(data, rank, 2, **options) for rank in range(2)]
    for _ in range(40):
        step = [key for loader in loaders for key in next(loader).keys]
        assert len(step) == len({value(key) for key in step}) == 2 * size
        assert not {*step} & {"00000.tar:s0-5", "00000.tar:s0-12", "00000.tar:s0-7"}
    assert sum(loader.bad_samples for loader in loaders) > 3


# --- bad samples ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_samples_are_passed_over_and_counted_by_shard_and_reason(tmp_path, make_set, make_loader, workers):
    data = make_set(tmp_path, [30, 30, 30], bad=["s0-3", "s2-1", "s2-20"])
    (tmp_path / "00001.tar").write_bytes((tmp_path / "00001.tar").read_bytes()[: 28 * 3 * 1024].ljust(102400, b"\0"))
    loader = make_loader(data, workers=workers, max_bad_samples=0.2, batch_size=17)
    keys = [key for batch in islice(loader, 5) for key in batch.keys]
    assert len(set(keys)) == 85
    assert loader.bad == {
        "00000.tar": {"no caption (txt)": 1},
        "00001.tar": {"the shard ends early": 2},
        "00002.tar": {"no caption (txt)": 2},
    }
    state = saved(loader)
    assert sum(place["bad"] for place in state["readers"]) == loader.bad_samples == 5
    assert make_loader(data, 0, 1, state, workers=workers, max_bad_samples=0.2, batch_size=17).bad == loader.bad
    # What the others count of is not lost nor doubled.
    other = make_loader(data, 1, 2, state, max_bad_samples=0.2, batch_size=17)
    assert other.bad == {}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_set_of_which_nothing_can_be_used_ends_the_run_with_reasons(tmp_path, make_set, make_loader, kind, workers):
    data = make_set(tmp_path, [30], bad=[f"s0-{i}" for i in range(30)])
    loader = make_loader(data, workers=workers, max_bad_samples=0.9, **kind)
    with pytest.raises(DataError, match=r"samples cannot be used: \d+ x no caption \(txt\); first 00000.tar:s0"):
        next(loader)


@pytest.mark.parametrize("lost", range(4))
def test_a_shard_that_is_lost_ends_no_reader_wherever_it_comes(tmp_path, make_set, make_loader, lost):
    """Nor do a few bad samples: their share is judged over all processes, by the training loop."""
    loader = make_loader(make_set(tmp_path, [30] * 4), max_bad_samples=0.0, shuffle_buffer=1)
    (tmp_path / f"{lost:05d}.tar").unlink()
    assert len({key for batch in islice(loader, 22) for key in batch.keys}) == 88
    assert loader.bad_samples <= 30


@pytest.mark.parametrize("workers", [0, 1])
def test_storage_that_is_gone_ends_the_run_with_reasons(tmp_path, make_set, make_loader, workers):
    data = make_set(tmp_path, [30] * 3)
    loader = make_loader(data, workers=workers)
    next(loader)
    for shard in data.glob("*.tar"):
        shard.unlink()
    message = r"its last 91 samples cannot be used: \d+ x the shard cannot be read: FileNotFoundError.*; first 0000"
    with pytest.raises(DataError, match=message):
        list(islice(loader, 90))  # what was read before is still used


@pytest.mark.parametrize("workers", [0, 1])
def test_a_server_that_is_gone_ends_the_run_with_reasons(tmp_path, make_set, make_loader, serve, monkeypatch, workers):
    monkeypatch.setattr(read, "WAITS", (0.0,))
    server = serve(make_set(tmp_path, [30] * 9))
    loader = make_loader(server.address, workers=workers)
    next(loader)
    server.stop()
    message = r"3 shards in a row could not be reached, with 90 samples: 90 x the shard cannot be read: ClientConn"
    with pytest.raises(DataError, match=message):
        list(islice(loader, 90))


def counted(tally, shard, number):
    for each in range(number):
        tally.add_bad(Bad(shard, str(each), "lost"))
        tally.check()


def test_a_reader_without_one_usable_sample_ends_after_a_thousand_of_several_shards():
    tally = Tally(share=50_000)
    counted(tally, "a", 10_000)  # one shard, which may be the only one that is lost
    with pytest.raises(
        DataError, match=r"its last 10001 samples cannot be used: 10001 x lost; first a:0 \(lost\), a:1"
    ):
        counted(tally, "b", 1)
    tally = Tally(share=50_000)
    counted(tally, "a", 1)
    with pytest.raises(DataError, match=f"its last {FIRST} samples"):
        counted(tally, "b", FIRST)
    small = Tally(share=20)
    with pytest.raises(DataError, match="its last 20 samples"):
        counted(small, "a", 20)


@pytest.mark.parametrize(("share", "most"), [(20, 20), (3000, 3000), (10**6, IN_A_ROW)])
def test_a_reader_ends_after_a_whole_epoch_of_unusable_samples_at_the_most(share, most):
    for tally in (Tally(share), Tally(share, read=7, bad=6)):
        tally.add_good()
        counted(tally, "a", most)
        tally.add_good()
        counted(tally, "a", 1)
        counted(tally, "b", most - 1)
        with pytest.raises(
            DataError, match=f"its last {most + 1} samples cannot be used: {most + 1} x lost; first a:0"
        ):
            counted(tally, "b", 1)


@pytest.mark.parametrize(("allowed", "ends"), [(0.04, True), (0.06, False)])
def test_a_held_set_is_judged_as_a_whole(tmp_path, make_set, make_loader, allowed, ends):
    data = make_set(tmp_path, [57, 3])
    (data / "00001.tar").write_bytes(b"\xff" * (data / "00001.tar").stat().st_size)
    options = {"unique_key": "concept", "max_bad_samples": allowed}
    if ends:
        with pytest.raises(DataError, match=r"3 samples cannot be used: 3 x .* more of 60 than --max-bad-samples 0.04"):
            make_loader(data, **options)
    else:
        assert make_loader(data, **options).bad_samples == 3


def test_a_missing_unique_key_is_named(tmp_path, make_set, make_loader):
    with pytest.raises(DataError, match=r"11 x no JSON field 'colour'; first 00000.tar:s0-0"):
        make_loader(make_set(tmp_path, [11]), unique_key="colour")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_wrong_manifest_ends_the_run(tmp_path, make_set, make_loader, workers):
    data = make_set(tmp_path, [9])
    text = (data / "manifest.jsonl").read_text()
    (data / "manifest.jsonl").write_text(text.replace('"samples": 9', '"samples": 8'))
    with pytest.raises(DataError, match=r"holds more than the 8 samples"):
        list(islice(make_loader(data, workers=workers), 3))


@pytest.mark.parametrize(
    ("world", "settings", "message"),
    [
        (1, {"batch_size": 25}, r"gives each of 1 readers .* 24, fewer than a batch of 25 needs"),
        (
            2,
            {"batch_size": 7, "workers": 2},
            r"each of 4 readers \(2 processes x 2 workers\) 6, fewer than a batch of 7",
        ),
        (2, {"batch_size": 4, "accum_freq": 4}, r"24 samples is smaller than a step of 2 processes x batch_size 4 x"),
    ],
)
def test_a_set_in_which_a_sample_would_meet_itself_is_refused(
    tmp_path, make_set, make_loader, world, settings, message
):
    with pytest.raises(SettingsError, match=message):
        make_loader(make_set(tmp_path, [12, 12]), 0, world, **settings)


def test_more_workers_and_processes_than_shards_share_them(tmp_path, make_set, make_loader):
    data = make_set(tmp_path, [24])
    loaders = [make_loader(data, rank, 3, workers=2, batch_size=4) for rank in range(3)]
    keys = [key for loader in loaders for _ in range(2) for key in next(loader).keys]
    assert len(set(keys)) == 24


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_an_error(tmp_path, make_set, make_loader):
    loader = make_loader(make_set(tmp_path, [40]), workers=1)
    next(loader)
    worker = loader._batches._workers[0].pid

    def go_on_without_it():  # torch raises wherever the signal of its end finds this process
        os.kill(worker, signal.SIGKILL)
        os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
        list(islice(loader, 20))

    with pytest.raises(RuntimeError, match="worker"):
        go_on_without_it()
    loader.close()
    gc.collect()  # the error's frames hold the iterator, and torch tells of its dead worker whenever any child ends


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), FileNotFoundError("gone"), EOFError("gone")])
def test_a_batch_of_a_killed_worker_is_the_same_error(tmp_path, make_set, make_loader, error):
    """It may be fetched before the signal of the worker's end comes."""

    def fetch():
        raise error
        yield

    loader = make_loader(make_set(tmp_path, [40]))
    loader._batches = fetch()
    with pytest.raises(RuntimeError, match=r"a DataLoader worker has ended \(.*Error: gone\)"):
        next(loader)


def test_signals_to_the_whole_job_miss_the_workers(tmp_path, make_set, make_loader):
    loader = make_loader(make_set(tmp_path, [40]), workers=2)
    for _ in range(2):  # workers give by turns, and both have begun when both have given
        next(loader)
    workers = [worker.pid for worker in loader._batches._workers]
    assert [os.getpgid(worker) for worker in workers] == workers
    for worker in loader._batches._workers:
        worker.terminate()
        worker.join()


def train_until_a_signal(make_loader, shards):
    """As a process of its own: it waits for a batch that does not come."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    next(make_loader("unused", workers=2, sources=[Source("unused", 1.0, shards)]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_whose_commands_stall_end_with_the_process_and_so_do_the_commands(
    monkeypatch, make_loader, holders, number
):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)  # how long torch waits to terminate
    command = f"exec 3>{holders.path}; echo running >&3; sleep 1000; true"
    shards = tuple(Shard(name, "pipe", command, 20) for name in "ab")
    process = multiprocessing.get_context("fork").Process(target=train_until_a_signal, args=(make_loader, shards))
    process.start()
    running = b""
    while running.count(b"running") < 2:
        running += holders.read()
    os.killpg(process.pid, number)
    process.join(60)
    assert process.exitcode == (0 if number == signal.SIGTERM else -number)
    assert holders.read() == b""


def test_close_ends_the_workers(tmp_path, make_set, make_loader):
    loader = make_loader(make_set(tmp_path, [40]), workers=2)
    next(loader)
    workers = list(loader._batches._workers)
    loader.close()
    assert not any(worker.is_alive() for worker in workers)


def test_a_state_does_not_grow_over_epochs(tmp_path, make_set, make_loader, kind):
    loader = make_loader(make_set(tmp_path, [9] * 20), batch_size=6, **kind)
    sizes = []
    for _ in range(12):
        for _ in range(30):
            next(loader)
        sizes.append(len(str(saved(loader))))
    assert max(sizes[2:]) <= max(sizes[:2]) + 60


def held_by(*pids):
    """MiB of their own that processes hold together, what they share counted once; files that are mapped are left out.

    Those are libraries, whose share depends on what else runs.
    """
    lines = [line.split() for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line[1]) for line in lines if line[0] in ("Pss_Anon:", "Pss_Shmem:")) / 1024


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # pytest would keep each that a worker meets
@pytest.mark.parametrize("unique_key", ["", "concept"])
def test_memory_does_not_grow_over_many_epochs(tmp_path, unique_key):
    """Between the two measurements a leak of 500 bytes a sample would be 11 MiB; a picture has 3072.

    Until the first, memory grows by what the allocators keep, and by pages that the workers come to write on.
    """
    random_bytes = random.Random(0)
    entries = []
    for shard in range(4):
        with ShardWriter(tmp_path / f"{shard}.tar") as writer:
            for index in range(15):
                picture = Image.frombytes("RGB", (48, 48), random_bytes.randbytes(48 * 48 * 3))
                picture.save(jpeg := io.BytesIO(), "PNG" if index == 7 else "JPEG")
                value = json.dumps({"concept": index}).encode()
                writer.write(f"{index}", {"jpg": jpeg.getvalue(), "txt": b"a picture", "json": value})
        entries.append(writer.close())
    write_manifest(tmp_path, entries)
    options = {"batch_size": 15, "workers": 2, "shuffle_buffer": 20, "unique_key": unique_key}
    settings = Settings(train_data=str(tmp_path), **options)
    decode = Decode(settings, asdict(PreprocessCfg(size=32)))
    loader = Loader(settings, decode, lambda captions: torch.zeros(len(captions), 4, dtype=torch.int64))
    sizes = []
    for epoch in range(1, 501):
        for _ in range(4):
            next(loader)
        loader.merge([loader.state()])
        if epoch in (100, 500):
            sizes.append(held_by(os.getpid(), *(worker.pid for worker in loader._batches._workers)))
    loader.close()
    assert sizes[1] - sizes[0] < 6, sizes
