"""A small evaluation set in the real layout, a very small model, and a finished run of it."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

from data_prep.manifest import write_manifest
from data_prep.shards import ShardWriter

ROOT = Path(__file__).parents[2]
NANO = "test-evaluate-nano"
NANO_CONFIG = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
NASTY = "<b>&\"'</b>"  # a name that would break a page that does not escape


def png(seed: int, size: int = 40) -> bytes:
    """A noise picture that differs for every seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def class_entry(i: int, name: str | None = None, flag: bool = False) -> dict[str, Any]:
    """A class as classes.json has it."""
    return {
        "concept": f"{0x1F300 + i:X}",
        "name": name or f"thing number {i}",
        "tags": ["a", "b"],
        "group": f"group{i % 3}",
        "subgroup": f"sub{i % 5}",
        "flag": flag,
    }


def write_set(
    folder: Path,
    classes: list[dict[str, Any]],
    vendors: tuple[str, ...] = ("drawn-by-one",),
    image: Callable[[int], bytes] = png,
    listed: list[dict[str, Any]] | None = None,
    per_shard: int = 7,
) -> None:
    """Write one evaluation folder: a picture a class and vendor. ``listed`` is what classes.json gets instead."""
    folder.mkdir(parents=True)
    samples = [(c, v) for v in vendors for c in classes]
    entries = []
    for number, start in enumerate(range(0, len(samples), per_shard)):
        with ShardWriter(folder / f"{number:05d}.tar") as writer:
            for place, (entry, vendor) in enumerate(samples[start : start + per_shard], start=start):
                about = {k: entry[k] for k in ("concept", "name", "flag")} | {"vendor": vendor, "license": "CC-BY-4.0"}
                members = {
                    "png": image(place),
                    "txt": entry["name"].encode(),
                    "json": json.dumps(about).encode(),
                }
                writer.write(f"{vendor}-{entry['concept']}", members)
        entries.append(writer.close())
    write_manifest(folder, entries)
    (folder / "classes.json").write_text(json.dumps(classes if listed is None else listed), encoding="utf-8")


def write_root(root: Path) -> Path:
    """20 classes of a held-out vendor, 3 of them flags, one with a nasty name; 6 held-out concepts by two vendors."""
    names = {4: NASTY}
    write_set(root / "heldout-vendor", [class_entry(i, names.get(i), flag=i in (0, 7, 19)) for i in range(20)])
    write_set(root / "heldout-concepts", [class_entry(i) for i in range(30, 36)], vendors=("one", "two"))
    (root / "stats.json").write_text(json.dumps({"command": "python -m data_prep emoji --output here"}))
    return root


@pytest.fixture(scope="session")
def emoji_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole evaluation set; do not change it."""
    return write_root(tmp_path_factory.mktemp("emoji"))


@pytest.fixture
def own_root(tmp_path: Path) -> Path:
    """A whole evaluation set of the test's own, to be damaged."""
    return write_root(tmp_path / "own")


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A registered model's name and a checkpoint of it, whose weights spread its features out."""
    folder = tmp_path_factory.mktemp("nano")
    if NANO not in open_clip.list_models():
        (folder / f"{NANO}.json").write_text(json.dumps(NANO_CONFIG))
        open_clip.add_model_config(folder)
    torch.manual_seed(1)
    model = open_clip.create_model(NANO)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim >= 2:
                p.normal_(std=0.3)
    torch.save({"name": "nano", "step": 3, "state_dict": model.state_dict()}, folder / "checkpoint.pt")
    return NANO, folder / "checkpoint.pt"


@pytest.fixture(scope="session")
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``python -m evaluate`` in a process of its own."""

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "evaluate", *map(str, args)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    return run
