"""A tree of class folders, ROOT/CLASS/*.JPEG, listed in torchvision's ImageFolder order; nothing is opened.

    pictures = read_tree(Path("imagenet/val"), class_list("imagenet-1k"))

Class folders must be exactly the expected ones: with one more or less, a reader that numbers them by order moves every
class index, and a wrong folder gives 0.1 % accuracy without a word.

Cost: a stat call a picture, about 50,000 a second from a warm disk.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchvision.datasets.folder import IMG_EXTENSIONS

from evaluate.data.classes import ClassList
from evaluate.data.pictures import Pictures, Place
from evaluate.errors import RefusedError

NAMED = 3  # folders that a refusal names


def read_tree(root: Path, classes: ClassList, *, numbered: bool = False) -> Pictures:
    """List the pictures of ROOT/CLASS/…, sorted by folder and file name as ImageFolder does.

    Args:
        numbered: class folders are the numbers of the classes (ImageNet-V2), label = int(name). Exactly the ids are
            accepted as well.

    Raises:
        RefusedError: no such folder, other class folders than the expected, one without pictures, links in a circle.
    """
    found = class_folders(root)
    labels = folder_labels(root, found, classes, numbered)
    places: list[Place] = []
    names: list[str] = []
    label_of: list[int] = []
    empty = []
    for folder in sorted(labels):
        before = len(places)
        for name, size in _pictures(root, folder, set(labels) - {folder}):
            places.append(Place(root / name, 0, size))
            names.append(name)
        label_of += [labels[folder]] * (len(places) - before)
        if len(places) == before:
            empty.append(folder)
    if empty:
        raise RefusedError(
            f"{root}: {len(empty)} class folders hold no picture ({_some(empty)}); a picture ends in "
            f"{', '.join(IMG_EXTENSIONS)}. Copy them again."
        )
    return Pictures(str(root), list(classes.ids), places, names, label_of)


def class_folders(root: Path) -> set[str]:
    """Names of the folders in `root`, hidden ones left out. Raises RefusedError where it is no readable folder."""
    try:
        with os.scandir(root) as entries:
            return {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")}
    except FileNotFoundError:
        raise RefusedError(f"{root}: no such folder. Give the folder that holds the class folders.") from None
    except NotADirectoryError:
        raise RefusedError(f"{root}: a file. Give the folder that holds the class folders.") from None
    except OSError as error:
        raise RefusedError(f"{root} cannot be read ({error.strerror}).") from error


def folder_labels(root: Path, found: set[str], classes: ClassList, numbered: bool) -> dict[str, int]:
    """Class index of each folder. Raises RefusedError unless the folders are exactly the classes."""
    if found == set(classes.ids):
        return {wnid: label for label, wnid in enumerate(classes.ids)}
    if numbered and all(name.isascii() and name.isdigit() for name in found):
        labels = {name: int(name) for name in found}
        if sorted(labels.values()) == list(range(len(classes))):
            return labels
    said = [
        f"{len(names)} {what} ({_some(names)})"
        for what, names in (("missing", set(classes.ids) - found), ("not expected", found - set(classes.ids)))
        if names
    ]
    raise RefusedError(
        f"{root}: class folders must be exactly the {len(classes):,} expected such as {classes.ids[0]}; found "
        f"{len(found):,} folders, {' and '.join(said)}."
    )


def _some(names: Iterable[str]) -> str:
    """The first of the names, and whether there are more."""
    ordered = sorted(names)
    return ", ".join(ordered[:NAMED]) + (", …" if len(ordered) > NAMED else "")


def _pictures(root: Path, folder: str, others: set[str]) -> Iterator[tuple[str, int]]:
    """(name under root, size) of each picture below a class folder, in ImageFolder's order."""
    files: dict[str, list[tuple[str, int]]] = {}
    _walk(str(root), folder, [_identity(str(root))], files)
    for below in sorted(files):
        for name, size in sorted(files[below]):
            yield f"{below}/{name}", size


def _walk(root: str, below: str, above: list[tuple[int, int]], files: dict[str, list[tuple[str, int]]]) -> None:
    """Collect the pictures of a folder and those below it; `above` are the folders that it lies in."""
    path = f"{root}/{below}"
    here = _identity(path)
    if here in above:
        raise RefusedError(f"{path} is a link to a folder above it; remove the link.")
    files[below] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir():
                _walk(root, f"{below}/{entry.name}", [*above, here], files)
            elif entry.name.lower().endswith(IMG_EXTENSIONS) and not entry.name.startswith("."):
                files[below].append((entry.name, _size(entry)))


def _identity(path: str) -> tuple[int, int]:
    """What a folder is, whatever name it is reached by."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _size(entry: "os.DirEntry[str]") -> int:
    """Bytes of a file; 0 where a link leads nowhere, which reading then reports as an unreadable picture."""
    try:
        found = entry.stat()
    except OSError:
        return 0
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError(f"{entry.path} has a picture's name but is no file; remove it.")
    return found.st_size
