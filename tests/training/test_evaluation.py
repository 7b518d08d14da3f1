"""Evaluation inside a run: the same figures on two ranks as on one, and a training that does not notice."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import evaluated
import numpy as np
import open_clip
import pytest
import torch
from open_clip.loss import ClipLoss
from open_clip_train.train import get_clip_metrics
from PIL import Image

from data_prep.errors import DataError
from evaluate.data import read
from evaluate.data.pairs import read_pairs
from evaluate.errors import RefusedError
from training import evaluation
from training.distributed import World
from training.evaluation import Evaluation
from training.settings import Settings

ROOT = Path(__file__).parent.parent.parent
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def data(tmp_path_factory, shards):
    """`pairs`: the 36 shapes; `val`: 31 noise pictures of 13 classes, one of them damaged."""
    folder = tmp_path_factory.mktemp("evaluation")
    (folder / "pairs").symlink_to(shards)
    for seed in range(31):
        pixels = np.random.default_rng(seed).integers(0, 256, (9, 7, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
        path = folder / "val" / evaluated.CLASSES[seed % 13] / f"{seed}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    path.write_bytes(path.read_bytes()[:200])
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Thirteen classes in place of ImageNet's thousand, and the threads of a rank, so that sums agree to the bit."""
    for module, name in ((read, "class_list"), (evaluation, "get_dataset"), (evaluation, "MOST_BAD")):
        monkeypatch.setattr(module, name, getattr(module, name))
    evaluated.small_imagenet()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_two_ranks_give_what_one_gives(data, tmp_path):
    """To the last bit; also with a rank that has no picture of its own, and with weights sharded by FSDP."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*launcher, evaluated.__file__, data, tmp_path], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    model = evaluated.spread_model()
    for size in (8, 64):
        assert first[str(size)] == evaluated.evaluation_of(data, model, ALONE, size).run(model)
    assert first["sharded"] == pytest.approx(first["8"], rel=1e-5)
    assert first["8"]["val_pairs"] == 36
    assert (first["8"]["imagenet_images"], first["8"]["imagenet_bad_images"]) == (30, 1)
    named = [line for line in done.stderr.splitlines() if "1 unreadable pictures were left out" in line]
    assert len(named) == 4, "once an evaluation, by the first rank alone"
    assert "30.png" in named[0]


def test_figures_are_those_of_a_plain_computation(data):
    model = evaluated.spread_model().eval()
    tokenizer = open_clip.get_tokenizer(evaluated.MODEL)
    figures = evaluated.evaluation_of(data, model, ALONE, 8).run(model)
    preprocess = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(**model.visual.preprocess_cfg), is_train=False
    )
    pairs = read_pairs(data / "pairs")
    with torch.no_grad():
        out = model(torch.stack([preprocess(p.picture()) for p in pairs]), tokenizer([p.captions[0] for p in pairs]))
        loss = ClipLoss()(**out)
    theirs = get_clip_metrics(**out)
    assert figures["val_loss"] == pytest.approx(float(loss), rel=1e-5)
    # Equal captions tie, in OpenCLIP's unstable sort as they like; pictures are all different.
    assert figures["val_text_to_image_r5"] == pytest.approx(100 * theirs["text_to_image_R@5"])

    files = [path for path in sorted((data / "val").glob("*/*.png")) if path.stem != "30"]
    with torch.no_grad():
        classifier = open_clip.build_zero_shot_classifier(model, tokenizer, evaluated.NAMES, evaluated.TEMPLATES)
        pixels = torch.stack([preprocess(Image.open(path)) for path in files])
        guesses = (100.0 * model.encode_image(pixels, normalize=True) @ classifier).topk(5).indices
    right = guesses == torch.tensor([evaluated.CLASSES.index(path.parent.name) for path in files])[:, None]
    assert figures["imagenet_top1"] == pytest.approx(100 * right[:, 0].float().mean().item())
    assert figures["imagenet_top5"] == pytest.approx(100 * right.any(dim=1).float().mean().item())
    assert len(set(guesses[:, 0].tolist())) >= 3, "a model that always says the same proves nothing"


def weights_after_three_steps(data, evaluate):
    torch.manual_seed(3)
    model = open_clip.create_model(evaluated.MODEL, force_patch_dropout=0.5, output_dict=True).train()
    evaluation = evaluated.evaluation_of(data, model, ALONE, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = ClipLoss()(**model(torch.randn(4, 3, 48, 48), torch.randint(1, 99, (4, 16))))
            if evaluate:
                evaluation.run(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def test_a_run_with_evaluation_equals_the_run_without(data):
    with_it, without = (weights_after_three_steps(data, evaluate) for evaluate in (True, False))
    for name, weight in without.items():
        assert torch.equal(with_it[name], weight), name


def test_modes_generators_and_precision_are_put_back(data):
    model = evaluated.spread_model().train()
    model.visual.transformer.eval()  # a locked part
    modes = [module.training for module in model.modules()]
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    evaluation = evaluated.evaluation_of(data, model, ALONE, 8)
    with torch.autocast("cpu", torch.bfloat16):
        in_autocast = evaluation.run(model)
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_grad_enabled()
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert in_autocast == evaluation.run(model), "float32, whatever surrounds it"


def test_a_diverged_model_leaves_its_figures_out(data, caplog):
    model = evaluated.spread_model()
    evaluation = evaluated.evaluation_of(data, model, ALONE, 8)
    with torch.no_grad():
        model.visual.proj.fill_(float("nan"))
    assert evaluation.run(model) == {}
    assert caplog.text.count("evaluation left out") == 2
    assert "image features are NaN" in caplog.text


@pytest.mark.parametrize(
    ("frequency", "epoch", "expected"),
    [
        (1.0, 4, [4, 8, 12]),
        (0.5, 5, [3, 5, 8, 10]),
        (0.7, 10, [7]),
        (2.0, 3, [6, 12]),
        (0.1, 4, list(range(1, 13))),
        (0.0, 4, []),
    ],
)
def test_due_where_a_multiple_of_the_frequency_is_reached(data, frequency, epoch, expected):
    settings = Settings(model=evaluated.MODEL, val_data=str(data / "pairs"), zeroshot_frequency=frequency)
    evaluation = Evaluation(settings, evaluated.spread_model(), open_clip.get_tokenizer(evaluated.MODEL), ALONE)
    assert [step for step in range(1, 13) if evaluation.due(step, epoch)] == expected
    assert evaluation.due(11, epoch, last=True) == bool(frequency)


def test_nothing_to_measure_is_never_due():
    evaluation = Evaluation(Settings(), evaluated.spread_model(), open_clip.get_tokenizer(evaluated.MODEL), ALONE)
    assert not evaluation.due(1, 1, last=True)


def test_refusals_come_at_the_start(data, tmp_path):
    model, tokenizer = evaluated.spread_model(), open_clip.get_tokenizer(evaluated.MODEL)
    with pytest.raises(RefusedError, match=r"--imagenet-val: .*Probably meant: .*/val"):
        Evaluation(Settings(imagenet_val=str(data)), model, tokenizer, ALONE)
    with pytest.raises(DataError, match=r"manifest\.jsonl does not exist"):
        Evaluation(Settings(val_data=str(tmp_path)), model, tokenizer, ALONE)
