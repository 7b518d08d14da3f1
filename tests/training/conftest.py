"""A tiny shard set with real pictures: 12 concepts, each drawn by several vendors as a colour and a shape."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from zygote import Zygote

from data_prep.manifest import write_manifest
from data_prep.shards import ShardWriter

COLOURS = ["red", "green", "blue", "orange", "purple", "black"]
SHAPES = ["circle", "square"]
VENDORS = 3


def picture(colour: str, shape: str, vendor: int) -> bytes:
    image = Image.new("RGB", (40, 40), "white")
    draw = ImageDraw.Draw(image)
    box = (6 + vendor, 6, 34 - vendor, 34)
    (draw.ellipse if shape == "circle" else draw.rectangle)(box, fill=colour)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 samples in 4 shards; sample keys are `vendorN-colour-shape`, the JSON field `concept` is the colour-shape."""
    folder = tmp_path_factory.mktemp("shapes")
    samples = [(v, c, s) for c in COLOURS for s in SHAPES for v in range(VENDORS)]
    entries = []
    for number in range(4):
        with ShardWriter(folder / f"{number:05d}.tar") as writer:
            for vendor, colour, shape in samples[number::4]:
                concept = f"{colour}-{shape}"
                members = {
                    "png": picture(colour, shape, vendor),
                    "txt": f"{colour} {shape}".encode(),
                    "json": json.dumps({"concept": concept}).encode(),
                }
                writer.write(f"vendor{vendor}-{concept}", members)
        entries.append(writer.close())
    write_manifest(folder, entries)
    return folder


@pytest.fixture
def members() -> dict[str, bytes]:
    """The members of one good sample."""
    return {"png": picture("red", "circle", 0), "txt": b"red circle", "json": b'{"concept": "red-circle"}'}


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Path:
    """A recipe that trains a registered tiny model on the shapes."""
    path = tmp_path_factory.mktemp("recipe") / "shapes.toml"
    path.write_text(
        f'model = "tiny-emoji-eq7mean"\ntrain_data = "{shards}"\nmax_steps = 4\nbatch_size = 8\nworkers = 0\n'
        'lr = 1e-3\nwarmup = 1\nunique_key = "concept"\nprecision = "fp32"\nlog_every_n_steps = 1\n'
        "[aug_cfg]\nscale = [0.9, 1.0]\n"
    )
    return path


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Starts real training processes without their imports."""
    started = Zygote()
    yield started
    started.close()
