"""A run that is killed and resumed equals the run that never was, bit for bit: real processes, killed for real."""

import itertools
import json
import random
import signal

import pytest
import torch

from training import checkpoint

STEPS = 14  # of 8 samples: three epochs of the 36 shapes


def words(recipe, folder, **changes):
    """A command line that trains with patch dropout and augmentation, so that every generator matters."""
    options = {
        "output": folder,
        "max_steps": STEPS,
        "force_patch_dropout": 0.25,
        "save_every_steps": 3,
        "save_every_minutes": 0,
        "resume": "auto",
        "unique_key": "",
        "opt": "adamw",
        "shuffle_buffer": 7,
        **changes,
    }
    return ["--config", recipe, *itertools.chain(*(("--" + k.replace("_", "-"), v) for k, v in options.items()))]


def losses(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    return [(row["loss"], row["grad_norm"], row["lr"], row["samples_seen"]) for row in rows]


def weights(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["state_dict"]


def assert_equal_runs(one, other):
    assert losses(one) == losses(other)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def unbroken(zygote, recipe, tmp_path_factory):
    """Runs that nothing interrupts, one for each layout and options, made when first asked for."""
    made = {}

    def get(world=1, **changes):
        key = (world, *sorted(changes.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("unbroken")
            ended = zygote.run(*words(recipe, made[key], **changes), world=world)
            assert ended.codes == [0] * world, ended.output
        return made[key]

    return get


LAYOUTS = [
    (1, {"workers": 2}),
    (2, {"workers": 0, "batch_size": 4}),
    pytest.param(1, {"workers": 0}, marks=pytest.mark.slow),
    pytest.param(2, {"workers": 2, "batch_size": 4}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("world", "changes"), LAYOUTS)
def test_a_killed_run_equals_the_unbroken_one(zygote, recipe, tmp_path, unbroken, world, changes):
    command = words(recipe, tmp_path, **changes)
    for seen in ("step 5/", "step 10/"):
        killed = zygote.run_until(seen, signal.SIGKILL, *command, world=world)
        assert killed.codes == [-signal.SIGKILL] * world, killed.output
    ended = zygote.run(*command, world=world)
    assert ended.codes == [0] * world, ended.output
    assert "resumed from" in ended.output
    assert_equal_runs(tmp_path, unbroken(world, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"unique_key": "concept", "shuffle_buffer": 5000, "opt": "timm/nmuon", "workers": 2},
        pytest.param({"accum_freq": 2, "batch_size": 4, "ema": 0.9, "decode": "pil"}, marks=pytest.mark.slow),
        pytest.param({"precision": "amp", "siglip": None, "lr_scheduler": "const"}, marks=pytest.mark.slow),
    ],
)
def test_so_does_one_with_other_options(zygote, recipe, tmp_path, unbroken, changes):
    def line(folder):
        return [w for w in words(recipe, folder, **changes) if w is not None]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert zygote.run(*line(whole)).codes == [0]
    assert zygote.run_until("step 8/", signal.SIGKILL, *line(killed)).codes == [-signal.SIGKILL]
    ended = zygote.run(*line(killed))
    assert ended.codes == [0], ended.output
    assert_equal_runs(whole, killed)
    if "ema" in changes:
        first, second = (torch.load(f / "checkpoint-ema.pt", weights_only=True)["state_dict"] for f in (whole, killed))
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert not all(torch.equal(first[name], weights(whole)[name]) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "changes"), LAYOUTS[:2])
def test_thirty_kills_at_random_moments(zygote, recipe, tmp_path, unbroken, world, changes):
    """Fifteen a layout. A kill falls a random number of lines after the start, or within a checkpoint's writing."""
    rng = random.Random(world)
    command = words(recipe, tmp_path, **changes, save_every_steps=1)
    moments = [f"step {rng.randint(1, STEPS)}/" for _ in range(15)]
    for moment in moments:
        ended = zygote.run_until(moment, signal.SIGKILL, *command, world=world)
        if ended.codes == [0] * world:  # it never came to that line again: the run is over
            break
    assert zygote.run(*command, world=world).codes == [0] * world
    assert_equal_runs(tmp_path, unbroken(world, **changes))


@pytest.mark.parametrize(("number", "world"), [(signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGUSR1, 2)])
def test_a_signal_leaves_a_checkpoint_and_code_75(zygote, recipe, tmp_path, unbroken, number, world):
    """It reaches one process, and all end together."""
    changes = {"workers": 2, "batch_size": 8 // world}
    every = 1 if number == signal.SIGTERM else 10 * STEPS  # with 1 the signal comes while a checkpoint is written
    command = words(recipe, tmp_path, **changes, save_every_steps=every)
    ended = zygote.run_until("step 4/", number, *command, world=world, rank=world - 1)
    assert ended.codes == [75] * world, ended.output
    stopped = checkpoint.step_of(checkpoint.newest(tmp_path / "checkpoints", pytest.fail))
    assert 4 <= stopped < STEPS
    last = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["step"]) == ("stopped", stopped)
    assert not (tmp_path / "checkpoint.pt").exists()
    assert zygote.run(*command, world=world).codes == [0] * world
    assert_equal_runs(tmp_path, unbroken(world, **changes))


def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(zygote, recipe, tmp_path, unbroken):
    command = words(recipe, tmp_path, workers=0)
    zygote.run_until("step 13/", signal.SIGKILL, *command)  # step 12 was saved after step 9 was on the disk
    newest = checkpoint.newest(tmp_path / "checkpoints", pytest.fail)
    content = bytearray(newest.read_bytes())
    content[len(content) // 3] ^= 4
    newest.write_bytes(content)
    ended = zygote.run(*command)
    assert ended.codes == [0]
    assert f"{newest} is passed over: its content does not equal its checksum" in ended.output
    assert_equal_runs(tmp_path, unbroken(workers=0))


def test_what_only_looks_like_checkpoints_is_passed_over(zygote, recipe, tmp_path, unbroken):
    command = words(recipe, tmp_path, workers=0)
    zygote.run_until("step 11/", signal.SIGKILL, *command)  # step 9's or 6's is the newest
    folder = tmp_path / "checkpoints"
    (folder / "step-00000098.pt").symlink_to("nowhere")
    (folder / "step-00000098.pt.sha256").write_text("0" * 64)
    (folder / "step-00000099.pt").write_bytes(b"")
    (folder / "step-00000099.pt.sha256").mkdir()
    ended = zygote.run(*command)
    assert ended.codes == [0], ended.output
    assert "step-00000098.pt is passed over: " in ended.output
    assert "step-00000099.pt.sha256: Is a directory" in ended.output
    assert_equal_runs(tmp_path, unbroken(workers=0))


def test_a_finished_run_is_left_alone(zygote, recipe, unbroken):
    folder = unbroken(workers=0)
    before = (folder / "checkpoint.pt").stat().st_mtime_ns
    ended = zygote.run(*words(recipe, folder, workers=0))
    assert (ended.codes, "is finished already" in ended.output) == ([0], True)
    assert (folder / "checkpoint.pt").stat().st_mtime_ns == before


def test_other_processes_and_workers_take_over_what_is_left_of_the_epoch(zygote, recipe, tmp_path):
    """From 2 processes without workers to 1 with 2: the first epoch's samples are each used once."""
    killed = zygote.run_until("step 3/", signal.SIGTERM, *words(recipe, tmp_path, workers=0, batch_size=4), world=2)
    assert killed.codes == [75, 75], killed.output
    ended = zygote.run(*words(recipe, tmp_path, workers=2, batch_size=8))
    assert ended.codes == [0], ended.output
    assert "the run had 2 processes and has 1" in ended.output
    assert len(losses(tmp_path)) == STEPS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "tiny-emoji-softmax"}, "--model is 'tiny-emoji-softmax' and the checkpoint's run had"),
        ({"opt": "timm/lion"}, "--opt is 'timm/lion' and the checkpoint's run had 'adamw'"),
        ({"seed": 5}, "--seed is 5, the checkpoint's run had 0"),
        ({"unique_key": "concept", "shuffle_buffer": 5000}, "--unique-key is 'concept', the checkpoint's run had ''"),
        ({"resume": ""}, "holds a"),
    ],
)
def test_what_cannot_be_continued_is_refused(zygote, recipe, unbroken, changes, message):
    folder = unbroken(workers=0)
    ended = zygote.run(*words(recipe, folder, workers=0, max_steps=STEPS + 1, **changes))
    assert ended.codes == [2], ended.output
    assert message in ended.output
    assert "Traceback" not in ended.output
