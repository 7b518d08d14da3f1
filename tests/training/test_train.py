"""The loop as its users run it: real processes, alone and under torchrun."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import open_clip
import pytest
import torch
from open_clip.loss import ClipLoss
from open_clip_train.scheduler import cosine_lr

from training.settings import Settings, SettingsError
from training.train import build_optimizer, check_room, learning_rate, parameter_groups

ROOT = Path(__file__).parent.parent.parent


def run(*words, processes=0):
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"] if processes else []
    command = [sys.executable, *launcher, "-m", "training", *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_schedule_equals_openclips():
    settings = Settings(lr=3e-4, warmup=7, steps=50)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = cosine_lr(optimizer, settings.lr, settings.warmup, settings.steps)
    for step in range(settings.steps):
        scheduler(step)
        assert learning_rate(step, settings) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


def test_weight_decay_spares_vectors_norms_and_the_temperature():
    model = open_clip.create_model("tiny-emoji-eq7learned")
    free, decayed = parameter_groups(model, 0.2)
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    assert free["weight_decay"] == 0.0
    assert decayed["weight_decay"] == 0.2
    spared = {names[id(p)] for p in free["params"]}
    assert "logit_scale" in spared
    assert "visual.transformer.resblocks.0.attn.log_gain" in spared
    assert {names[id(p)].rsplit(".", 1)[-1] for p in decayed["params"]} <= {
        "weight", "in_proj_weight", "positional_embedding", "proj", "text_projection"
    }  # fmt: skip
    assert len(spared) + len(decayed["params"]) == len(names)


def test_a_run_writes_what_it_promises_and_its_checkpoint_loads(recipe, tmp_path):
    done = run("--config", recipe, "--output", tmp_path / "run", "--steps", 12, "--lr", "2e-3")
    assert done.returncode == 0, done.stderr
    assert "step 12/12" in done.stdout

    metrics = rows(tmp_path / "run")
    assert [row["step"] for row in metrics] == list(range(1, 13))
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    summary = json.loads((tmp_path / "run" / "train.json").read_text())
    assert summary["samples_seen"] == 12 * 8
    assert summary["final_loss"] == metrics[-1]["loss"]
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["lr"] == 2e-3
    assert not list((tmp_path / "run").glob(".*tmp"))

    model = open_clip.create_model("tiny-emoji-eq7mean", pretrained=str(tmp_path / "run" / "checkpoint.pt"))
    assert model.logit_scale.exp() <= 100
    with pytest.raises(RuntimeError, match="eq7:scale=mean"):
        open_clip.create_model("tiny-emoji-softmax", pretrained=str(tmp_path / "run" / "checkpoint.pt"))


def test_two_processes_under_torchrun_train_as_one(recipe, tmp_path):
    """The command line passes torchrun's own parser, both processes take part, and one of them writes."""
    done = run("--config", recipe, "--output", tmp_path / "two", "--batch-size", 4, processes=2)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "two" / "train.json").read_text())
    assert summary["world_size"] == 2
    assert summary["samples_seen"] == 4 * 8
    assert done.stdout.count("step 4/4") == 1
    assert all(math.isfinite(row["loss"]) for row in rows(tmp_path / "two"))


WORKER = """
import sys, torch, torch.distributed as dist, open_clip, open_clip_linear
from open_clip.loss import ClipLoss
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = open_clip.create_model("tiny-emoji-eq7mean", output_dict=True).double()
images, texts = torch.load(sys.argv[1])
part = slice(rank * 4, rank * 4 + 4)
replica = DistributedDataParallel(model)
ClipLoss(gather_with_grad=True, rank=rank, world_size=world)(**replica(images[part], texts[part])).backward()
if rank == 0:
    torch.save({n: p.grad for n, p in model.named_parameters() if p.requires_grad}, sys.argv[2])
dist.destroy_process_group()
"""


def test_gradients_of_two_processes_equal_one_on_the_joint_batch(tmp_path):
    """float64, every parameter, logit_scale included, with the loss and wrapper the loop uses."""
    torch.manual_seed(0)
    model = open_clip.create_model("tiny-emoji-eq7mean", output_dict=True).double()
    size = model.visual.image_size[0]
    images = torch.randn(8, 3, size, size, dtype=torch.float64)
    texts = open_clip.get_tokenizer("tiny-emoji-eq7mean")([f"number {i}" for i in range(8)])
    torch.save((images, texts), tmp_path / "batch.pt")
    (tmp_path / "worker.py").write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, tmp_path / "worker.py", tmp_path / "batch.pt", tmp_path / "gradients.pt"],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    joint = torch.load(tmp_path / "gradients.pt")
    ClipLoss()(**model(images, texts)).backward()
    assert "logit_scale" in joint
    assert len(joint) == sum(p.requires_grad for p in model.parameters())
    for name, gradient in joint.items():
        assert torch.allclose(gradient, model.get_parameter(name).grad, rtol=1e-8, atol=1e-12), name


def test_an_optimizer_that_cannot_be_built_is_refused_with_a_sentence():
    model = open_clip.create_model("tiny-emoji-eq7")
    for name in ("bnbadam", "fusedadam"):
        with pytest.raises(SettingsError, match=f"--opt timm/{name} cannot be used here: ."):
            build_optimizer(model, Settings(opt=f"timm/{name}"))
    for name in ("nmuon", "adan", "lion", "sgd"):
        assert len(build_optimizer(model, Settings(opt=f"timm/{name}")).param_groups) == 2


def test_a_disk_without_room_for_the_checkpoint_is_found_before_the_run(tmp_path, monkeypatch):
    model = open_clip.create_model("tiny-emoji-eq7")
    check_room(tmp_path, model)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(SettingsError, match="1,000 are free; make room"):
        check_room(tmp_path, model)


def test_refusals_come_before_any_work(recipe, tmp_path):
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "checkpoint.pt").write_bytes(b"earlier")
    done = run("--config", recipe, "--output", tmp_path / "done")
    assert done.returncode == 2
    assert "holds a finished run" in done.stderr
    assert (tmp_path / "done" / "checkpoint.pt").read_bytes() == b"earlier"

    done = run("--config", recipe, "--output", tmp_path / "x", "--train-data", tmp_path / "none")
    assert done.returncode == 1
    assert "manifest.jsonl does not exist" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_loss_that_is_no_number_ends_the_run_with_the_step(recipe, tmp_path):
    done = run("--config", recipe, "--output", tmp_path / "nan", "--lr", "1e30", "--steps", 30)
    assert done.returncode == 1
    assert "the loss is" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "nan" / "checkpoint.pt").exists()


def test_help_shows_an_example():
    done = run("--help")
    assert done.returncode == 0
    assert "example: python -m training" in done.stdout
