"""Which class a folder is, and what is wrong with a tree whose class folders are not the expected ones.

labels = folder_labels(class_folders(root), classes, numbered=False)        # None: other folders than expected
raise RefusedError(explain(root, found, classes, numbered=False))           # with the folder that was probably meant
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchvision.datasets.folder import IMG_EXTENSIONS

from evaluate.data.classes import ClassList, class_list
from evaluate.data.sets import DATASETS, EMOJI
from evaluate.errors import RefusedError

NAMED = 3  # folders that a refusal names
DEEPEST = 4  # levels below the root that are searched for the class folders …
MOST_LOOKED = 300  # … in so many folders
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")

# Releases of ImageNet-21K whose folders are not the fall 2011 ones, by their number (https://image-net.org/download).
RELEASES = {
    19_167: "the winter 2021 release of ImageNet-21K (19,167 classes)",
    10_450: "the winter 2021 release as MIIL processed it (10,450 classes)",
}


def class_folders(root: Path) -> set[str]:
    """Names of the folders in `root`, hidden ones left out. Raises RefusedError where it is no readable folder."""
    try:
        with os.scandir(root) as entries:
            return {entry.name for entry in entries if not entry.name.startswith(".") and is_folder(entry)}
    except FileNotFoundError:
        raise RefusedError(f"{root}: no such folder. Give the folder that holds the class folders.") from None
    except NotADirectoryError:
        raise RefusedError(f"{root}: a file. Give the folder that holds the class folders, unpacked.") from None
    except OSError as error:
        raise RefusedError(f"{root} cannot be read ({error.strerror}).") from error


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Whether it is a folder or leads to one; a link in a circle is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def folder_labels(found: set[str], classes: ClassList, numbered: bool) -> dict[str, int] | None:
    """Class index of each folder, None unless the folders are exactly the classes (or, `numbered`, their numbers)."""
    if found == set(classes.ids):
        return {wnid: label for label, wnid in enumerate(classes.ids)}
    if numbered and _all_numbers(found, len(classes)):
        return {name: int(name) for name in found}
    return None


def some(names: Iterable[str]) -> str:
    """The first of the names, and whether there are more."""
    ordered = sorted(names)
    return ", ".join(ordered[:NAMED]) + (", …" if len(ordered) > NAMED else "")


def explain(root: Path, found: set[str], classes: ClassList, numbered: bool) -> str:
    """What is wrong with the class folders `found` in `root`: what was expected, what is there, what was meant."""
    expected = _expected(classes, numbered)
    said = [
        f"{len(names):,} {what} ({some(names)})"
        for what, names in (("missing", expected - found), ("not expected", found - expected))
        if names
    ]
    kind = "the numbers 0 to" if numbered else "wnids such as"
    example = str(len(classes) - 1) if numbered else classes.ids[0]
    return (
        f"{root}: its folders must be exactly the {len(classes):,} classes, {kind} {example}; found {len(found):,} "
        f"folders, {' and '.join(said)}. {_meant(root, found, classes, numbered)}"
    )


def _meant(root: Path, found: set[str], classes: ClassList, numbered: bool) -> str:
    """What to do about it, as far as it can be guessed."""
    expected = _expected(classes, numbered)
    for folder in (*_above(root), *_below(root, expected)):
        if _like(folder, expected):
            return f"Probably meant: {folder}"
    if not found:
        return _without_folders(root)
    if not numbered and _all_numbers(found, len(found)):
        return (
            "These are numbers, as ImageNet-V2 has (--dataset imagenetv2); in another set they are some loader's own "
            "order, which cannot be trusted: unpack the original archive."
        )
    if len(found) in RELEASES and len(classes) > 10_000:
        return f"These are probably {RELEASES[len(found)]}; its accuracy is another figure. Get the fall 2011 classes."
    for dataset in DATASETS.values():
        if dataset.name != EMOJI.name and found == _expected(
            class_list(dataset.classes, dataset.subset), dataset.numbered
        ):
            return f"These are the classes of --dataset {dataset.name}."
    names = {_plain(name) for name in classes.names}
    named = [folder for folder in found if _plain(folder) in names]
    if len(named) > len(found) / 2:
        return f"These are names of classes ({some(named)}), which may stand for two; rename them to wnids."
    return "Make the folders exactly these: others move the class indices of every loader that numbers folders."


def _without_folders(root: Path) -> str:
    """What to do with a root that holds no folder."""
    with os.scandir(root) as entries:
        files = [entry.name for entry in entries if not entry.name.startswith(".")]
    pictures = [name for name in files if name.lower().endswith(IMG_EXTENSIONS)]
    archives = [name for name in files if name.lower().endswith(ARCHIVES)]
    if pictures:
        return f"It holds {len(pictures):,} pictures ({some(pictures)}); sort them into a folder for each class."
    if archives:
        return f"It holds archives ({some(archives)}); unpack them, each class into its folder."
    return f"It holds {some(files) or 'nothing'}. Give the folder that holds the class folders."


def _expected(classes: ClassList, numbered: bool) -> set[str]:
    """Names that the class folders should have."""
    return {str(label) for label in range(len(classes))} if numbered else set(classes.ids)


def _all_numbers(found: set[str], classes: int) -> bool:
    """Whether the names are the numbers 0 to classes - 1, each once, with or without zeros before them."""
    if not all(name.isascii() and name.isdigit() for name in found):
        return False
    return sorted(map(int, found)) == list(range(classes))


def _plain(name: str) -> str:
    """A class name as folders are named after it."""
    return name.lower().replace("_", " ").replace("-", " ").strip()


def _like(folder: Path, expected: set[str]) -> bool:
    """Whether most of the expected class folders are in `folder`."""
    try:
        return len(class_folders(folder) & expected) > len(expected) / 2
    except RefusedError:
        return False


def _above(root: Path) -> list[Path]:
    """The folders that `root` lies in, nearest first."""
    return list(Path(os.path.abspath(root)).parents[:2])


def _below(root: Path, expected: set[str]) -> Iterator[Path]:
    """Folders below `root`, level by level, those named for validation first; class folders are not searched."""
    level, looked = [root], 0
    for _ in range(DEEPEST):
        level = [
            folder / name
            for folder in level[:MOST_LOOKED]
            for name in sorted(class_folders(folder) - expected)
            if not (folder / name).is_symlink() and os.access(folder / name, os.R_OK | os.X_OK)
        ]
        level.sort(key=lambda folder: not any(word in folder.name.lower() for word in ("val", "test")))
        for folder in level:
            looked += 1
            if looked > MOST_LOOKED:
                return
            yield folder
