"""The JSON of one evaluation and its table: what was measured, on what, with what, by which command."""

import os
import platform
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from evaluate.data.emoji import Folder
from evaluate.data.sets import Dataset
from evaluate.errors import RefusedError
from evaluate.models import LoadedModel
from evaluate.zero_shot import Encoded
from open_clip_linear.listing import attention_kind

FORMAT = 1  # raised when a name changes its meaning


def check_writable(path: Path) -> None:
    """Raise RefusedError unless a file can be made where ``path`` is. Tried, not guessed: root passes every guess."""
    if path.is_dir():
        raise RefusedError(f"--output {path} is a folder. Give a file name, for example {path / 'zero-shot.json'}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise RefusedError(f"cannot write in {path.parent}: {error.strerror}. Choose another --output.") from error


def command_line(argv: Sequence[str]) -> str:
    """The command a reader can type: ``python -m evaluate`` and its arguments, quoted for a shell."""
    return f"python -m evaluate {shlex.join(argv)}"


def versions() -> dict[str, str]:
    """Versions of what the figures depend on; a package run from a checkout without metadata is ``unknown``."""
    found = {"python": platform.python_version()}
    for package in ("torch", "torchvision", "open_clip_torch", "timm", "webdataset", "pillow", "open_clip_linear"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = getattr(sys.modules.get(package), "__version__", "unknown")
    return found


def duplicate_names(folder: Folder) -> dict[str, list[str]]:
    """Class names that several concepts share, each with those concepts: zero-shot cannot tell them apart."""
    counts = Counter(c.name for c in folder.classes)
    return {name: [c.concept for c in folder.classes if c.name == name] for name, count in counts.items() if count > 1}


def model_facts(loaded: LoadedModel) -> dict[str, Any]:
    """What a result says of the model, first of all."""
    return {
        "format": FORMAT,
        "model": loaded.name,
        "kind": attention_kind(loaded.config["vision_cfg"]),
        "text_kind": attention_kind(loaded.config["text_cfg"]),
        "parameters": loaded.parameters,
        "checkpoint": {"path": os.fspath(loaded.checkpoint), "sha256": loaded.sha256},
    }


def zero_shot_result(
    loaded: LoadedModel,
    dataset: Dataset,
    root: Path,
    figures: Mapping[str, Mapping[str, Any]],
    encoded: Mapping[str, Encoded],
    *,
    batch_size: int,
    device: str,
    image_size: int | None,
    argv: Sequence[str],
) -> dict[str, Any]:
    """The whole result as JSON values. ``image_size`` is what the user forced, or None."""
    images, seconds = sum(len(e.samples) for e in encoded.values()), sum(e.seconds for e in encoded.values())
    bad = [{"folder": name, **vars(b)} for name, e in encoded.items() for b in e.bad]
    return {
        **model_facts(loaded),
        "dataset": dataset.name,
        "root": os.fspath(root),
        "manifests": {name: e.folder.manifest_sha256 for name, e in encoded.items()},
        "protocol": "OpenCLIP zero-shot: normalise, mean over templates, normalise; model's own eval transform",
        "templates": {"name": dataset.templates.name, "texts": list(dataset.templates.texts)},
        "image_size": loaded.image_size,
        "forced_image_size": image_size,
        "precision": "fp32",
        "batch_size": batch_size,
        "device": device,
        "counts": {"images": images, "bad_images": len(bad)},
        "bad_images": bad,
        "duplicate_names": {name: duplicate_names(e.folder) for name, e in encoded.items()},
        "results": figures,
        "seconds": round(seconds, 3),
        "images_per_s": round(images / seconds, 1) if seconds > 0 else None,
        "versions": versions(),
        "command": command_line(argv),
    }


def notes(result: Mapping[str, Any]) -> list[str]:
    """What a reader of the figures has to know beside them, as sentences."""
    said = []
    for folder, names in result["duplicate_names"].items():
        if names:
            shown = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
            said.append(
                f"{folder}: {len(names)} names belong to several classes ({shown}); top-1 cannot tell them apart."
            )
    if result["bad_images"]:
        named = ", ".join(f"{b['folder']}/{b['shard']}:{b['key']}" for b in result["bad_images"][:5])
        said.append(f"{len(result['bad_images'])} unreadable pictures were left out: {named}.")
    for name, row in result["results"].items():
        if row["ties"]:
            said.append(
                f"{name}: {row['ties']} of {row['n']} pictures have another class exactly tied with the right one."
            )
    return said


def table(result: Mapping[str, Any], dataset: Dataset) -> str:
    """The figures for a terminal, one line a set and one indented line a vendor."""
    head = f"{'set':<28}{'top-1 %':>9}{'95 % interval':>16}{'top-5 %':>9}{'per class':>11}{'chance':>8}"
    head += f"{'images':>8}{'classes':>9}"
    lines = [head, "-" * len(head)]
    for eval_set in dataset.sets:
        row = result["results"][eval_set.name]
        lines.append(figures_line(eval_set.title, row) + f"{row['chance']:>8.2f}{row['n']:>8}{row['classes']:>9}")
        for vendor, part in row.get("per_vendor", {}).items():
            lines.append(figures_line(f"  {vendor}", part) + f"{'':>8}{part['n']:>8}")
    speed = f"{result['images_per_s']} images/s" if result["images_per_s"] else "speed not measured"
    about = f"{result['model']} ({result['kind']}), {result['image_size']} px, {speed}"
    return "\n".join([*lines, about, *notes(result)])


def figures_line(title: str, row: Mapping[str, Any]) -> str:
    """The first columns of a table's line, in percent."""
    low, high = row["interval"]
    interval = f"{low:.1f}-{high:.1f}"
    return f"{title:<28}{row['top1']:>9.2f}{interval:>16}{row['top5']:>9.2f}{row['mean_per_class']:>11.2f}"
