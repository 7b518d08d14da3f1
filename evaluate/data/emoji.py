"""Reads an evaluation folder whole and checks it before anything is encoded.

    ROOT/heldout-vendor/  manifest.jsonl  classes.json  00000.tar …

``classes.json`` lists the classes (their place in it is the class index); the manifest names the shards; each sample is
KEY.png, KEY.txt and KEY.json, where the json names the sample's ``concept``. Pictures stay encoded in memory (a few
kB each) until they are needed.
"""

import json
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import DataError
from data_prep.manifest import MANIFEST, ShardEntry, read_manifest, sha256_file
from data_prep.shards import KEY, read_samples
from evaluate.data.pictures import Pictures, Place
from evaluate.errors import RefusedError

CLASSES = "classes.json"
BUILD = "Build the set with `python -m data_prep emoji --output DIR` and give that DIR as --root."


@dataclass(frozen=True)
class ClassEntry:
    """One class as classes.json gives it; ``concept`` is its unique code, ``name`` what the text tower reads."""

    concept: str
    name: str
    group: str
    subgroup: str
    flag: bool


@dataclass(frozen=True)
class Sample:
    """One picture, still encoded, with its class index and who drew it."""

    shard: str
    key: str
    image: bytes
    label: int  # place in the folder's classes
    vendor: str
    credit: str  # vendor, licence and package, as far as the sample gives them


@dataclass(frozen=True)
class Folder:
    """A checked evaluation folder."""

    path: Path
    classes: list[ClassEntry]
    samples: list[Sample]
    manifest_sha256: str  # names the data: the manifest holds the hash of every shard, which reading compares


def read_folder(root: Path, name: str) -> Folder:
    """Read ``ROOT/name``.

    Raises RefusedError: the root, folder, manifest or classes are missing or malformed, a shard's hash or count is not
    the manifest's, a sample's concept is no class, or a class has no sample.
    """
    path = find_folder(root, name)
    classes = read_classes(path)
    try:
        entries = read_manifest(path)
        index = {entry.concept: i for i, entry in enumerate(classes)}
        samples = [sample for entry in entries for sample in read_shard(path, entry, index)]
    except DataError as error:
        raise RefusedError(f"{error}. {BUILD}") from error
    refuse_empty_classes(path, classes, samples)
    return Folder(path, classes, samples, sha256_file(path / MANIFEST))


def read_pictures(root: Path, name: str) -> tuple[list[ClassEntry], Pictures, list[str], str]:
    """``ROOT/name`` as its classes, its pictures where they lie, each picture's vendor, and the manifest's hash.

    Raises RefusedError as ``read_folder`` does.
    """
    folder = read_folder(root, name)
    places = {}
    for shard in dict.fromkeys(sample.shard for sample in folder.samples):
        with tarfile.open(folder.path / shard, "r:", encoding="utf-8") as tar:
            for member in tar:
                places[shard, member.name] = Place(folder.path / shard, member.offset_data, member.size)
    pictures = Pictures(
        str(folder.path),
        [entry.concept for entry in folder.classes],
        [places[sample.shard, f"{sample.key}.png"] for sample in folder.samples],
        [f"{sample.shard}:{sample.key}" for sample in folder.samples],
        [sample.label for sample in folder.samples],
    )
    return folder.classes, pictures, [sample.vendor for sample in folder.samples], folder.manifest_sha256


def find_folder(root: Path, name: str) -> Path:
    """``ROOT/name`` if it is there; else RefusedError, with the folder that was probably meant."""
    if not root.is_dir():
        raise RefusedError(f"--root {root}: {'a file' if root.exists() else 'no such folder'}. {BUILD}")
    if (root / name).is_dir():
        return root / name
    for meant in (root.parent, *sorted(p for p in root.iterdir() if p.is_dir())):
        if (meant / name).is_dir():
            raise RefusedError(f"--root {root} has no folder {name!r}. Probably meant: --root {meant}")
    found = ", ".join(sorted(p.name for p in root.iterdir())[:8]) or "nothing"
    raise RefusedError(f"--root {root} has no folder {name!r}; it holds {found}. {BUILD}")


def read_classes(path: Path) -> list[ClassEntry]:
    """Classes of a folder in class-index order. Raises RefusedError when missing, malformed, unsorted or repeated."""
    file = path / CLASSES
    try:
        listed: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        classes = [
            ClassEntry(str(c["concept"]), str(c["name"]), str(c["group"]), str(c["subgroup"]), bool(c["flag"]))
            for c in listed
        ]
    except FileNotFoundError:
        raise RefusedError(f"{file} is missing. {BUILD}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"{file} is not a list of classes ({type(error).__name__}: {error}). {BUILD}") from error
    if not classes:
        raise RefusedError(f"{file} lists no class. {BUILD}")
    concepts = [c.concept for c in classes]
    if concepts != sorted(set(concepts)):
        raise RefusedError(f"{file} is not sorted by concept or names one twice, so class indices would move. {BUILD}")
    return classes


def read_shard(path: Path, entry: ShardEntry, index: dict[str, int]) -> list[Sample]:
    """The samples of one shard; ``index`` maps a concept to its class index. Raises RefusedError and DataError."""
    shard = path / entry.shard
    if sha256_file(shard) != entry.sha256:
        raise RefusedError(f"{shard} is not the file its manifest describes (its sha256 differs). {BUILD}")
    samples = [label(shard, raw, index) for raw in read_samples(shard)]
    if len(samples) != entry.samples:
        raise RefusedError(f"{shard} holds {len(samples)} samples, its manifest says {entry.samples}. {BUILD}")
    return samples


def label(shard: Path, raw: dict[str, bytes], index: dict[str, int]) -> Sample:
    """One raw sample with its class index. Raises RefusedError when it has no png, no json or an unknown concept."""
    key = raw[KEY].decode("utf-8")
    missing = [suffix for suffix in ("png", "json") if suffix not in raw]
    if missing:
        raise RefusedError(f"{shard}: sample {key!r} has no .{missing[0]} (found {sorted(set(raw) - {KEY})}). {BUILD}")
    try:
        described = json.loads(raw["json"])
        concept, vendor = str(described["concept"]), str(described["vendor"])
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RefusedError(f"{shard}: sample {key!r}.json gives no concept and vendor ({reason}). {BUILD}") from error
    if concept not in index:
        raise RefusedError(f"{shard}: sample {key!r} is of concept {concept!r}, which is not in {CLASSES}. {BUILD}")
    terms = [str(described[name]) for name in ("license", "package") if described.get(name)]
    credit = f"{vendor} ({', '.join(terms)})" if terms else vendor
    return Sample(shard.name, key, raw["png"], index[concept], vendor, credit)


def refuse_empty_classes(path: Path, classes: list[ClassEntry], samples: list[Sample]) -> None:
    """Raise RefusedError when a class has no sample: it would draw wrong guesses and could never be right."""
    pictures = Counter(s.label for s in samples)
    empty = [f"{c.concept} ({c.name})" for i, c in enumerate(classes) if not pictures[i]]
    if empty:
        raise RefusedError(f"{path / CLASSES}: {len(empty)} classes have no picture: {', '.join(empty[:5])}. {BUILD}")
