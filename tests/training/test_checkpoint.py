import os
import random
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import open_clip
import pytest
import torch

from training import checkpoint
from training.checkpoint import CheckpointError, Writer


def state(step=0, **more):
    model = torch.nn.Linear(40, 30)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 40)).sum().backward()
    optimizer.step()
    return {
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": [torch.get_rng_state()],
        "data": {"place": [3, 4], "name": "a", "none": None},
        "step": step,
        **more,
    }


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of steps 1 to 4."""
    writer = Writer(tmp_path, keep=0)
    for step in range(1, 5):
        writer.save(step, state(step))
    writer.wait()
    return tmp_path


def names(folder):
    return [path.name for path in checkpoint.found(folder)]


def test_what_is_saved_is_loaded(tmp_path):
    saved = state(7)
    writer = Writer(tmp_path, keep=3)
    writer.save(7, saved)
    saved_before = {k: v.clone() for k, v in saved["state_dict"].items()}
    saved["state_dict"]["weight"].add_(1)  # training goes on while the thread writes
    writer.wait()
    loaded = checkpoint.load(checkpoint.newest(tmp_path, pytest.fail))
    assert loaded["step"] == 7
    assert loaded["data"] == saved["data"]
    assert all(torch.equal(loaded["state_dict"][k], v) for k, v in saved_before.items())
    moments = saved["optimizer"]["state"][0]
    assert all(torch.equal(loaded["optimizer"]["state"][0][k], v) for k, v in moments.items())


def test_the_newest_are_kept(tmp_path):
    writer = Writer(tmp_path, keep=2)
    for step in (1, 2, 10, 100):
        writer.save(step, state(step))
    writer.wait()
    assert names(tmp_path) == ["step-00000100.pt", "step-00000010.pt"]
    assert sorted(path.name for path in tmp_path.glob("*.sha256")) == sorted(n + ".sha256" for n in names(tmp_path))


def test_checkpoints_of_another_way_are_put_aside_and_not_lost(folder):
    """After going back from step 4 to 2, a run that keeps one checkpoint must keep its own new one."""
    assert [p.name for p in checkpoint.put_aside(folder, 2)] == ["step-00000004.pt.aside", "step-00000003.pt.aside"]
    writer = Writer(folder, keep=1)
    writer.save(3, state(3))
    writer.wait()
    assert names(folder) == ["step-00000003.pt"]
    assert checkpoint.newest(folder, pytest.fail).name == "step-00000003.pt"
    assert (folder / "step-00000003.pt.aside").exists()


def test_checksums_are_those_of_sha256sum(folder):
    done = subprocess.run(["sha256sum", "--check", "step-00000004.pt.sha256"], cwd=folder, capture_output=True)
    assert done.returncode == 0


def test_damage_at_any_byte_is_found_and_the_one_before_taken(folder):
    path = folder / "step-00000004.pt"
    whole = path.read_bytes()
    rng = random.Random(0)
    damages = [(place, bytes([whole[place] ^ 1 << rng.randrange(8)])) for place in rng.sample(range(len(whole)), 40)]
    for place, byte in damages:
        path.write_bytes(whole[:place] + byte + whole[place + 1 :])
        told = []
        assert checkpoint.newest(folder, told.append).name == "step-00000003.pt"
        assert len(told) == 1
        assert "step-00000004.pt is passed over: its content does not equal its checksum" in told[0]
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert checkpoint.newest(folder, lambda text: None).name == "step-00000003.pt"


@pytest.mark.parametrize("content", [None, "", "0" * 64])
def test_a_checksum_that_is_missing_or_wrong_passes_the_checkpoint_over(folder, content):
    path = folder / "step-00000004.pt.sha256"
    path.unlink() if content is None else path.write_text(content)
    assert checkpoint.newest(folder, lambda text: None).name == "step-00000003.pt"


def test_no_checkpoint_is_none_and_none_that_verifies_is_an_error(folder, tmp_path):
    assert checkpoint.newest(tmp_path / "nowhere", pytest.fail) is None
    for path in checkpoint.found(folder):
        path.write_bytes(b"x")
    with pytest.raises(CheckpointError, match="none of its 4 checkpoints"):
        checkpoint.newest(folder, lambda text: None)


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    path = tmp_path / "step-00000001.pt"
    checkpoint.write(path, state(1, evil=Evil()))
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        checkpoint.load(path)
    assert not (tmp_path / "owned").exists()


def test_weights_alone_are_no_checkpoint(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match="use --init-from"):
        checkpoint.load(tmp_path / "weights.pt")


def test_a_write_that_fails_is_told_by_the_next_save_and_leaves_the_old(folder, monkeypatch):
    writer = Writer(folder, keep=2)

    def full(state, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    writer.save(5, state(5))
    with pytest.raises(CheckpointError, match=r"could not be written: .*No space left"):
        writer.save(6, state(6))
    assert names(folder)[0] == "step-00000004.pt"
    assert not list(folder.glob(".*tmp"))


def test_until_it_is_whole_a_checkpoint_is_not_there(folder, monkeypatch):
    """In the middle of the write the newest is the one before; what a killed process left is cleared away."""
    middle, go_on = threading.Event(), threading.Event()
    save = torch.save

    def slow(state, file):
        file.write(b"")
        middle.set()
        assert go_on.wait(60)
        save(state, file)

    monkeypatch.setattr(torch, "save", slow)
    writer = Writer(folder, keep=0)
    writer.save(5, state(5))
    assert middle.wait(60)
    assert checkpoint.newest(folder, pytest.fail).name == "step-00000004.pt"
    go_on.set()
    writer.wait()
    assert checkpoint.newest(folder, pytest.fail).name == "step-00000005.pt"
    (folder / ".step-00000006.pt.123.tmp").write_bytes(b"half")
    Writer(folder, keep=0)
    assert not list(folder.glob(".*tmp"))


def test_open_clip_loads_a_checkpoint(tmp_path):
    model = open_clip.create_model("tiny-emoji-eq7")
    checkpoint.write(tmp_path / "step-00000001.pt", state(1) | {"state_dict": model.state_dict()})
    again = open_clip.create_model("tiny-emoji-eq7", pretrained=str(tmp_path / "step-00000001.pt"))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_name_tells_its_step():
    assert checkpoint.step_of(Path("a/step-00000012.pt")) == 12
    assert checkpoint.step_of(Path("a/step-123456789.pt")) == 123456789
    assert checkpoint.step_of(Path("a/step-12.pt")) == -1


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    @contextmanager
    def full(path):
        with open("/dev/full", "wb", buffering=0) as file:
            yield file

    monkeypatch.setattr(checkpoint.atomic, "writing", full)
    writer = Writer(tmp_path, keep=1)
    writer.save(1, state(1))
    with pytest.raises(CheckpointError, match=r"could not be written: .*No space left"):
        writer.wait()
