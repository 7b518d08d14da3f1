"""Files: what is read, what is explained, and what a failed write leaves."""

import argparse
import os
import pickle
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_models import (
    VISION_MARK,
    clip,
    trained,
)

from open_clip_linear.checkpoint import read_mark
from open_clip_linear.convert import convert_state_dict
from open_clip_linear.convert.command import main
from open_clip_linear.convert.weights import WeightsError, load_weights, save_weights


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_training_checkpoints_and_prefixes(tmp_path, prefix):
    weights = trained(clip("eq7")).state_dict()
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    checkpoint = {
        "epoch": 3,
        "name": "a run",
        "state_dict": {prefix + key: value for key, value in weights.items()},
        "optimizer": optimizer.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
    }
    torch.save(checkpoint, tmp_path / "c.pt")
    torch.save(checkpoint, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    for name in ("c.pt", "old.bin"):
        converted, _ = convert_state_dict(load_weights(tmp_path / name), clip("eq7"))
        assert all(torch.equal(converted[key], value) for key, value in weights.items())


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".safetensors"])
def test_files_hold_what_was_written(tmp_path, suffix):
    weights = clip("eq7:scale=mean").state_dict() | {"view": torch.randn(1000, 2)[:2].mT}
    weights["same"] = weights["view"]
    path = tmp_path / f"w{suffix}"
    save_weights(path, weights)
    found = load_weights(path)
    assert {k: (v.dtype, v.tolist()) for k, v in found.items()} == {
        k: (v.dtype, v.tolist()) for k, v in weights.items()
    }
    assert read_mark(found[VISION_MARK]) == "eq7:scale=mean"
    assert path.stat().st_size < 1.1 * sum(v.nbytes for v in weights.values()) + 30_000
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor):
        return x * self.weight


def write_odd_files(folder):
    """Files that are no plain weights, and what is said of each."""
    plain = {"weight": torch.zeros(300)}
    with_args = {"state_dict": plain, "args": argparse.Namespace(lr=1)}
    torch.save(with_args, folder / "namespace.pt")
    torch.save(with_args, folder / "old-namespace.pt", _use_new_zipfile_serialization=False)
    torch.save({"state_dict": plain, "loss": np.float64(2)}, folder / "numpy.pt")
    torch.save(plain | {"harm": Harmful()}, folder / "harmful.pt")
    torch.save(torch.nn.Linear(2, 2), folder / "module.pt")
    torch.jit.save(torch.jit.trace(Net(), torch.ones(2)), folder / "script.pt")
    torch.save(plain, folder / "whole.pt")
    (folder / "cut.pt").write_bytes((folder / "whole.pt").read_bytes()[:-200])
    torch.save(plain, folder / "old.pt", _use_new_zipfile_serialization=False)
    (folder / "old-cut.pt").write_bytes((folder / "old.pt").read_bytes()[:-200])
    (folder / "page.pt").write_text("<!DOCTYPE html><html>not found</html>")
    (folder / "empty.pt").touch()
    (folder / "pickle.bin").write_bytes(pickle.dumps([1, 2]))
    torch.save([1, 2], folder / "list.pt")
    torch.save({"epoch": 3, "model": plain}, folder / "elsewhere.pt")
    torch.save({}, folder / "nothing.pt")
    save_file(plain, folder / "whole.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "whole.safetensors").read_bytes()[:-3])
    (folder / "page.safetensors").write_text("<!DOCTYPE html><html>not found</html>")
    (folder / "a.npz").touch()
    (folder / "folder").mkdir()


ODD = {
    "namespace.pt": r"Python objects beside its weights \(argparse.Namespace\)[\s\S]*python -c",
    "old-namespace.pt": r"Python objects beside its weights \(argparse.Namespace\)[\s\S]*python -c",
    "numpy.pt": r"Python objects beside its weights \(numpy.*scalar",
    "harmful.pt": r"Python objects beside its weights \(posix.mkdir\)",
    "module.pt": r"Python objects beside its weights \(torch.nn.modules.linear.Linear\)",
    "script.pt": r"is a TorchScript archive, a program[\s\S]*python -c[\s\S]*QuickGELU",
    "cut.pt": r"damaged or its end is missing; it has [\d,]+ bytes and begins with b'PK",
    "old-cut.pt": "damaged or its end is missing",
    "page.pt": r"no PyTorch checkpoint; it has 37 bytes and begins with b'<!DOCTYPE html>",
    "empty.pt": "is empty",
    "pickle.bin": "no PyTorch checkpoint|damaged or its end is missing",
    "list.pt": "holds no state dict but a list",
    "elsewhere.pt": "holds no state dict but a dict with the entries epoch, model",
    "nothing.pt": "holds no state dict but a dict without entries",
    "cut.safetensors": "no whole safetensors file",
    "page.safetensors": r"no whole safetensors file .* begins with b'<!DOCTYPE html>",
    "a.npz": "NumPy arrays",
    "folder": "is a folder",
    "missing.pt": "does not exist",
}


@pytest.mark.filterwarnings("ignore")
def test_files_that_are_no_plain_weights_are_explained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_odd_files(tmp_path)
    for name, message in ODD.items():
        with pytest.raises(WeightsError, match=message):
            load_weights(tmp_path / name)
        assert main(["--from", name, "--to-model", "tiny-emoji-eq7", "--output", "new.pt"]) == 1
        out, error = capsys.readouterr()
        assert out == ""
        assert re.search(message, error.split("error: ", 1)[1])
    assert not (tmp_path / "harm").exists()
    assert not (tmp_path / "new.pt").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["namespace.pt", "old-namespace.pt", "numpy.pt", "script.pt", "module.pt"])
def test_the_command_that_is_given_brings_the_weights_out(tmp_path, name, monkeypatch):
    write_odd_files(tmp_path)
    with pytest.raises(WeightsError) as caught:
        load_weights(tmp_path / name)
    (line,) = (line for line in str(caught.value).splitlines() if "python -c" in line)
    program = shlex.split(line)
    assert program[:2] == ["python", "-c"]
    exec(program[2], {})
    new = load_weights(tmp_path / name.replace(".pt", "-weights.pt"))
    assert "weight" in new


def test_a_failed_write_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_weights(path, {"weight": torch.zeros(3)})
    before = path.read_bytes()
    for name, error in (("fsync", OSError(28, "No space left on device")), ("replace", KeyboardInterrupt())):
        with monkeypatch.context() as patch:

            def fail(*_, error=error):
                raise error

            patch.setattr(os, name, fail)
            with pytest.raises((WeightsError, KeyboardInterrupt), match=r"could not be written: No space left|^$"):
                save_weights(path, {"weight": torch.ones(3)})
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == [path.name]


WRITE = """
import os, pathlib, resource, signal, sys, torch
from open_clip_linear.convert.weights import WeightsError, save_weights
path = pathlib.Path(sys.argv[1])
weights = {"weight": torch.ones(1_000_000)}
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try: save_weights(path, weights); sys.exit("written beyond the limit")
except WeightsError as error: print(error, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
save_weights(path, weights)
"""


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_full_disk_and_a_kill_leave_the_file_that_was_there(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    save_weights(path, {"weight": torch.zeros(3)})
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", WRITE, path], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert done.stdout.startswith(f"{path} could not be written: ")
    assert path.read_bytes() == before
    save_weights(path, {"weight": torch.ones(3)})
    assert load_weights(path)["weight"].tolist() == [1, 1, 1]
