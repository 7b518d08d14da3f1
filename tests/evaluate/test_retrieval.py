"""Recall and loss against OpenCLIP's own and plain float64, ties and damage, and the command."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from open_clip.loss import ClipLoss, SigLipLoss
from open_clip_train.train import get_clip_metrics

from evaluate import ranks, retrieval
from evaluate.__main__ import main
from evaluate.data.pairs import read_pairs
from evaluate.encode import full_float32
from evaluate.errors import RefusedError
from evaluate.metrics import wilson_interval
from evaluate.models import LoadedModel, load_model
from evaluate.retrieval import evaluate_pairs, figures_of, search

from .conftest import NANO_CONFIG, ROOT, class_entry, png, write_set
from .test_ranks import OneOfMany

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def loaded(nano: tuple[str, Path]) -> LoadedModel:
    return load_model(*nano)


def unit(count: int, width: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)), dim=-1)


@contextmanager
def in_blocks(queries: int, items: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "QUERIES", queries)
        patch.setattr(retrieval, "ITEMS", items)
        yield


def measured(loaded: LoadedModel, folder: Path, most_bad: float = 0.01):
    with full_float32(loaded.model):
        return evaluate_pairs(
            loaded.model, loaded.tokenizer, loaded.preprocess, read_pairs(folder),
            sigmoid=False, batch_size=7, device=CPU, threads=2, most_bad=most_bad,
        )  # fmt: skip


@given(
    count=st.integers(2, 40),
    width=st.integers(2, 12),
    block=st.tuples(st.integers(3, 41), st.integers(3, 41)),
    seed=st.integers(0, 99),
)
def test_recall_and_losses_equal_openclips(count: int, width: int, block: tuple[int, int], seed: int) -> None:
    """Whatever the number of scores held at once."""
    images, texts = unit(count, width, seed), unit(count, width, seed + 1000)
    with in_blocks(*block):
        ours = figures_of(images, texts, [1] * count, scale=14.0, bias=0.0, sigmoid=False)
        sigmoid = figures_of(images, texts, [1] * count, scale=10.0, bias=-10.0, sigmoid=True)
    theirs = get_clip_metrics(images, texts, torch.tensor(14.0))
    for way in ("image_to_text", "text_to_image"):
        for k in (1, 5, 10):
            assert ours[f"{way}_r{k}"] == pytest.approx(100 * theirs[f"{way}_R@{k}"]) == sigmoid[f"{way}_r{k}"]
    images, texts = images.double(), texts.double()
    assert ours["loss"] == pytest.approx(ClipLoss()(images, texts, 14.0).item(), rel=1e-5, abs=1e-6)
    assert sigmoid["loss"] == pytest.approx(SigLipLoss()(images, texts, 10.0, -10.0).item(), rel=1e-5)


def clip_benchmarks_recall(scores: torch.Tensor, positive: torch.Tensor, k: int) -> float:
    """What clip_benchmark.metrics.zeroshot_retrieval does: a row counts where one of its k best is positive."""
    best = scores.topk(k, dim=1).indices
    found = (F.one_hot(best, scores.shape[1]) * positive[:, None, :]).sum(dim=(1, 2)) / positive.sum(dim=1)
    return 100 * (found > 0).float().mean().item()


@given(captions=st.lists(st.integers(1, 6), min_size=10, max_size=40), seed=st.integers(0, 99))
def test_recall_of_several_captions_equals_clip_benchmarks(captions: list[int], seed: int) -> None:
    owners = torch.tensor([picture for picture, count in enumerate(captions) for _ in range(count)])
    images, texts = unit(len(captions), 8, seed), unit(len(owners), 8, seed + 1000)
    with in_blocks(7, 9):
        ours = figures_of(images, texts, captions, scale=14.0, bias=0.0, sigmoid=False)
    scores = texts @ images.T
    positive = owners[:, None] == torch.arange(len(captions))
    for k in (1, 5, 10):
        assert ours[f"text_to_image_r{k}"] == pytest.approx(clip_benchmarks_recall(scores, positive, k))
        assert ours[f"image_to_text_r{k}"] == pytest.approx(clip_benchmarks_recall(scores.T, positive.T, k))
    assert ("loss" in ours) == (set(captions) == {1})


@given(captions=st.lists(st.integers(1, 4), min_size=2, max_size=30), seed=st.integers(0, 99))
def test_ties_rank_as_a_stable_sort_does(captions: list[int], seed: int) -> None:
    """Small whole numbers, so that scores are exact and many are equal."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(-1, 2, (len(captions), 3), generator=draw).float()
    texts = torch.randint(-1, 2, (sum(captions), 3), generator=draw).float()
    starts = [sum(captions[:picture]) for picture in range(len(captions))]
    stops = [start + count for start, count in zip(starts, captions, strict=True)]
    with in_blocks(4, 5):
        found = search(images, texts, torch.tensor(starts), torch.tensor(stops), None)[:, 0]
    for picture, scores in enumerate((images.double() @ texts.double().T).tolist()):
        order = sorted(range(len(scores)), key=lambda text, scores=scores: -scores[text])
        right = range(starts[picture], stops[picture])
        assert found[picture] == next(place for place, text in enumerate(order) if text in right)


@pytest.mark.parametrize("count", [20, 1025, 2049])
def test_a_collapsed_model_scores_chance(count: int) -> None:
    """Equal features have equal scores to the last bit, at sizes that need several blocks too."""
    same = unit(1, 24, 0).expand(count, 24).contiguous()
    figures = figures_of(same, same, [1] * count, scale=1.0, bias=0.0, sigmoid=False)
    for way in ("image_to_text", "text_to_image"):
        assert [figures[f"{way}_r{k}"] for k in (1, 5, 10)] == [100 * k / count for k in (1, 5, 10)]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_find_what_one_process_finds(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's rows, with zeros for the others', add up to the rows of one process."""
    images, texts = unit(50, 8, 0), unit(100, 8, 1)
    starts = torch.arange(0, 100, 2)
    monkeypatch.setattr(retrieval, "QUERIES", 7)
    alone = search(images, texts, starts, starts + 2, None)
    parts = []
    for rank in range(size):
        monkeypatch.setattr(ranks, "dist", OneOfMany(rank, size))
        parts.append(search(images, texts, starts, starts + 2, None))
    assert torch.equal(sum(parts), alone)


def test_the_whole_way_equals_a_plain_one(loaded: LoadedModel, emoji_root: Path) -> None:
    pairs = read_pairs(emoji_root / "heldout-vendor")
    figures, bad = measured(loaded, emoji_root / "heldout-vendor")
    pixels = torch.stack([loaded.preprocess(pair.picture()) for pair in pairs])
    with torch.no_grad():
        images, texts, scale = loaded.model.eval()(pixels, loaded.tokenizer([pair.captions[0] for pair in pairs]))
    theirs = get_clip_metrics(images, texts, scale)
    assert (figures["pairs"], figures["bad_images"], bad) == (20, 0, [])
    assert figures["text_to_image_r5"] == pytest.approx(100 * theirs["text_to_image_R@5"])
    assert figures["image_to_text_r10"] == pytest.approx(100 * theirs["image_to_text_R@10"])
    assert figures["loss"] == pytest.approx(ClipLoss()(images, texts, scale).item(), rel=1e-5)


def test_unreadable_pictures_are_left_out_named_and_not_too_many(loaded: LoadedModel, tmp_path: Path) -> None:
    classes = [class_entry(i) for i in range(9)]
    write_set(tmp_path / "whole", [c for i, c in enumerate(classes) if i != 4], image=lambda i: png(i + (i >= 4)))
    write_set(tmp_path / "damaged", classes, image=lambda i: png(i)[:60] if i == 4 else png(i))
    with pytest.raises(RefusedError, match=r"1 of 9 pictures cannot be read, more than .*00000\.tar: drawn-by-one"):
        measured(loaded, tmp_path / "damaged")
    figures, bad = measured(loaded, tmp_path / "damaged", most_bad=0.2)
    assert [b.key for b in bad] == [f"drawn-by-one-{classes[4]['concept']}"]
    whole, _ = measured(loaded, tmp_path / "whole")
    assert figures.pop("bad_images") == 1
    assert whole.pop("bad_images") == 0
    assert figures == pytest.approx(whole, rel=1e-5)


def test_features_that_are_no_numbers_are_refused(nano: tuple[str, Path], emoji_root: Path) -> None:
    broken = load_model(*nano)
    with torch.no_grad():
        broken.model.text_projection.fill_(float("nan"))
    with pytest.raises(RefusedError, match="text features are NaN"):
        measured(broken, emoji_root / "heldout-vendor")


def test_the_command_prints_a_table_or_json(
    nano: tuple[str, Path], emoji_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = emoji_root / "heldout-concepts"
    arguments = ["retrieval", "--model", nano[0], "--pretrained", str(nano[1]), "--data", str(data), "--device", "cpu"]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "image to text" in table
    assert "softmax loss" in table
    assert "12 captions are another picture's too" in table
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["results"]["pairs"], result["duplicate_captions"], result["bad_images"]) == (12, 12, [])
    assert f"{result['results']['image_to_text_r5']:.2f}" in table
    right = round(12 * result["results"]["image_to_text_r5"] / 100)
    assert result["intervals"]["image_to_text_r5"] == pytest.approx(wilson_interval(right, 12))
    assert main([*arguments, "--output", str(tmp_path / "new" / "r.json")]) == 0
    assert json.loads((tmp_path / "new" / "r.json").read_text())["results"] == result["results"]
    assert len(result["manifest_sha256"]) == len(result["checkpoint"]["sha256"]) == 64

    assert main([*arguments[:-4], "--data", str(emoji_root), "--device", "cpu"]) == 1
    assert "error: --data:" in capsys.readouterr().err


@pytest.mark.slow
def test_several_processes_write_what_one_writes(nano: tuple[str, Path], emoji_root: Path, tmp_path: Path) -> None:
    """Uneven shares of 20 pictures in batches of 3; the model config is known to the others by --model-configs."""
    data, configs = emoji_root / "heldout-vendor", nano[1].parent / "configs"
    configs.mkdir(exist_ok=True)
    (configs / "spread.json").write_text(json.dumps(NANO_CONFIG))
    arguments = [
        "retrieval", "--model", "spread", "--model-configs", configs, "--pretrained", nano[1], "--data", data,
        "--device", "cpu", "--batch-size", "3", "--output",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=3", "--standalone"]
    for launcher, name in (([], "one"), (torchrun, "several")):
        command = [sys.executable, *launcher, "-m", "evaluate", *arguments, tmp_path / name]
        done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("image to text") == 1, "one process prints"
    one, several = (json.loads((tmp_path / name).read_text()) for name in ("one", "several"))
    assert several["results"] == one["results"]
