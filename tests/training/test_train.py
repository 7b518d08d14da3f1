"""The loop as its users run it: real processes, alone, two of them, and under torchrun."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import open_clip
import pytest
import torch

from training import checkpoint
from training.command_line import parser, resolve
from training.distributed import World, join, peer_lost
from training.folder import locked
from training.settings import SettingsError
from training.setup import Setup
from training.signals import StopRequest
from training.train import TrainingError, train, update

ROOT = Path(__file__).parent.parent.parent


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_a_run_writes_what_it_promises_and_its_checkpoint_loads(zygote, recipe, tmp_path):
    ended = zygote.run(
        *("--config", recipe, "--output", tmp_path, "--name", "run", "--max-steps", 12, "--lr", "2e-3"),
        *("--report-to", "tensorboard"),
    )
    assert ended.codes == [0], ended.output
    assert "step 12/12" in ended.output
    run = tmp_path / "run"
    metrics = rows(run)
    assert [row["step"] for row in metrics] == list(range(1, 13))
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    names = {"loss", "lr", "logit_scale", "samples_seen", "images_per_s", "data_wait", "grad_norm", "skipped_steps"}
    assert names | {"param_norm", "update_norm", "bad_samples", "images_per_s_per_device"} <= set(metrics[0])
    assert "mfu" not in metrics[0], "the peak of a CPU is not known"
    assert all(0 <= row["data_wait"] <= 1 for row in metrics)
    assert metrics[-1]["update_norm"] < metrics[-1]["param_norm"]
    summary = json.loads((run / "train.json").read_text())
    assert (summary["model"], summary["samples_seen"]) == ("tiny-emoji-eq7mean", 12 * 8)
    assert summary["final_loss"] == metrics[-1]["loss"]
    assert json.loads((run / "settings.json").read_text())["lr"] == 2e-3
    assert not list(run.rglob(".*tmp"))
    assert list((run / "tensorboard").iterdir())

    for path in (run / "checkpoint.pt", run / "checkpoints" / "step-00000012.pt"):
        model = open_clip.create_model("tiny-emoji-eq7mean", pretrained=str(path))
        assert model.logit_scale.exp() <= 100
    with pytest.raises(RuntimeError, match="eq7:scale=mean"):
        open_clip.create_model("tiny-emoji-softmax", pretrained=str(run / "checkpoint.pt"))


def torchrun(*words, restarts=0):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    return subprocess.Popen(
        [*launcher, "--standalone", "-m", "training", *map(str, words)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def pids_in(folder: Path) -> Iterator[int]:
    """Processes whose command line names the folder and that torchrun started."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_text().split("\0")
            environment = (path / "environ").read_text()
        except OSError:
            continue
        if str(folder) in words and "\0LOCAL_RANK=1\0" in "\0" + environment:
            yield int(path.name)


@pytest.mark.slow
def test_torchrun_brings_a_job_back_whose_rank_was_killed(recipe, tmp_path):
    """The command line passes torchrun's parser; both processes take part and one writes; the killed run goes on."""
    words = ("--config", recipe, "--output", tmp_path, "--batch-size", 4, "--max-steps", 12, "--resume", "auto")
    running = torchrun(*words, "--save-every-steps", 2, restarts=1)
    output = ""
    for line in running.stdout:
        output += line
        if "step 6/" in line and "step 6/" not in output.removesuffix(line):
            for pid in pids_in(tmp_path):
                os.kill(pid, signal.SIGKILL)
    assert running.wait() == 0, output
    assert "resumed from" in output
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, 13))
    summary = json.loads((tmp_path / "train.json").read_text())
    assert (summary["world_size"], summary["samples_seen"]) == (2, 12 * 8)
    assert all(math.isfinite(row["loss"]) for row in rows(tmp_path))


@pytest.mark.slow
def test_fsdp_resumes_and_leaves_weights_that_anyone_loads(zygote, recipe, tmp_path):
    words = ("--config", recipe, "--batch-size", 4, "--max-steps", 6, "--fsdp", "--ema", 0.9, "--opt", "adamw")
    words += ("--save-every-steps", 1, "--resume", "auto")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ended = zygote.run(*words, "--output", whole, world=2)
    assert ended.codes == [0, 0], ended.output
    zygote.run_until("step 4/", signal.SIGKILL, *words, "--output", killed, world=2)
    ended = zygote.run(*words, "--output", killed, world=2)
    assert ended.codes == [0, 0], ended.output
    assert "resumed from" in ended.output
    assert [row["loss"] for row in rows(whole)] == [row["loss"] for row in rows(killed)]
    plain = tmp_path / "plain"
    ended = zygote.run(*(w for w in words if w != "--fsdp"), "--output", plain, world=2)
    assert ended.codes == [0, 0], ended.output
    assert [row["loss"] for row in rows(plain)] == pytest.approx([row["loss"] for row in rows(whole)], rel=1e-4)
    for name in ("checkpoint.pt", "checkpoint-ema.pt"):
        loaded = [torch.load(f / name, weights_only=True)["state_dict"] for f in (whole, killed, plain)]
        assert all(torch.equal(loaded[0][key].squeeze(), loaded[1][key].squeeze()) for key in loaded[0])
        assert all(torch.allclose(loaded[0][k].squeeze(), loaded[2][k], atol=1e-3) for k in loaded[2])
        open_clip.create_model("tiny-emoji-eq7mean", pretrained=str(whole / name))


def run_here(recipe, folder, monkeypatch, change, *words):
    """A run in this process whose losses (from step 1) are what `change(step, loss)` makes of them."""
    settings = resolve(parser().parse_args(["--config", str(recipe), "--output", str(folder), *map(str, words)]))
    compute, step = Setup.forward_backward, iter(range(1, 10_000))
    monkeypatch.setattr(Setup, "forward_backward", lambda self, pairs: change(next(step), compute(self, pairs)))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        with locked(folder):
            return train(settings, World(0, 1, torch.device("cpu")), "test", StopRequest())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_a_step_that_is_no_number_is_skipped_and_its_samples_named(recipe, tmp_path, monkeypatch):
    def nan_at_3(step, loss):
        return loss * math.nan if step == 3 else loss

    assert run_here(recipe, tmp_path, monkeypatch, nan_at_3, "--max-steps", 5)
    found = rows(tmp_path)
    assert [row["skipped_steps"] for row in found] == [0, 0, 1, 1, 1]
    assert found[2]["loss"] is None
    assert found[3]["loss"] == found[3]["loss"]
    (skipped,) = (event for event in events(tmp_path) if event["event"] == "skipped")
    assert skipped["step"] == 3
    assert len(skipped["keys"]) == 8
    assert all(re.fullmatch(r"0000\d\.tar:vendor\d-\w+-\w+", key) for key in skipped["keys"])
    # Nothing moved in that step: neither weights nor the optimizer's moments.
    assert json.loads((tmp_path / "train.json").read_text())["skipped_steps"] == 1


def test_too_many_such_steps_end_the_run_and_keep_the_last_checkpoint(recipe, tmp_path, monkeypatch):
    words = ("--max-steps", 20, "--save-every-steps", 2, "--max-bad-steps", 3)
    with pytest.raises(TrainingError, match="step 9: 4 steps in a row had a loss or gradient that is no number"):
        run_here(recipe, tmp_path, monkeypatch, lambda s, loss: loss / 0 if s > 5 else loss, *words)
    assert not (tmp_path / "checkpoint.pt").exists()
    assert events(tmp_path)[-1]["event"] == "failed"


def test_weights_that_are_no_numbers_are_never_saved(recipe, tmp_path, monkeypatch):
    """The step that breaks the weights looks good itself; those after it push no good checkpoint out."""
    step = iter(range(1, 99))

    def break_at_5(setup):
        update(setup)
        if next(step) == 5:
            with torch.no_grad():
                next(setup.parts.model.parameters()).fill_(math.nan)

    monkeypatch.setattr("training.train.update", break_at_5)
    words = ("--max-steps", 20, "--save-every-steps", 1, "--max-bad-steps", 4, "--keep", 2)
    with pytest.raises(TrainingError, match="The last checkpoint of finite weights is kept"):
        run_here(recipe, tmp_path, monkeypatch, lambda s, loss: loss, *words)
    found = checkpoint.found(tmp_path / "checkpoints")
    assert [checkpoint.step_of(path) for path in found] == [4, 3]
    assert all(t.isfinite().all() for t in checkpoint.load(found[0])["state_dict"].values() if t.is_floating_point())


def test_a_spike_rolls_back_to_the_last_checkpoint_and_on_with_new_data(recipe, tmp_path, monkeypatch):
    words = ("--max-steps", 45, "--save-every-steps", 10, "--spike-rollback", "--lr", "1e-5")
    assert run_here(recipe, tmp_path, monkeypatch, lambda s, loss: loss + 50 * (s == 36), *words)
    kinds = [(event["event"], event["step"]) for event in events(tmp_path)]
    assert ("spike", 36) in kinds
    assert ("rollback", 30) in kinds
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, 46))
    assert max(row["loss"] for row in rows(tmp_path)) < 20, "the spike's row was replaced"


def test_a_rollback_does_not_write_the_checkpoint_it_went_back_to(recipe, tmp_path, monkeypatch):
    saved = []
    write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda path, state: (saved.append(path.name), write(path, state)))
    words = ("--max-steps", 45, "--save-every-steps", 40, "--keep", 1, "--spike-rollback", "--lr", "1e-5")
    assert run_here(recipe, tmp_path, monkeypatch, lambda s, loss: loss + 50 * (s == 43), *words)
    assert ("rollback", 40) in [(event["event"], event["step"]) for event in events(tmp_path)]
    assert saved == ["step-00000040.pt", "step-00000045.pt"], "while it is written anew it cannot be verified"


def test_a_spike_before_the_first_checkpoint_is_passed_over(recipe, tmp_path, monkeypatch):
    words = ("--max-steps", 40, "--spike-rollback", "--lr", "1e-5")
    assert run_here(recipe, tmp_path, monkeypatch, lambda s, loss: loss + 50 * (s == 36), *words)
    assert ("no rollback", 36) in [(event["event"], event["step"]) for event in events(tmp_path)]
    assert len(rows(tmp_path)) == 40


@pytest.mark.slow
def test_rollbacks_that_do_not_help_end_the_run(recipe, tmp_path, monkeypatch):
    words = ("--max-steps", 45, "--save-every-steps", 40, "--spike-rollback", "--lr", "1e-5")
    with pytest.raises(TrainingError, match="another loss spike after 3 rollbacks to step 40; lower lr"):
        run_here(recipe, tmp_path, monkeypatch, lambda s, loss: loss + 50 * (s > 40), *words)


def resumed(recipe, folder, monkeypatch, *words):
    """The checkpoint after two more steps of a run that was stopped after four."""
    stopped = ("--max-steps", 4, "--opt", "adamw")
    assert run_here(recipe, folder, monkeypatch, lambda s, loss: loss, *stopped)
    monkeypatch.undo()
    more = ("--max-steps", 6, "--resume", "auto", "--opt", "adamw", *words)
    assert run_here(recipe, folder, monkeypatch, lambda s, loss: loss, *more)
    newest = checkpoint.newest(folder / "checkpoints", pytest.fail)
    assert checkpoint.step_of(newest) == 6
    return checkpoint.load(newest)


def test_a_finished_run_goes_on_with_other_settings_of_its_optimizer(recipe, tmp_path, monkeypatch):
    words = ("--wd", 0.05, "--beta2", 0.9, "--eps", "1e-5")
    groups = resumed(recipe, tmp_path, monkeypatch, *words)["optimizer"]["param_groups"]
    assert [(g["weight_decay"], g["betas"], g["eps"]) for g in groups] == [
        (0, (0.9, 0.9), 1e-5),
        (0.05, (0.9, 0.9), 1e-5),
    ]
    assert any("wd was 0.2 and is 0.05" in event["text"] for event in events(tmp_path))
    assert (tmp_path / "earlier-checkpoint.pt").exists()
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 6


def test_an_average_that_begins_on_resuming_begins_at_the_weights(recipe, tmp_path, monkeypatch):
    state = resumed(recipe, tmp_path, monkeypatch, "--ema", 0.9999)
    earlier = torch.load(tmp_path / "earlier-checkpoint.pt", weights_only=True)["state_dict"]
    for name, average in state["ema"].items():
        assert torch.allclose(average, earlier[name], atol=1e-5), name


def test_going_back_to_an_earlier_checkpoint_leaves_the_later_ones_aside(zygote, recipe, tmp_path):
    words = ("--config", recipe, "--output", tmp_path, "--save-every-steps", 1, "--keep", 0)
    assert zygote.run_until("step 5/", signal.SIGTERM, *words, "--max-steps", 30).codes == [75]
    folder = tmp_path / "checkpoints"
    ended = zygote.run(*words, "--max-steps", 4, "--resume", folder / "step-00000002.pt")
    assert ended.codes == [0], ended.output
    assert [checkpoint.step_of(path) for path in checkpoint.found(folder)] == [4, 3, 2, 1]
    assert (folder / "step-00000005.pt.aside").exists()
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4]


def test_a_signal_before_the_first_step_ends_at_once(zygote, recipe, tmp_path):
    """While the process waits for a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "00000.tar")
    words = ("--config", recipe, "--output", tmp_path / "run", "--allow-pipe")
    source = f"pipe:echo reading >&2; cat {tmp_path}/00000.tar"
    ended = zygote.run_until("reading", signal.SIGTERM, *words, "--train-data", source)
    assert ended.codes == [75], ended.output
    assert "ended at once by SIGTERM" in ended.output


def test_one_folder_has_one_run_at_a_time(zygote, recipe, tmp_path):
    with locked(tmp_path):
        ended = zygote.run("--config", recipe, "--output", tmp_path)
    assert ended.codes == [2]
    assert "another process is training there now" in ended.output


def test_refusals_come_before_any_work(zygote, recipe, tmp_path):
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "checkpoint.pt").write_bytes(b"earlier")
    ended = zygote.run("--config", recipe, "--output", tmp_path / "done")
    assert ended.codes == [2]
    assert "holds a finished run" in ended.output
    assert (tmp_path / "done" / "checkpoint.pt").read_bytes() == b"earlier"

    ended = zygote.run("--config", recipe, "--output", tmp_path / "x", "--train-data", tmp_path / "none")
    assert ended.codes == [2]
    assert "none" in ended.output
    assert "Traceback" not in ended.output
    assert not (tmp_path / "x" / "metrics.jsonl").exists()

    ended = zygote.run("--config", recipe, "--output", tmp_path / "y", "--resume", tmp_path / "no.pt")
    assert ended.codes == [2]
    assert "no such file; give a checkpoint's path, or auto" in ended.output

    ended = zygote.run("--config", recipe, "--output", tmp_path / "y", "--resume", recipe)
    assert ended.codes == [2]
    assert "there is no shapes.toml.sha256 beside it, so it is no checkpoint of this trainer" in ended.output

    ended = zygote.run("--config", recipe, "--output", tmp_path / "y", "--resume", tmp_path)
    assert ended.codes == [2]
    assert f"--resume {tmp_path}: is a folder" in ended.output


def test_a_loss_that_is_no_number_ends_the_run_with_the_step(zygote, recipe, tmp_path):
    ended = zygote.run(
        "--config", recipe, "--output", tmp_path, "--lr", "1e30", "--max-steps", 30, "--max-bad-steps", 3
    )
    assert ended.codes == [1]
    assert "4 steps in a row had a loss or gradient that is no number" in ended.output
    assert "Traceback" not in ended.output
    assert not (tmp_path / "checkpoint.pt").exists()


def test_a_dry_run_says_what_the_run_would_be_and_writes_nothing(zygote, recipe, tmp_path):
    ended = zygote.run("--config", recipe, "--output", tmp_path / "dry", "--max-steps", 90, "--dry-run")
    assert ended.codes == [0], ended.output
    figures = json.loads(ended.output[ended.output.index("{") :])
    assert (figures["steps"], figures["samples"], figures["epochs"]) == (90, 720, 20)
    assert (figures["epoch_samples"], figures["data_samples"]) == (36, 36)
    assert "warning" not in ended.output
    model = open_clip.create_model("tiny-emoji-eq7mean")
    assert figures["parameters"] == sum(p.numel() for p in model.parameters())
    assert figures["image_gmacs"] > 0
    assert figures["hours"] == pytest.approx(90 * figures["step_seconds"] / 3600)
    assert not (tmp_path / "dry").exists()


def test_a_dry_run_says_when_the_data_is_not_what_the_recipe_means(zygote, recipe, tmp_path):
    ended = zygote.run("--config", recipe, "--output", tmp_path, "--train-num-samples", "400_000_000", "--dry-run")
    assert ended.codes == [0], ended.output
    assert (
        "warning: --train-num-samples says that an epoch has 400,000,000 samples, and the data has 36" in ended.output
    )
    figures = json.loads(ended.output[ended.output.index("{") :])
    assert (figures["epoch_samples"], figures["data_samples"]) == (400_000_000, 36)


def test_names_that_no_encoding_has_are_printed(zygote, recipe, tmp_path):
    with tarfile.open(tmp_path / "00000.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for number in range(16):
            tar.addfile(tarfile.TarInfo(f"\udcff{number}.txt"))
    (tmp_path / "sizes.json").write_text('{"00000.tar": 16}')
    words = ("--config", recipe, "--output", tmp_path / "run", "--unique-key", "")
    ended = zygote.run(*words, "--train-data", tmp_path / "00000.tar")
    assert ended.codes == [1], ended.output
    assert re.search(r"00000\.tar:\\udcff\d+ \(no picture", ended.output), ended.output
    assert "Traceback" not in ended.output
    assert events(tmp_path / "run")[-1]["event"] == "failed"


def test_the_end_of_another_process_is_said_in_a_line(zygote, recipe, tmp_path):
    zygote.start("--config", recipe, "--output", tmp_path, "--batch-size", 4, "--max-steps", 500, world=2)
    output = ""
    for line in zygote.lines():
        if "step 3/" in line and "step 3/" not in output:
            os.kill(zygote.pids[1], signal.SIGKILL)
        output += line
    assert zygote.codes == [1, -signal.SIGKILL], output
    assert re.search(r"error \(process 0\): another process of the run ended or cannot be reached: .*gloo", output)
    assert "Traceback" not in output


def test_errors_of_another_sort_are_not_taken_for_a_lost_process():
    assert peer_lost(RuntimeError("[/x/gloo/transport/tcp/pair.cc:463] op.preamble.length <= op.nbytes")) == ""


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2 in the environment, but .*RANK expected, but not set; start the run by"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE in the environment must be a number, found 'two'; unset it"),
    ],
)
def test_half_an_environment_of_torchrun_is_refused(monkeypatch, found, message):
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=message), join():
        pass


@pytest.mark.slow
def test_a_torchrun_that_is_killed_leaves_a_checkpoint_and_no_process(recipe, tmp_path):
    running = torchrun("--config", recipe, "--output", tmp_path, "--batch-size", 4, "--max-steps", 5000)
    output = ""
    for line in running.stdout:  # until the last process that holds it has ended
        if "step 3/" in line and "step 3/" not in output:
            running.kill()
        output += line
    assert running.wait() == -signal.SIGKILL
    last = events(tmp_path)[-1]
    assert (last["event"], last["text"]) == ("stopped", "stopped by SIGTERM; --resume auto continues"), output
    assert checkpoint.step_of(checkpoint.newest(tmp_path / "checkpoints", pytest.fail)) == last["step"]


def test_help_shows_an_example_and_the_exit_codes(zygote):
    ended = zygote.run("--help")
    assert ended.codes == [0]
    assert "example: python -m training" in ended.output
    assert "75 a signal" in ended.output
