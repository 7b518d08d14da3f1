"""Reads a data set from wherever it lies, checked before anything is encoded.

    dataset, folders = read_dataset(get_dataset("imagenet1k"), "imagenet/val", limit=None, per_class=None, seed=0)

A folder with ``test/nshards.txt`` or an address (``https://…``) is in CLIP_benchmark's webdataset layout; the emoji set
has a form of its own; everything else is a tree of class folders.
"""

import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from string import digits

from evaluate.data import emoji, webdataset
from evaluate.data.classes import THOUSAND, ClassList, class_list, shared_names
from evaluate.data.pictures import Pictures
from evaluate.data.remote import bring, is_address
from evaluate.data.sets import ANY, DATASETS, EMOJI, IMAGENET_TEMPLATES, Dataset, Templates
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
    chosen: bool = False  # whether pictures were left out on request


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
    if not root:
        raise RefusedError("--root is empty. Give the data set's folder, or its address.")
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
    folder = bring(root, dataset.split) if is_address(root) else Path(root)
    if webdataset.has_layout(folder, dataset.split):
        return _webdataset(dataset, root, folder)
    if dataset.name.startswith(ANY):
        webdataset.refuse_neighbours(folder, dataset.split)
        raise RefusedError(
            f"{root} has no {dataset.split}/nshards.txt, so it is no set in CLIP_benchmark's webdataset layout."
        )
    classes = class_list(dataset.classes, dataset.subset)
    try:
        pictures = read_tree(folder, classes, numbered=dataset.numbered)
    except RefusedError:
        webdataset.refuse_neighbours(folder, dataset.split)
        raise
    _refuse_other_names(dataset, pictures)
    return dataset, [_whole(dataset, pictures, list(classes.names))]


def _webdataset(dataset: Dataset, root: str, folder: Path) -> tuple[Dataset, list[Readied]]:
    """A set in CLIP_benchmark's layout: of one with an entry here the entry's classes and prompts rule."""
    webdataset.refuse_other_types(folder)
    own = webdataset.read_names(folder)
    if dataset.name.startswith(ANY):
        if own is None:
            raise RefusedError(f"{root} has no {webdataset.NAMES}, the names of its classes, one a line.")
        classes = ClassList(tuple(map(str, range(len(own)))), tuple(own))
        templates = {name: IMAGENET_TEMPLATES[name] for name in ("simple", "photo")}
        if (texts := webdataset.read_templates(folder)) is not None:
            templates["full"] = Templates("full", texts)
        dataset = replace(dataset, templates=templates)
    else:
        classes = class_list(dataset.classes, dataset.subset)
        if own is not None:
            dataset = replace(dataset, about=dataset.about + _differences(root, classes, own))
    places, names, labels = webdataset.read_labelled(folder, dataset.split, len(classes))
    empty = [classes.names[label] for label in sorted(set(range(len(classes))) - set(labels))]
    if empty:
        named = ", ".join(empty[:3]) + (", …" if len(empty) > 3 else "")
        said = f"{len(empty):,} of {len(classes):,} classes have no picture ({named})"
        if not dataset.name.startswith(ANY):
            raise RefusedError(f"{root}: {said}. Copy the set again, or give it as --dataset {ANY}NAME.")
        dataset = replace(dataset, about=(*dataset.about, f"{said}; they take part as wrong guesses."))
    pictures = Pictures(root, list(classes.ids), places, names, labels)
    return dataset, [_whole(dataset, pictures, list(classes.names))]


def _differences(root: str, classes: ClassList, own: list[str]) -> tuple[str, ...]:
    """A note on the names that the set brings, where they are not those used. Raises RefusedError for other classes."""
    if len(own) != len(classes):
        raise RefusedError(
            f"{root}: {webdataset.NAMES} has {len(own):,} classes, expected {len(classes):,}. Give the data set that "
            f"it is, or --dataset {ANY}NAME to use its own names."
        )
    differing = [(ours, theirs) for ours, theirs in zip(classes.names, own, strict=True) if ours != theirs]
    if not differing:
        return ()
    ours, theirs = differing[0]
    return (
        f"{len(differing):,} class names differ from the {webdataset.NAMES} beside the pictures, first {ours!r} (used) "
        f"and {theirs!r} (there); --dataset {ANY}NAME uses those.",
    )


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


def _refuse_other_names(dataset: Dataset, pictures: Pictures) -> None:
    """ImageNet-1k, Sketch and V2 may have the same class folders; their pictures' names tell them apart."""
    if dataset.classes != THOUSAND or dataset.subset or set(pictures.names[0].partition("/")[0]) <= set(digits):
        return
    names = [name.rpartition("/")[2] for name in pictures.names]
    for other in DATASETS.values():
        if other.file_names and other.file_names != dataset.file_names:
            foreign = [name for name in names if re.fullmatch(other.file_names, name)]
            if len(foreign) > len(names) / 2:
                raise RefusedError(
                    f"{pictures.root}: {len(foreign):,} of {len(names):,} pictures are named as those of "
                    f"{other.sets[0].title} are, for example {foreign[0]}. Give --dataset {other.name}, or the folder "
                    f"of {dataset.sets[0].title}."
                )


def _notes(class_names: list[str]) -> list[str]:
    """What a reader has to know of the names."""
    shared = shared_names(class_names)
    if not shared:
        return []
    named = ", ".join(repr(name) for name in list(shared)[:2]) + (", …" if len(shared) > 2 else "")
    return [
        f"Of the {len(class_names):,} classes {sum(shared.values()):,} have a name that another has too ({named}): "
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
    return replace(folder, pictures=folder.pictures.only(kept), groups=groups, chosen=True)


def _of_each_class(pictures: Pictures, per_class: int, seed: int) -> list[int]:
    """Numbers of `per_class` pictures a class (or all it has): those whose names' hashes with the seed are smallest.

    The choice is the same on every machine, and does not move when other pictures come or go.
    """
    drawn: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
    for number, (name, label) in enumerate(zip(pictures.names, pictures.labels, strict=True)):
        lot = hashlib.sha256(f"{seed}\t{name}".encode("utf-8", "surrogateescape")).digest()
        drawn[label].append((lot, number))
    return sorted(number for lots in drawn.values() for _, number in sorted(lots)[:per_class])
