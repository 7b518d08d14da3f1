"""Reads a data set from wherever it lies, checked before anything is encoded.

    dataset, folders = read_dataset(get_dataset("imagenet1k"), "imagenet/val", limit=None, per_class=None, seed=0)

The emoji set has a form of its own; everything else is a tree of class folders.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from evaluate.data import emoji
from evaluate.data.classes import class_list, shared_names
from evaluate.data.pictures import Pictures
from evaluate.data.sets import EMOJI, Dataset
from evaluate.data.tree import read_tree
from evaluate.errors import RefusedError


@dataclass(frozen=True)
class Readied:
    """One folder of a data set, read and checked: N pictures of C classes."""

    name: str  # EvalSet.folder
    pictures: Pictures
    class_names: list[str]  # what the text tower reads, length C, in class-index order
    columns: dict[str, list[int]]  # set name -> class indices that take part
    groups: list[str] | None = None  # of each picture, for a row a group (emoji: its vendor)
    manifest_sha256: str | None = None


def read_dataset(
    dataset: Dataset, root: str, *, limit: int | None, per_class: int | None, seed: int
) -> tuple[Dataset, list[Readied]]:
    """The data set as it was read (with what its files brought and what a reader has to know), and its folders.

    Args:
        limit: keep this many pictures of each folder, evenly spread over the list, for a quick look.
        per_class: keep this many pictures of each class, chosen by `seed` and each picture's name alone.

    Raises:
        RefusedError: whatever would give a wrong number, with what was found and what to do.
    """
    for option, value in (("--limit", limit), ("--per-class", per_class)):
        if value is not None and value < 1:
            raise RefusedError(f"{option} must be at least 1, found {value}")
    dataset, folders = _read(dataset, root)
    for folder in folders:
        _refuse_more(dataset, folder.pictures)
    notes = tuple(note for folder in folders for note in _notes(folder.class_names))
    folders = [_fewer(folder, limit, per_class, seed) for folder in folders]
    return replace(dataset, about=dataset.about + notes), folders


def _read(dataset: Dataset, root: str) -> tuple[Dataset, list[Readied]]:
    """Every picture of the data set, by the reader of its form."""
    if dataset.name == EMOJI.name:
        return dataset, [_emoji(dataset, root, name) for name in dataset.folders]
    classes = class_list(dataset.classes, dataset.subset)
    pictures = read_tree(Path(root), classes, numbered=dataset.numbered)
    return dataset, [_whole(dataset, pictures, list(classes.names))]


def _whole(dataset: Dataset, pictures: Pictures, class_names: list[str]) -> Readied:
    """The one folder of a data set whose sets have all classes."""
    return Readied("", pictures, class_names, {s.name: list(range(len(class_names))) for s in dataset.sets})


def _emoji(dataset: Dataset, root: str, name: str) -> Readied:
    """One emoji folder; a set without flags has fewer columns."""
    classes, pictures, vendors, manifest_sha256 = emoji.read_pictures(Path(root), name)
    columns = {
        s.name: [i for i, entry in enumerate(classes) if s.flags or not entry.flag]
        for s in dataset.sets
        if s.folder == name
    }
    return Readied(name, pictures, [c.name for c in classes], columns, vendors, manifest_sha256)


def _refuse_more(dataset: Dataset, pictures: Pictures) -> None:
    """More pictures than the official set has are other pictures too."""
    if dataset.official is None or len(pictures) <= dataset.official:
        return
    meant = "This is probably the training split; give" if dataset.name == "imagenet1k" else "Give"
    raise RefusedError(
        f"{pictures.root}: {len(pictures):,} pictures, but {dataset.sets[0].title} has {dataset.official:,}. "
        f"{meant} the folder that holds that set alone."
    )


def _notes(class_names: list[str]) -> list[str]:
    """What a reader has to know of the names."""
    shared = shared_names(class_names)
    if not shared:
        return []
    named = ", ".join(repr(name) for name in list(shared)[:2]) + (", …" if len(shared) > 2 else "")
    return [
        f"{sum(shared.values()):,} of the {len(class_names):,} classes share {len(shared):,} names ({named}): "
        "top-1 cannot tell those apart."
    ]


def _fewer(folder: Readied, limit: int | None, per_class: int | None, seed: int) -> Readied:
    """The folder with the pictures that `per_class` and then `limit` leave, in their order."""
    kept = list(range(len(folder.pictures)))
    if per_class is not None:
        kept = _of_each_class(folder.pictures, per_class, seed)
    if limit is not None and limit < len(kept):
        kept = [kept[i * len(kept) // limit] for i in range(limit)]
    if len(kept) == len(folder.pictures):
        return folder
    groups = None if folder.groups is None else [folder.groups[n] for n in kept]
    return replace(folder, pictures=folder.pictures.only(kept), groups=groups)


def _of_each_class(pictures: Pictures, per_class: int, seed: int) -> list[int]:
    """Numbers of `per_class` pictures a class (or all it has): those whose names' hashes with the seed are smallest.

    The choice is the same on every machine, and does not move when other pictures come or go.
    """
    drawn: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
    for number, (name, label) in enumerate(zip(pictures.names, pictures.labels, strict=True)):
        lot = hashlib.sha256(f"{seed}\t{name}".encode("utf-8", "surrogateescape")).digest()
        drawn[label].append((lot, number))
    return sorted(number for lots in drawn.values() for _, number in sorted(lots)[:per_class])
