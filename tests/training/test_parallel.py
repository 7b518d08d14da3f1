"""Two gloo processes against one, in float64: gradients, steps, averages, features. One launch computes all cases."""

import os
import subprocess
import sys
from pathlib import Path

import open_clip
import parallel_worker
import pytest
import tiny_clip
import torch
from torch import nn

from training.distributed import World
from training.loss import build_teacher
from training.model import Ema, build
from training.optimizer import build_optimizer

CPU = torch.device("cpu")
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    tiny_clip.register(folder / "configs")
    torch.manual_seed(0)
    torch.save(open_clip.create_model("grad-teacher").state_dict(), folder / "teacher.pt")
    return folder


@pytest.fixture(scope="module")
def results(folder):
    """What the two processes found; see parallel_worker.main."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [sys.executable, *launcher, TESTS / "parallel_worker.py", folder],
        cwd=TESTS.parent.parent,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent.parent)},
    )
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "results.pt", weights_only=True)


def alone(kind, settings):
    """The model of the settings in one process, with the gradients of the loss written out on the joint batch."""
    torch.manual_seed(0)
    model = build(settings, CPU).double()
    teacher = build_teacher(settings, model, World(0, 1, CPU)).double() if kind == "distill" else None
    value = tiny_clip.written_out(kind, model, [tiny_clip.batch(parallel_worker.PAIRS)], teacher)
    value.backward()
    return model, value.item()


@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp"])
@pytest.mark.parametrize("case", parallel_worker.CASES)
def test_gradients_of_two_processes_are_the_joint_batchs(case, fsdp, folder, results):
    """Every trained parameter, logit scale and bias included, and the mean of the processes' losses."""
    kind, _, kwargs = parallel_worker.CASES[case]
    gradients, value = results[case, fsdp]
    model, wanted = alone(kind, parallel_worker.settings_of(kind, folder, fsdp=fsdp, **kwargs))
    tiny_clip.assert_close(gradients, tiny_clip.gradients(model))
    assert len(gradients) == sum(p.requires_grad for p in model.parameters())
    assert value == pytest.approx(wanted, rel=1e-12)


def test_a_sharded_step_and_its_average_equal_the_whole_ones(folder, results):
    found = results["trained"]
    settings = parallel_worker.settings_of("clip", folder, fsdp=True, lr=1e-2)
    model, _ = alone("clip", settings)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    ema, optimizer = Ema(model, 0.75), build_optimizer(model, settings)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    ema.update(model)
    assert torch.allclose(found["norm"], norm, rtol=1e-9)
    for which, state in (("weights", dict(model.named_parameters())), ("average", ema.state_dict())):
        assert set(found[which]) == set(state)
        for name, wanted in state.items():
            assert (found[which][name] - wanted).norm() <= 1e-8 * (wanted - start[name]).norm() + 1e-12, name
    assert all(torch.equal(found["again"][name], average) for name, average in found["average"].items())

    model.load_state_dict(model.state_dict() | found["weights"])
    images, texts = tiny_clip.batch(4, seed=1)
    for features, wanted in zip(found["features"], (model.encode_image(images), model.encode_text(texts)), strict=True):
        assert torch.allclose(features, wanted, rtol=0, atol=1e-12)


def test_an_optimizer_that_fails_on_sharded_parameters_is_refused_and_muon_is_not(results):
    """Both are tried on a sharded matrix against the whole one as they are built."""
    assert results["refusals"]["timm/nmuon"] == "accepted"
    assert results["refusals"]["timm/cadamw"].startswith("--opt timm/cadamw cannot be used with --fsdp, as it fails on")


def test_an_overflow_on_one_process_skips_the_step_on_all(results):
    assert results["overflow"] == [(4.0, True), (4.0, True)]
