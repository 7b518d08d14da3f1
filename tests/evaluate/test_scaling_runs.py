"""What is read from a run's folder, and which runs may not stand on one curve."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
from scaling_folders import LAW, SIZES, write_run

from evaluate.errors import RefusedError
from evaluate.scaling_runs import has_validation, loss_of, read_point, refuse_what_differs, standard_error
from open_clip_linear.listing import listed


def test_what_a_run_says(tmp_path: Path) -> None:
    point = read_point(write_run(tmp_path / "a"), "parameters")
    assert (point.model, point.kind, point.objective) == ("ViT-B-16-eq7mean", "eq7:scale=mean", "CLIP")
    assert (point.parameters, point.samples, point.global_batch) == (86_000_000, 200_000, 64 * 2 * 4)
    assert (point.compute, point.validation_loss) == (None, None)
    a, alpha = LAW["eq7mean"]
    assert point.training_loss == pytest.approx(a * SIZES["B"] ** -alpha, rel=0.05)
    assert point.training_error == pytest.approx(0.02 / math.sqrt(20), rel=0.6)


def test_the_noise_of_neighbours_that_go_together_is_not_underrated() -> None:
    random = np.random.default_rng(0)
    alone = random.standard_normal(1000)
    together = np.repeat(random.standard_normal(40), 25)
    assert standard_error(alone.tolist()) == pytest.approx(1 / math.sqrt(1000), rel=0.5)
    assert standard_error(together.tolist()) == pytest.approx(1 / math.sqrt(40), rel=0.5)


def test_compute_is_six_times_the_multiply_adds_of_the_samples(tmp_path: Path) -> None:
    (model,) = listed(["ViT-S-16-eq7mean"])
    point = read_point(write_run(tmp_path / "a", size="S"), "compute")
    assert point.compute == 6 * (model.macs["image_224"] + model.macs["text"]) * point.samples
    larger = read_point(write_run(tmp_path / "b", size="S", settings={"force_image_size": [224, 448]}), "compute")
    assert larger.compute is not None
    assert 1.5 < larger.compute / point.compute < 2


def test_both_towers_kinds_are_the_kind(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", settings={"model": "ViT-B-16-eq4-both"})
    assert read_point(run, "parameters").kind == "eq4 / text eq4"


def test_a_users_own_model_is_known_by_the_run(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    config = open_clip.get_model_config("ViT-S-16-sema")
    (tmp_path / "models" / "my-scaling-model.json").write_text(json.dumps(config))
    known = {"model": "my-scaling-model", "model_configs": str(tmp_path / "models")}
    assert read_point(write_run(tmp_path / "a", settings=known), "parameters").kind == "sema"


def test_validation_loss_counts_where_all_have_one_on_the_same_pairs(tmp_path: Path) -> None:
    on = {"val_data": "pairs"}
    one = read_point(write_run(tmp_path / "a", settings=on, validation=1.5), "parameters")
    other = read_point(write_run(tmp_path / "b", settings=on, validation=1.7), "parameters")
    without = read_point(write_run(tmp_path / "c"), "parameters")
    elsewhere = read_point(write_run(tmp_path / "d", settings={"val_data": "others"}, validation=1.7), "parameters")
    assert has_validation([one, other])
    assert not has_validation([one, without])
    assert not has_validation([one, elsewhere])
    assert loss_of(one, True) == (1.5, 0.0)
    assert loss_of(one, False) == (one.training_loss, one.training_error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 50}, "has 5 rows in the last tenth .* at least 10. Train for 100 steps"),
        ({"settings": {"model": "ViT-B-16-eq77"}}, "'ViT-B-16-eq77' is not registered"),
        ({"settings": {"model_configs": "nowhere"}}, "nowhere"),
    ],
)
def test_a_run_that_cannot_be_used_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        read_point(write_run(tmp_path / "a", **change), "parameters")


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    (write_run(tmp_path / "a") / "train.json").unlink()
    with pytest.raises(RefusedError, match=r"train\.json is missing"):
        read_point(tmp_path / "a", "parameters")
    with pytest.raises(RefusedError, match="no such folder"):
        read_point(tmp_path / "b", "parameters")


@pytest.mark.parametrize(
    ("over", "change", "message"),
    [
        (
            "parameters",
            {"settings": {"batch_size": 63}},
            r"differ in global batch sizes: 512, 504 .*depends on the batch",
        ),
        ("parameters", {"train": {"world_size": 2}}, "differ in global batch sizes: 512, 256"),
        ("parameters", {"settings": {"force_image_size": [448]}}, r"image sizes: \(224, 224\), \(448, 448\) "),
        ("parameters", {"settings": {"train_data": "cc12m"}}, "differ in training data: , cc12m "),
        ("parameters", {"settings": {"siglip": True}}, "differ in objectives: CLIP, SigLIP"),
        ("parameters", {"settings": {"distill_model": "ViT-B-16"}}, "objectives: CLIP, distillation from ViT-B-16"),
        ("parameters", {"train": {"samples_seen": 250_000}}, "differ in samples seen: 200,000, 250,000 .*/a, .*/b"),
        ("samples", {"size": "L"}, "differ in parameters: 86,000,000, 304,000,000 "),
    ],
)
def test_what_would_be_taken_for_the_effect_of_size_is_refused(
    tmp_path: Path, over: str, change: dict[str, Any], message: str
) -> None:
    points = [read_point(write_run(tmp_path / "a"), over), read_point(write_run(tmp_path / "b", **change), over)]
    with pytest.raises(RefusedError, match=message):
        refuse_what_differs(points, over)


def test_a_run_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    points = [read_point(tmp_path / "a", "parameters"), read_point(tmp_path / "." / "a" / ".." / "a", "parameters")]
    with pytest.raises(RefusedError, match="is given twice"):
        refuse_what_differs(points, "parameters")


def test_what_does_not_disturb_is_let_through(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", settings={"val_data": "pairs"}, validation=2.0)
    few_lost = {"samples_seen": 199_000}
    other = write_run(tmp_path / "b", settings={"val_data": "pairs", "batch_size": 16}, train=few_lost, validation=1.5)
    taught = write_run(tmp_path / "c", settings={"val_data": "pairs", "distill_model": "ViT-B-16"}, validation=1.6)
    refuse_what_differs([read_point(run, "parameters") for run in (one, other, taught)], "parameters")
    sigmoid = write_run(tmp_path / "d", settings={"val_data": "pairs", "siglip": True}, validation=1.6)
    with pytest.raises(RefusedError, match="differ in objectives: CLIP, SigLIP"):
        refuse_what_differs([read_point(run, "parameters") for run in (one, sigmoid)], "parameters")
