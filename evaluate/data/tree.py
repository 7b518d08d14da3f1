"""A tree of class folders, ROOT/CLASS/*.JPEG, listed in torchvision's ImageFolder order; nothing is opened.

    pictures = read_tree(Path("imagenet/val"), class_list("imagenet-1k"))

Class folders must be exactly the expected ones: with one more or less, a reader that numbers them by order moves every
class index, and a wrong folder gives 0.1 % accuracy without a word. What is wrong is found out in ``mistakes.py``.

Cost: a stat call a picture; half a second for 50,000 pictures and 10 s (370 MB) for 1.3 million from a warm disk.
"""

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from torchvision.datasets.folder import IMG_EXTENSIONS

from evaluate.data.classes import ClassList
from evaluate.data.mistakes import class_folders, explain, folder_labels, is_folder, some
from evaluate.data.pictures import Pictures, Place
from evaluate.errors import RefusedError

_Files = dict[str, list[tuple[str, int]]]  # folder under the root -> (file name, bytes)


def read_tree(root: Path, classes: ClassList, *, numbered: bool = False) -> Pictures:
    """List the pictures of ROOT/CLASS/…, sorted by folder and file name as ImageFolder does.

    Args:
        numbered: class folders are the numbers of the classes (ImageNet-V2), label = int(name). Exactly the ids are
            accepted as well, label by id.

    Raises:
        RefusedError: no such folder, other class folders than the expected, one without pictures or with another class
            inside, links in a circle.
    """
    found = class_folders(root)
    labels = folder_labels(found, classes, numbered)
    if labels is None:
        raise RefusedError(explain(root, found, classes, numbered))
    places: list[Place] = []
    names: list[str] = []
    label_of: list[int] = []
    empty = []
    for folder in sorted(labels):
        before = len(places)
        for name, size in _pictures(root, folder, labels):
            places.append(Place(f"{root}/{name}", 0, size))
            names.append(name)
        label_of += [labels[folder]] * (len(places) - before)
        if len(places) == before:
            empty.append(folder)
    if empty:
        raise RefusedError(
            f"{root}: {len(empty)} class folders hold no picture ({some(empty)}); a picture's name ends in "
            f"{', '.join(IMG_EXTENSIONS)}. Copy them again: an empty class could only be guessed wrongly."
        )
    return Pictures(str(root), list(classes.ids), places, names, label_of)


def _pictures(root: Path, folder: str, classes: Collection[str]) -> Iterator[tuple[str, int]]:
    """(name under root, size) of each picture below a class folder, in ImageFolder's order."""
    files: _Files = {}
    try:
        _walk(str(root), folder, [_identity(str(root))], files)
    except OSError as error:
        raise RefusedError(f"{error.filename} cannot be read ({error.strerror}).") from error
    inside = {name for below in files for name in below.split("/")[1:] if name in classes and name != folder}
    if inside:
        raise RefusedError(f"{root / folder} holds class folders of its own ({some(inside)}); move or remove them.")
    for below in sorted(files):
        for name, size in sorted(files[below]):
            yield f"{below}/{name}", size


def _walk(root: str, below: str, above: list[tuple[int, int]], files: _Files) -> None:
    """Collect the pictures of a folder and those below it; `above` are the folders that it lies in."""
    path = f"{root}/{below}"
    here = _identity(path)
    if here in above:
        raise RefusedError(f"{path} is a link to a folder above it; remove the link.")
    files[below] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if is_folder(entry):
                _walk(root, f"{below}/{entry.name}", [*above, here], files)
            elif entry.name.lower().endswith(IMG_EXTENSIONS):
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
