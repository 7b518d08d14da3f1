"""OpenCLIP's own trainer and CLIP_benchmark, run for real through `python -m open_clip_linear`.

Both want packages that this project's environment does not hold, and older ones than it does: OpenCLIP's trainer a
webdataset before 0.2.87, CLIP_benchmark a numpy before 2.4. So the tests make an environment beside the running one,
where these lie in front of it, and remove it at the end.
"""

import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from data_prep.shards import ShardWriter, read_samples
from evaluate.data.classes import class_list
from evaluate.data.sets import get_dataset
from open_clip_linear import KindMismatchError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
MODEL = "ViT-S-16-eq7"
SMALL = "tiny-emoji-eq7mean"  # where a thousand pictures are classified
SIZE = 32  # pixels; the trainer's forced image size
REQUIREMENTS = (
    f"open_clip_torch[training]=={version('open_clip_torch')}",
    "clip-benchmark>=1.6,<2",
    "requests",  # which CLIP_benchmark imports and does not ask for
    "numpy<2.4",  # both tools turn arrays of one element into numbers, which numpy 2.4 refuses
)
UNREACHABLE = re.compile(r"from versions: none|NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError")
COLOURS = ["red", "green", "blue", "yellow", "black", "white"]
TEMPLATES = ["a photo of {c}", "the colour {c}"]

Tool = Callable[..., subprocess.CompletedProcess[str]]


def png(place: int) -> bytes:
    """A noisy picture of one colour, another for every place."""
    picture = np.array(Image.new("RGB", (40 + place % 7, 40), COLOURS[place % len(COLOURS)]), dtype=np.int64)
    noise = np.random.default_rng(place).integers(-60, 60, picture.shape)
    buffer = io.BytesIO()
    Image.fromarray((picture + noise).clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where everything is written; pytest would keep its gigabyte for three runs."""
    path = tmp_path_factory.mktemp("open_clip_tools")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def tool(folder: Path) -> Tool:
    """Runs a module through the runner, in `folder`, with the tools' own requirements fulfilled."""
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    # What pip installs here stands first; the rest is the running environment's, which pip leaves as it is.
    lines = [f"import site; site.addsitedir({sysconfig.get_path(name)!r})\n" for name in ("purelib", "platlib")]
    Path(packages, "running_environment.pth").write_text("".join(lines))
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--retries", "1", *REQUIREMENTS]
    done = subprocess.run(install, capture_output=True, text=True)
    if UNREACHABLE.search(done.stderr) and done.returncode:
        pytest.skip(f"pip reaches no index that has the tools: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [python, "-m", "open_clip_linear", *map(str, words)]
        # The runner of this checkout, and nothing from the network.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=900)

    return run


@pytest.fixture(scope="module")
def checkpoint(folder: Path, tool: Tool) -> Path:
    """What OpenCLIP's trainer leaves after six steps on two shards."""
    shards = folder / "shards"
    shards.mkdir()
    for number in range(2):
        with ShardWriter(shards / f"{number:06d}.tar") as writer:
            for place in range(24):
                caption = f"a photo of {COLOURS[place % len(COLOURS)]}"
                writer.write(f"{number}-{place}", {"png": png(100 * number + place), "txt": caption.encode()})
    data = ["--train-data", "shards/{000000..000001}.tar", "--train-num-samples", 48, "--workers", 1]
    steps = ["--batch-size", 8, "--epochs", 1, "--warmup", 1, "--lr", 1e-4, "--log-every-n-steps", 1]
    machine = ["--force-image-size", SIZE, "--precision", "fp32", "--device", "cpu"]
    done = tool("open_clip_train.main", "--model", MODEL, *data, *steps, *machine, "--logs", "logs", "--name", "run")
    assert done.returncode == 0, done.stderr
    return folder / "logs" / "run" / "checkpoints" / "epoch_1.pt"


def test_open_clips_trainer_trains_a_model_of_ours(checkpoint: Path, folder: Path) -> None:
    log = (folder / "logs" / "run" / "out.log").read_text()
    losses = [float(loss) for loss in re.findall(r"Train Epoch: 0 .* Loss: (\S+) \(", log)]
    assert len(losses) == 6
    assert all(map(math.isfinite, losses))
    assert "[48/48 (100%)]" in log
    saved = torch.load(checkpoint, weights_only=True)
    assert all(state["step"] == 6 for state in saved["optimizer"]["state"].values())
    weights = saved["state_dict"]
    assert bytes(weights["visual.transformer.attention_spec"].tolist()) == b"eq7"

    model = open_clip.create_model(MODEL, pretrained=str(checkpoint), force_image_size=SIZE)
    loaded = model.state_dict()
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    with pytest.raises(KindMismatchError, match="eq7"):
        open_clip.create_model("ViT-S-16-eq4", pretrained=str(checkpoint), force_image_size=SIZE)


def write_benchmark(root: Path) -> None:
    """A classification set as CLIP_benchmark reads it: 27 pictures in two shards."""
    test = root / "test"
    test.mkdir(parents=True)
    for number, places in enumerate((range(1000, 1014), range(1014, 1027))):
        with ShardWriter(test / f"{number}.tar") as writer:
            for place in places:
                writer.write(f"sample{place}", {"png": png(place), "cls": str(place % len(COLOURS)).encode()})
    (test / "nshards.txt").write_text("2")
    (root / "classnames.txt").write_text("\n".join(COLOURS))
    (root / "zeroshot_classification_templates.txt").write_text("\n".join(TEMPLATES))


def classify(checkpoint: Path, root: Path) -> tuple[dict[str, Any], torch.Tensor]:
    """The metrics of a direct call, and the class embeddings (width, classes)."""
    model, _, preprocess = open_clip.create_model_and_transforms(MODEL, pretrained=str(checkpoint))
    tokenizer = open_clip.get_tokenizer(MODEL)
    samples = [sample for shard in sorted((root / "test").glob("*.tar")) for sample in read_samples(shard)]
    images = torch.stack([preprocess(Image.open(io.BytesIO(sample["png"])).convert("RGB")) for sample in samples])
    labels = torch.tensor([int(sample["cls"]) for sample in samples])
    model.eval()
    with torch.no_grad():
        texts = [tokenizer([template.format(c=name) for template in TEMPLATES]) for name in COLOURS]
        classes = torch.stack([F.normalize(model.encode_text(text), dim=-1).mean(0) for text in texts])
        logits = F.normalize(model.encode_image(images), dim=-1) @ F.normalize(classes, dim=-1).T
    right = logits.topk(5).indices == labels[:, None]
    recalls = [right[labels == label, 0].double().mean().item() for label in range(len(COLOURS))]
    metrics = {"acc1": right[:, 0], "acc5": right.any(1)}
    figures = {name: hits.double().mean().item() for name, hits in metrics.items()}
    return figures | {"mean_per_class_recall": sum(recalls) / len(recalls)}, F.normalize(classes, dim=-1).T


def test_clip_benchmark_measures_what_a_direct_call_does(checkpoint: Path, folder: Path, tool: Tool) -> None:
    write_benchmark(folder / "colours")
    what = ["--model", MODEL, "--pretrained", checkpoint, "--dataset", "wds/colours", "--dataset_root", "colours"]
    how = ["--no_amp", "--batch_size", 8, "--num_workers", 1]
    output = ["--output", "result.json", "--save_clf", "classes.pt"]
    done = tool("clip_benchmark.cli", "eval", *what, *how, *output)
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert (result["model"], result["task"]) == (MODEL, "zeroshot_classification")
    metrics, classes = classify(checkpoint, folder / "colours")
    assert result["metrics"] == pytest.approx(metrics, abs=1e-12)
    assert torch.allclose(torch.load(folder / "classes.pt"), classes, atol=1e-5)


RECORDED = """
import sys
import torch
from clip_benchmark.metrics import zeroshot_classification as measure
from clip_benchmark.cli import main

original = measure.run_classification

def recorded(*args, **kwargs):
    logits, target = original(*args, **kwargs)
    torch.save({"best": logits.topk(5, 1, True, True).indices, "target": target}, "recorded.pt")
    return logits, target

measure.run_classification = recorded
main()
"""


def write_imagenet(root: Path) -> None:
    """A tree of ImageNet's 1000 class folders with a synthetic picture each, and two of every hundredth."""
    for index, wnid in enumerate(class_list("imagenet-1k").ids):
        folder = root / "val" / wnid
        folder.mkdir(parents=True)
        for number in range(2 if index % 100 == 0 else 1):
            (folder / f"{number}.png").write_bytes(png(1000 * number + index))


def test_clip_benchmark_predicts_what_we_do_on_imagenets_classes(folder: Path, tool: Tool) -> None:
    """Prediction by prediction, on a thousand classes in ImageNet's layout, in float32."""
    torch.manual_seed(0)
    small = open_clip.create_model(SMALL)
    with torch.no_grad():
        for parameter in small.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=0.2)  # features that differ from picture to picture
    torch.save(small.state_dict(), folder / "small.pt")
    write_imagenet(folder / "imagenet")
    write_wds(folder / "imagenet" / "val", folder / "wds_imagenet")
    (folder / "recorded.py").write_text(RECORDED)
    model = ["--model", SMALL, "--pretrained", folder / "small.pt"]
    what = [*model, "--dataset", "wds/imagenet1k", "--dataset_root", "wds_imagenet"]
    how = ["--no_amp", "--batch_size", 64, "--num_workers", 1, "--output", "imagenet.json"]
    done = tool("recorded", "eval", *what, *how)
    assert done.returncode == 0, done.stderr
    theirs = torch.load(folder / "recorded.pt")
    metrics = json.loads((folder / "imagenet.json").read_text())["metrics"]

    for root in ("imagenet/val", "wds_imagenet"):
        what = [*model, "--dataset", "imagenet1k", "--root", root, "--templates", "simple"]
        how = ["--batch-size", 64, "--classifier-cache", "cache", "--device", "cpu"]
        done = tool("evaluate", "zero-shot", *what, *how, "--output", "ours.json", "--predictions", "ours.parquet")
        assert done.returncode == 0, done.stderr
        rows = pyarrow.parquet.read_table(folder / "ours.parquet").to_pydict()
        assert rows["label"] == theirs["target"].tolist()
        assert rows["guesses"] == theirs["best"].tolist()
        result = json.loads((folder / "ours.json").read_text())
        assert result["top1"] == pytest.approx(100 * metrics["acc1"])
        assert result["top5"] == pytest.approx(100 * metrics["acc5"])
        assert result["mean_per_class"] == pytest.approx(100 * metrics["mean_per_class_recall"])
        assert (result["n"], result["partial"]) == (1010, True)
    assert len(set(theirs["best"][:, 0].tolist())) >= 5, "a model that always says the same proves nothing"


def write_wds(tree: Path, root: Path) -> None:
    """The tree in CLIP_benchmark's webdataset layout, with OpenCLIP's names and prompts."""
    (root / "test").mkdir(parents=True)
    names = class_list("imagenet-1k").names
    with ShardWriter(root / "test" / "0.tar") as writer:
        for index, wnid in enumerate(class_list("imagenet-1k").ids):
            for file in sorted((tree / wnid).iterdir()):
                writer.write(f"{wnid}_{file.stem}", {"png": file.read_bytes(), "cls": str(index).encode()})
    (root / "test" / "nshards.txt").write_text("1")
    (root / "classnames.txt").write_text("\n".join(names))
    texts = get_dataset("imagenet1k").templates["simple"].texts
    (root / "zeroshot_classification_templates.txt").write_text("\n".join(text.replace("{}", "{c}") for text in texts))
