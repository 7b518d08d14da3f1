"""What is measured: one small entry a data set. A new data set is a new entry here and, if its form is new, a reader.

An entry says nothing about a model; ``emoji.py`` reads it and ``zero_shot.py`` scores it.
"""

from dataclasses import dataclass

from evaluate.errors import RefusedError
from open_clip_linear.spec import nearest


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
    folder: str  # under the data set's root
    flags: bool = True  # False: neither pictures nor classes whose ``flag`` is true
    about: str = ""  # what a reader has to know of it, a sentence


@dataclass(frozen=True)
class Dataset:
    """A named data set: its prompts and its sets, in the order they are shown."""

    name: str
    templates: Templates
    sets: tuple[EvalSet, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders under the root, each once."""
        return tuple(dict.fromkeys(s.folder for s in self.sets))


# Captions in training are the Unicode names themselves, so the class name alone is the prompt.
PLAIN_NAME = Templates("plain-name", ("{}",))

EMOJI = Dataset(
    name="emoji",
    templates=PLAIN_NAME,
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

DATASETS = {dataset.name: dataset for dataset in (EMOJI,)}


def get_dataset(name: str) -> Dataset:
    """The entry of that name. Raises RefusedError that names the nearest known ones."""
    if name not in DATASETS:
        raise RefusedError(f"--dataset {name!r} is not known{nearest(name, DATASETS)}. Known: {', '.join(DATASETS)}.")
    return DATASETS[name]
