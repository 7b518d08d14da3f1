"""The JSON of one evaluation and its table: what was measured, on what, with what, by which command."""

import base64
import hashlib
import json
import os
import platform
import re
import shlex
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS

from evaluate import metrics
from evaluate.data.read import Readied
from evaluate.data.sets import Dataset, EvalSet, Templates
from evaluate.decode import DECODERS
from evaluate.errors import RefusedError
from evaluate.models import LoadedModel, size_warning, unread_warning
from evaluate.zero_shot import TOP_K, Measured, figures_of
from open_clip_linear.listing import attention_kind

OURS, SUMMARY = {"format", "versions", "command"}, {"checkpoint_sha256", "beside"}  # keys of results, of result.json
PAGE = b'<meta name="generator" content="open_clip_linear">'  # of the report
PLOT = b"<!-- open_clip_linear, evaluate speed -->"  # at the end of its plot
MOST_FOOTER = 1 << 20  # bytes at the end of a parquet file that name its columns
FORMAT = 1  # raised when a name changes its meaning
TOP_FIGURES = ("top1", "top5", "mean_per_class", "n")  # of the first set, on the result itself


def check_writable(path: Path, option: str = "--output", keep: Sequence[Path | None] = ()) -> None:
    """Raise RefusedError unless a file can be made where ``path`` is, and it is none of those to ``keep``.

    Tried, not guessed: root passes every guess.
    """
    if any(other is not None and path.resolve() == other.resolve() for other in keep):
        raise RefusedError(f"{option} {path} is a file that this command reads or writes otherwise. Choose another.")
    if path.suffix.lower() in (*IMG_EXTENSIONS, ".tar"):
        raise RefusedError(f"{option} {path} has the name of data. Give a name like {path.with_suffix('.json')}.")
    if path.is_dir():
        raise RefusedError(f"{option} {path} is a folder. Give a file name, for example {path / 'result.json'}.")
    if path.exists() and not is_ours(path):
        raise RefusedError(
            f"{option} {path} is there and was not written by `evaluate`. Remove it, or choose another name."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise RefusedError(f"cannot write in {path.parent}: {error.strerror}. Choose another {option}.") from error


def is_ours(path: Path) -> bool:
    """Whether a file is empty or what a command here wrote, so that it may be replaced: data and code are not."""
    try:
        with open(path, "rb") as file:
            head = file.read(2000)
            if not head or PAGE in head:
                return True
            if head.startswith(b"PAR1"):
                file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_FOOTER))
                return b"guess_names" in file.read()
            if head.startswith(b"<svg"):
                return (head + file.read()).rstrip().endswith(PLOT)
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and (content.keys() >= OURS or content.keys() >= SUMMARY)


def command_line(argv: Sequence[str]) -> str:
    """The command a reader can type: ``python -m evaluate`` and its arguments, quoted for a shell."""
    return f"python -m evaluate {shlex.join(map(without_password, argv))}"


def without_password(address: str) -> str:
    """An address as it may be written down: without the user and password before its host."""
    return re.sub(r"(\w+://)[^/@\s]*@", r"\1", address)


def versions() -> dict[str, str]:
    """Versions of what the figures depend on; a package run from a checkout without metadata is ``unknown``."""
    found = {"python": platform.python_version()}
    for package in ("torch", "torchvision", "open_clip_torch", "timm", "webdataset", "pillow", "open_clip_linear"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = getattr(sys.modules.get(package), "__version__", "unknown")
    return found


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


@dataclass(frozen=True)
class Protocol:
    """How the figures were made."""

    templates: Templates
    batch_size: int
    device: str
    ranks: int
    fast: bool  # decoder
    max_bad: float
    limit: int | None
    per_class: int | None
    seed: int
    forced_image_size: int | list[int] | None


def zero_shot_result(
    loaded: LoadedModel,
    dataset: Dataset,
    root: str,
    measured: Mapping[str, Measured],
    protocol: Protocol,
    *,
    prompts: tuple[int, float],
    argv: Sequence[str],
) -> dict[str, Any]:
    """The whole result as JSON values.

    Args:
        measured: of each folder of the data set, by its name.
        prompts: how many prompts were encoded in how many seconds; 0 where the class weights came from the cache.
    """
    results = {s.name: figures_of(measured[s.folder], s.name) for s in dataset.sets}
    first = measured[dataset.sets[0].folder]
    folders = [m.folder for m in measured.values()]
    listed, seconds = sum(len(f.pictures) for f in folders), sum(m.seconds for m in measured.values())
    bad = [{"folder": name, **vars(b)} for name, m in measured.items() for b in m.bad]
    images_per_s = round((listed - len(bad)) / seconds, 1) if seconds > 0 else None
    return {
        **model_facts(loaded),
        "dataset": dataset.name,
        "root": without_password(root),
        **{name: results[dataset.sets[0].name][name] for name in TOP_FIGURES},
        "bad": len(bad),
        "partial": is_partial(dataset, listed - len(bad), any(f.chosen for f in folders)),
        "about": [*dataset.about, *filter(None, [size_warning(loaded), unread_warning(loaded)])],
        "manifests": {f.name: f.manifest_sha256 for f in folders if f.manifest_sha256},
        "list_sha256": first.folder.pictures.list_sha256,
        "lists": {f.name: f.pictures.list_sha256 for f in folders},
        "classes": class_facts(dataset, first.folder),
        "protocol": "OpenCLIP zero-shot: normalise, mean over templates, normalise; model's own eval transform",
        "templates": {"name": protocol.templates.name, "texts": list(protocol.templates.texts)},
        "image_size": loaded.image_size,
        "forced_image_size": protocol.forced_image_size,
        "decoder": DECODERS[protocol.fast],
        "precision": "fp32",
        "batch_size": protocol.batch_size,
        "device": protocol.device,
        "ranks": protocol.ranks,
        "limit": protocol.limit,
        "per_class": protocol.per_class,
        "seed": None if protocol.per_class is None else protocol.seed,
        "max_bad": protocol.max_bad,
        "counts": {"images": listed - len(bad), "bad_images": len(bad)},
        "bad_images": bad,
        "read_otherwise": {
            name: dict(sorted(Counter(m.otherwise.values()).items())) for name, m in measured.items() if m.otherwise
        },
        "sets": {s.name: {"title": s.title, "folder": s.folder, "about": s.about} for s in dataset.sets},
        "results": results,
        "seconds": round(seconds, 3),
        "images_per_s": images_per_s,
        "throughput": {
            "images_per_s": images_per_s,
            "prompts_per_s": round(prompts[0] / prompts[1], 1) if prompts[0] and prompts[1] > 0 else None,
        },
        "versions": versions(),
        "command": command_line(argv),
        "hits": {s.name: packed_hits(measured[s.folder], s.name) for s in dataset.sets},
    }


def is_partial(dataset: Dataset, pictures: int, left_out: bool) -> bool:
    """Whether the figures, of so many readable pictures, are of fewer than the set has."""
    if dataset.official is not None:
        return pictures < dataset.official
    return left_out


def class_facts(dataset: Dataset, folder: Readied) -> dict[str, Any]:
    """Which classes the guesses are among: two results of one hash are about the same classes by the same names."""
    listed = json.dumps([folder.pictures.classes, folder.class_names], ensure_ascii=True)
    name = f"{dataset.classes} ({dataset.subset})" if dataset.subset else dataset.classes
    return {"list": name, "count": len(folder.class_names), "sha256": hashlib.sha256(listed.encode()).hexdigest()}


# --- hits: what `compare` needs of each picture ---------------------------------------------------------------------


def packed_hits(measured: Measured, name: str) -> dict[str, Any]:
    """Of each picture of a set, in the list's order: its class, whether it was read, and whether it was a hit.

    `top1`, `top5` and `readable` are bits, eight a byte, first bit first, as base64; `labels` are little-endian int32,
    zlib-compressed, as base64.
    """
    guesses, chosen = measured.sets[name], set(measured.folder.columns[name])
    labels = measured.folder.pictures.labels
    numbers = [number for number, label in enumerate(labels) if label in chosen]
    place = np.full(len(labels), -1)
    place[numbers] = np.arange(len(numbers))
    own = place[guesses.numbers.numpy()]

    def bits(values_N: Tensor | bool) -> str:
        everyone = np.zeros(len(numbers), dtype=bool)
        everyone[own] = values_N
        return base64.b64encode(np.packbits(everyone).tobytes()).decode("ascii")

    kept = np.array([labels[number] for number in numbers], dtype="<i4")
    return {
        "count": len(numbers),
        "top1": bits(metrics.hits(guesses.best, guesses.labels, 1)),
        "top5": bits(metrics.hits(guesses.best, guesses.labels, TOP_K)),
        "readable": bits(True),
        "labels": base64.b64encode(zlib.compress(kept.tobytes())).decode("ascii"),
    }


def unpacked_hits(packed: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What `packed_hits` wrote: `top1`, `top5` and `readable` as bool (N,), `labels` as int32 (N,).

    Raises:
        ValueError, KeyError, TypeError: it is not as `packed_hits` writes it.
    """
    count = int(packed["count"])
    found = {}
    for name in ("top1", "top5", "readable"):
        octets = np.frombuffer(base64.b64decode(packed[name], validate=True), np.uint8)
        if len(octets) != (count + 7) // 8:
            raise ValueError(f"{name} holds {len(octets)} bytes, {count} pictures take {(count + 7) // 8}")
        found[name] = np.unpackbits(octets, count=count) > 0
    if (found["top1"] & ~found["top5"]).any() or (found["top5"] & ~found["readable"]).any():
        raise ValueError("a picture is a top-1 hit and no top-5 hit, or was not read")
    try:
        content = zlib.decompress(base64.b64decode(packed["labels"], validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from error
    found["labels"] = np.frombuffer(content, "<i4")
    if len(found["labels"]) != count or (found["labels"] < 0).any():
        raise ValueError(f"expected {count} pictures, found {len(found['labels'])}")
    return found


def checked_hits(result: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """The hits of every set of a result, unpacked, after its figures were computed from them once more.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, OverflowError: it is not as it was written.
    """
    found = {name: unpacked_hits(packed) for name, packed in result["hits"].items()}
    if found.keys() != result["results"].keys():
        raise ValueError(f"its hits are of {list(found)}, its figures of {list(result['results'])}")
    for name, hits in found.items():
        figures, own = result["results"][name], figures_from(hits)
        differing = [key for key in own if figures[key] != own[key]]
        if differing:
            raise ValueError(
                f"the hits of {name} do not give its figures: {differing[0]} is {figures[differing[0]]}, by the hits "
                f"{own[differing[0]]}"
            )
    first = result["results"][next(iter(found))]
    if any(result[key] != first[key] for key in TOP_FIGURES):
        raise ValueError("its figures are not those of its first set")
    return found


def figures_from(hits: Mapping[str, np.ndarray]) -> dict[str, float]:
    """`TOP_FIGURES` of unpacked hits."""
    kept = hits["readable"]
    first_N, five_N = (torch.from_numpy(hits[name][kept]) for name in ("top1", "top5"))
    labels_N = torch.from_numpy(hits["labels"][kept].astype(np.int64))
    return {
        "top1": metrics.percent(first_N),
        "top5": metrics.percent(five_N),
        "mean_per_class": metrics.mean_per_class(first_N, labels_N),
        "n": len(first_N),
    }


# --- for a terminal -------------------------------------------------------------------------------------------------


def notes(result: Mapping[str, Any]) -> list[str]:
    """What a reader of the figures has to know beside them, as sentences."""
    said = list(result["about"])
    if result["partial"]:
        said.append(f"Partial: {result['counts']['images']:,} pictures, fewer than the whole set.")
    if result["bad_images"]:
        named = ", ".join(bad_name(b) for b in result["bad_images"][:5])
        more = ", …" if len(result["bad_images"]) > 5 else ""
        said.append(f"Unreadable pictures, left out: {len(result['bad_images'])} ({named}{more}).")
    otherwise = [f"{count} with {has}" for counts in result["read_otherwise"].values() for has, count in counts.items()]
    if otherwise:
        said.append(
            f"Read as a person sees them, which OpenCLIP would not: {', '.join(otherwise)} (--predictions names them)."
        )
    for name, row in result["results"].items():
        if row["ties"]:
            said.append(
                f"{name}: {row['ties']} of {row['n']} pictures have another class exactly tied with the right one."
            )
        if "merged_top1" in row:
            said.append(f"{name}: top-1 is {row['merged_top1']:.2f} % where classes of one name count as one.")
    return said


def bad_name(bad: Mapping[str, str]) -> str:
    """Where an unreadable picture lies under the root: `val/n01440764/x.JPEG` and `test/0.tar:s01`."""
    below = f"{bad['folder']}/{bad['shard']}".strip("/")
    return f"{below}{':' if below.endswith('.tar') else '/'}{bad['key']}"


def table(result: Mapping[str, Any], sets: Sequence[EvalSet]) -> str:
    """The figures for a terminal, one line a set and one indented line a vendor."""
    head = f"{'set':<28}{'top-1 %':>9}{'95 % interval':>16}{'top-5 %':>9}{'per class':>11}{'chance':>8}"
    head += f"{'images':>8}{'classes':>9}"
    lines = [head, "-" * len(head)]
    for eval_set in sets:
        row = result["results"][eval_set.name]
        lines.append(figures_line(eval_set.title, row) + f"{row['chance']:>8.2f}{row['n']:>8}{row['classes']:>9}")
        for vendor, part in row.get("per_vendor", {}).items():
            lines.append(figures_line(f"  {vendor}", part) + f"{'':>8}{part['n']:>8}")
    speed = f"{result['images_per_s']} images/s" if result["images_per_s"] else "speed not measured"
    if prompts := result["throughput"]["prompts_per_s"]:
        speed += f", {prompts} prompts/s"
    about = f"{result['model']} ({result['kind']}), {result['image_size']} px, {speed}"
    if result["decoder"] != DECODERS[False]:
        about += f", decoded by {result['decoder']}"
    return "\n".join([*lines, about, *notes(result)])


def figures_line(title: str, row: Mapping[str, Any]) -> str:
    """The first columns of a table's line, in percent."""
    low, high = row["interval"]
    interval = f"{low:.1f}-{high:.1f}"
    return f"{title:<28}{row['top1']:>9.2f}{interval:>16}{row['top5']:>9.2f}{row['mean_per_class']:>11.2f}"
