"""What is measured: one small entry a data set. A new data set is a new entry here and, if its form is new, a reader.

    dataset, folders = read_dataset(get_dataset("imagenet1k"), "imagenet/val")        # read.py

An entry says nothing about a model; ``read.py`` finds the reader for it and ``zero_shot.py`` scores it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from open_clip import OPENAI_IMAGENET_TEMPLATES, SIMPLE_IMAGENET_TEMPLATES

from evaluate.errors import RefusedError
from open_clip_linear.spec import nearest

ANY = "wds/"  # "wds/NAME" is any set in CLIP_benchmark's webdataset layout


@dataclass(frozen=True)
class Templates:
    """Prompts a class: each text is a format string with one ``{}`` for the class name."""

    name: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class EvalSet:
    """One figure of a data set: the pictures of ``folder`` among its classes, with or without the flags."""

    name: str  # the key in the JSON
    title: str  # for people
    folder: str = ""  # under the data set's root
    about: str = ""  # what a reader has to know of it, a sentence
    flags: bool = True  # False: neither pictures nor classes whose ``flag`` is true


@dataclass(frozen=True)
class Dataset:
    """A named data set: its prompts, its classes and its sets, in the order they are shown."""

    name: str
    templates: dict[str, Templates]  # "full" is the default, "simple" and "photo" are for a quick look
    sets: tuple[EvalSet, ...]  # the first is the one whose figures stand for the data set
    classes: str  # the class list's name: timm's, or the file that brings it
    subset: str = ""  # which of its classes take part: "a", "r" or "o" of the thousand
    numbered: bool = False  # class folders are numbers: label = int(name)
    official: int | None = None  # pictures of the official set: fewer are partial, more are refused
    about: tuple[str, ...] = ()  # what a reader has to know
    file_names: str = ""  # a regular expression for the official pictures' names, where other sets have other names
    split: str = "test"  # in CLIP_benchmark's layout, where "train" is the other

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders under the root, each once."""
        return tuple(dict.fromkeys(s.folder for s in self.sets))


def _texts(templates: Sequence[Callable[[str], str]]) -> tuple[str, ...]:
    """OpenCLIP's templates are functions of the name; as format strings they can be written down."""
    return tuple(template("{}") for template in templates)


# Captions in training are the Unicode names themselves, so the class name alone is the prompt.
PLAIN_NAME = Templates("plain-name", ("{}",))
IMAGENET_TEMPLATES = {
    "full": Templates("full", _texts(OPENAI_IMAGENET_TEMPLATES)),
    "simple": Templates("simple", _texts(SIMPLE_IMAGENET_TEMPLATES)),
    "photo": Templates("photo", ("a photo of a {}.",)),
}

EMOJI = Dataset(
    name="emoji",
    templates=IMAGENET_TEMPLATES | {"full": PLAIN_NAME},
    classes="classes.json",
    sets=(
        EvalSet(
            "heldout_vendor",
            "Held-out vendor",
            "heldout-vendor",
            about="Concepts known from other vendors, drawn by one that is not in the training set.",
        ),
        EvalSet(
            "heldout_vendor_noflags",
            "Held-out vendor, no flags",
            "heldout-vendor",
            flags=False,
            about="The same without flags, which look alike across vendors.",
        ),
        EvalSet(
            "heldout_concepts",
            "Held-out concepts",
            "heldout-concepts",
            about="No picture of them is in the training set, from any vendor; siblings (woman for man) may be.",
        ),
    ),
)


def _imagenet(name: str, title: str, official: int | None, classes: str = "imagenet-1k", **more: Any) -> Dataset:
    """An entry of ImageNet's family: one set, OpenAI's prompts."""
    return Dataset(name, IMAGENET_TEMPLATES, (EvalSet(name, title),), classes, official=official, **more)


DATASETS = {
    dataset.name: dataset
    for dataset in (
        EMOJI,
        _imagenet("imagenet1k", "ImageNet-1k, validation", 50_000, file_names=r"ILSVRC2012_val_\d{8}\.JPEG"),
        _imagenet("imagenetv2", "ImageNet-V2, matched frequency", 10_000, numbered=True),
        _imagenet("imagenetv2-threshold0.7", "ImageNet-V2, threshold 0.7", 10_000, numbered=True),
        _imagenet("imagenetv2-top-images", "ImageNet-V2, top images", 10_000, numbered=True),
        _imagenet("imagenet-a", "ImageNet-A", 7_500, subset="a"),
        _imagenet("imagenet-r", "ImageNet-R", 30_000, subset="r"),
        _imagenet("imagenet-o", "ImageNet-O", 2_000, subset="o"),
        _imagenet("imagenet_sketch", "ImageNet-Sketch", 50_889, file_names=r"sketch_\d+\.JPEG"),
        # No validation set is official here: a result names its pictures by the hash of their list.
        _imagenet("imagenet21k", "ImageNet-21k (fall 2011, 21,841 classes)", None, "imagenet-22k"),
        _imagenet("imagenet21k-miil", "ImageNet-21k-P (MIIL, 11,221 classes)", None, "imagenet-21k-miil"),
    )
}


def training_part(dataset: Dataset) -> Dataset:
    """The entry of the training pictures of a data set's first set: ROOT/train/ where the set comes in parts."""
    first = dataset.sets[0]
    return replace(dataset, sets=(replace(first, folder=first.folder and "train"),), split="train", official=None)


def get_dataset(name: str) -> Dataset:
    """The entry of that name; "wds/NAME" is a set that brings its own classes and prompts, which reading it fills in.

    Raises:
        RefusedError: an unknown name; it says the nearest known ones.
    """
    if name.startswith(ANY) and name != ANY:
        known = DATASETS.get(name.removeprefix(ANY))
        official = known.official if known else None
        return Dataset(name, {}, (EvalSet(name, name.removeprefix(ANY)),), "classnames.txt", official=official)
    if name not in DATASETS:
        raise RefusedError(
            f"--dataset {name!r} is not known{nearest(name, DATASETS)}. Known: {', '.join(DATASETS)}, and {ANY}NAME "
            "for any set in CLIP_benchmark's webdataset layout."
        )
    return DATASETS[name]
