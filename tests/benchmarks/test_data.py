"""benchmarks/data.py: one tiny run of the command, what it writes, and that all pipelines give the same batch."""

import json
import random
import sys
from dataclasses import asdict

import pytest
import torch
from open_clip.transform import PreprocessCfg

from benchmarks import data

pytestmark = pytest.mark.filterwarnings("ignore:.*TorchCodec:DeprecationWarning")


@pytest.fixture(autouse=True)
def _threads():
    """The command sets one thread for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["data", *map(str, arguments)])
    return data.main()


def test_the_command(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "--rounds", 2, "--pictures", 2, "--json", tmp_path / "data.json") == 0
    printed = capsys.readouterr().out
    written = json.loads((tmp_path / "data.json").read_text())
    assert [(row["size"], row["quality"]) for row in written["results"]] == [(256, 95), (512, 90)]
    for row in written["results"]:
        assert f"{row['size']} x {row['size']} px, quality {row['quality']}, 2 pictures" in printed
        assert list(row["pipelines"]) == ["OpenCLIP", "--decode pil", "--decode fast", "fast, normalised here"]
        for name, found in row["pipelines"].items():
            assert name in printed
            assert found["ratio_least"] <= found["ratio"] <= found["ratio_most"]
            assert len(row["rounds"][name]) == 2
        assert row["pipelines"]["OpenCLIP"]["ratio"] == 1
    assert written["environment"]["torch"] == torch.__version__


def test_a_folder_that_is_not_there_is_named_before_the_work(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "--json", tmp_path / "none" / "data.json") == 2
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().err


@pytest.mark.parametrize("rounds", ["0", "-1", "many"])
def test_rounds_that_cannot_be(monkeypatch, rounds):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--rounds", rounds)


def test_all_pipelines_give_the_same_batch_of_the_same_pictures():
    cfg = asdict(PreprocessCfg(size=224))
    samples = data.samples(256, 95, 3)
    assert samples == data.samples(256, 95, 3)
    batches = []
    for pipeline in (data.open_clip_pipeline(cfg), data.ours("pil", cfg), data.normalised(data.ours("fast", cfg), cfg)):
        torch.manual_seed(0)
        random.seed(0)
        batches.append(pipeline(samples))
    assert torch.equal(batches[0], batches[1])
    assert batches[2].shape == (3, 3, 224, 224)
    assert (batches[2] - batches[0]).abs().mean() < 0.01


def test_the_ratio_is_within_a_round():
    speeds = {"OpenCLIP": [100.0, 200.0, 400.0], "other": [300.0, 400.0, 1600.0]}
    expected = {"images_per_cpu_s": 400.0, "ratio": 3.0, "ratio_least": 2.0, "ratio_most": 4.0}
    assert data.summary(speeds)["other"] == expected
