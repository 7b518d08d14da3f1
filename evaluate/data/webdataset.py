"""CLIP_benchmark's webdataset layout: labelled pictures in tars, the set's own class names and prompts beside them.

    ROOT/test/nshards.txt  0.tar  1.tar …       ROOT/classnames.txt  zeroshot_classification_templates.txt
                                                ROOT/dataset_type.txt (only where it is no plain classification)

Each sample is KEY.webp, .png, .jpg or .jpeg and KEY.cls, its label as digits; in a retrieval set KEY.txt, a caption a
line. Only headers, labels and captions are read here. Training pictures lie in the same form in ROOT/train/.
The rules are those of CLIP_benchmark's ``build_wds_dataset`` (https://github.com/LAION-AI/CLIP_benchmark, 48de38c):
shards 0 to nshards - 1 in that order, class names and prompts one a line, ``{c}`` for the name.

Cost: about 3 s for 50,000 samples.
"""

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import BinaryIO

from data_prep.errors import DataError
from data_prep.shards import read_headers
from evaluate.data.pictures import Place
from evaluate.errors import RefusedError

TEST, TRAIN = "test", "train"  # splits
SHARDS = "nshards.txt"
NAMES = "classnames.txt"
TEMPLATES = "zeroshot_classification_templates.txt"
TYPE = "dataset_type.txt"
SUFFIXES = ("webp", "png", "jpg", "jpeg")
TEXTS = ("cls", "txt")
LONGEST_TEXT = 1 << 20  # bytes; no label and no caption comes near it
_KEY_AND_SUFFIX = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")  # webdataset's rule, less hidden files
_LABEL = re.compile(rb"\s*(-?[0-9]{1,9})\s*")


@dataclass
class Sample:
    """What a shard holds of one sample."""

    key: str
    pictures: dict[str, Place] = field(default_factory=dict)  # by suffix
    texts: dict[str, bytes] = field(default_factory=dict)  # the content of its .cls and .txt
    others: list[str] = field(default_factory=list)  # its other suffixes


def has_layout(root: Path, split: str = TEST) -> bool:
    """Whether a folder is in this layout and has that split."""
    try:
        return (root / split / SHARDS).is_file()
    except OSError:  # a folder that may not be looked into; the tree's reader says so
        return False


def refuse_neighbours(root: Path, split: str = TEST) -> None:
    """Raise RefusedError where `root` is not in this layout and a folder beside it is, which was probably meant."""
    if (root / SHARDS).is_file():
        raise RefusedError(f"{root}: one split of a set in CLIP_benchmark's layout. Probably meant: {root.parent}")
    inner = sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    for meant in (root.parent, *inner[:100]):
        if has_layout(meant, split):
            raise RefusedError(f"{root} has no {split}/{SHARDS}. Probably meant: {meant}")
    other = TRAIN if split == TEST else TEST
    if has_layout(root, other):
        raise RefusedError(f"{root} has {other}/{SHARDS} and no {split}/{SHARDS}, which is the split wanted here.")


def read_names(root: Path) -> list[str] | None:
    """The set's class names in class-index order, None where it brings none. Raises RefusedError for a blank line."""
    return _lines(root / NAMES, "Class indices are line numbers")


def read_templates(root: Path) -> tuple[str, ...] | None:
    """The set's prompts as format strings with ``{}`` for the name, None where it brings none.

    Raises RefusedError for a line without ``{c}`` or with another field.
    """
    lines = _lines(root / TEMPLATES, "Each line is a prompt")
    return None if lines is None else tuple(_template(root / TEMPLATES, line) for line in lines)


def _template(file: Path, line: str) -> str:
    """CLIP_benchmark's ``{c}`` as ``{}``, or as ``{0}`` where the name comes more than once."""
    try:
        parts = list(Formatter().parse(line))
    except ValueError as error:
        raise RefusedError(f"{file}: {line!r} is no format string ({error}).") from error
    fields = [name for _, name, spec, conversion in parts if name is not None and not spec and not conversion]
    if set(fields) != {"c"} or len(fields) != sum(name is not None for _, name, _, _ in parts):
        raise RefusedError(f"{file}: {line!r} must hold {{c}} where the class name goes, and no other field.")
    mark = "{}" if len(fields) == 1 else "{0}"
    text = ((literal.replace("{", "{{").replace("}", "}}"), name) for literal, name, _, _ in parts)
    return "".join(literal + (mark if name else "") for literal, name in text)


def _lines(file: Path, why: str) -> list[str] | None:
    """The lines of a text file, without the space around them."""
    text = _text(file)
    if text is None:
        return None
    lines = [line.strip() for line in text.splitlines()]
    if "" in lines:
        raise RefusedError(f"{file}: line {lines.index('') + 1} is blank. {why}; remove it or fill it in.")
    if not lines:
        raise RefusedError(f"{file} is empty. {why}.")
    return lines


def _text(file: Path) -> str | None:
    """The content of a text file, None where there is none."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"{file} cannot be read as UTF-8 text ({error}).") from error


def refuse_other_types(root: Path) -> None:
    """Raise RefusedError where the set is for retrieval or has several labels a picture."""
    kind = (_text(root / TYPE) or "").strip().lower()
    if kind == "retrieval":
        raise RefusedError(f"{root} is a retrieval set; measure it with `python -m evaluate retrieval`.")
    if kind == "multilabel":
        raise RefusedError(f"{root} has several labels a picture, which top-1 and top-5 do not describe.")


def shards_of(root: Path, split: str) -> list[str]:
    """Names of the shards, "0.tar" and so on. Raises RefusedError where their number is no number above 0."""
    text = _text(root / split / SHARDS)
    if text is None:
        raise RefusedError(f"{root} has no {split}/{SHARDS}, so it is not in CLIP_benchmark's webdataset layout.")
    number = text.strip()
    if not re.fullmatch("0*[1-9][0-9]{0,6}", number):
        raise RefusedError(f"{root / split / SHARDS} must hold the number of shards, found {text[:40]!r}.")
    return [f"{shard}.tar" for shard in range(int(number))]


def refuse_other_shards(folder: Path, shards: list[str]) -> None:
    """Raise RefusedError unless the split's folder holds exactly these shards."""
    found = {path.name for path in folder.glob("*.tar") if not path.name.startswith(".")}
    for what, names in (("without", [s for s in shards if s not in found]), ("and", sorted(found - set(shards)))):
        if names:
            raise RefusedError(
                f"{folder}: {SHARDS} says {len(shards)}, 0.tar to {shards[-1]}; found {len(found)} {what} "
                f"{', '.join(names[:3])}{', …' if len(names) > 3 else ''}. Copy the set again, or put the number right."
            )


def read_labelled(root: Path, split: str, classes: int) -> tuple[list[Place], list[str], list[int]]:
    """Where each picture of the split lies, its name ("0.tar:KEY") and its label, in the order of the shards.

    Raises:
        RefusedError: as `read_samples`; no label, or one that is not one of `classes`.
    """
    places: list[Place] = []
    names: list[str] = []
    labels: list[int] = []
    for name, place, sample in read_samples(root, split):
        places.append(place)
        names.append(name)
        labels.append(_label(name, sample, classes))
    return places, names, labels


def read_samples(root: Path, split: str) -> Iterator[tuple[str, Place, Sample]]:
    """Each sample of the split, its name ("0.tar:KEY") and where its picture lies, in the order of the shards.

    Raises:
        RefusedError: a shard is missing, too many, cut short or damaged, holds a link, a sample twice or without
            exactly one picture, or there is no sample.
    """
    shards = shards_of(root, split)
    refuse_other_shards(root / split, shards)
    empty = True
    for shard in shards:
        for sample in _samples(root / split / shard):
            empty, name = False, f"{shard}:{sample.key}"
            yield name, _picture(name, sample), sample
    if empty:
        raise RefusedError(f"{root / split}: the shards hold no sample.")


def _samples(shard: Path) -> Iterator[Sample]:
    """The samples of one shard, each a run of members with the same key."""
    finished: set[str] = set()
    sample: Sample | None = None
    try:
        for info, file in read_headers(shard):
            if (parts := _key_and_suffix(shard, info)) is None:
                continue
            if sample is None or parts[0] != sample.key:
                if sample is not None:
                    yield sample
                    finished.add(sample.key)
                if parts[0] in finished:
                    raise RefusedError(f"{shard}: sample {parts[0]!r} comes twice. Make the set again.")
                sample = Sample(parts[0])
            _add(shard, sample, parts[1], info, file)
    except DataError as error:
        raise RefusedError(f"{error}. Copy the set again.") from error
    if sample is not None:
        yield sample


def _key_and_suffix(shard: Path, info: tarfile.TarInfo) -> tuple[str, str] | None:
    """Key and suffix of a member; None for folders, hidden files and what webdataset takes for data about the shard."""
    parts = _KEY_AND_SUFFIX.fullmatch(info.name)
    if info.isdir() or parts is None or re.match(r"__[^/]*__($|/)", info.name):
        return None
    if not info.isfile() or info.issparse():
        raise RefusedError(f"{shard}: member {info.name!r} is a link or no plain file. Make the set again.")
    return parts[1], parts[2].lower()


def _add(shard: Path, sample: Sample, suffix: str, info: tarfile.TarInfo, file: BinaryIO) -> None:
    """Note a member of a sample."""
    if suffix in sample.pictures or suffix in sample.texts:
        raise RefusedError(f"{shard}: sample {sample.key!r} has .{suffix} twice. Make the set again.")
    if suffix in SUFFIXES:
        sample.pictures[suffix] = Place(shard, info.offset_data, info.size)
    elif suffix in TEXTS:
        if info.size > LONGEST_TEXT:
            raise RefusedError(
                f"{shard}: {info.name!r} has {info.size:,} bytes, no label or caption. Make the set again."
            )
        file.seek(info.offset_data)
        sample.texts[suffix] = file.read(info.size)
    else:
        sample.others.append(suffix)


def _picture(name: str, sample: Sample) -> Place:
    """The picture of a sample, of which it must have one."""
    if len(sample.pictures) != 1:
        found = ", ".join([*sample.pictures, *sample.others]) or "nothing else"
        raise RefusedError(f"{name} must have one picture ({', '.join(SUFFIXES)}), found {found}.")
    return next(iter(sample.pictures.values()))


def _label(name: str, sample: Sample, classes: int) -> int:
    """The label of a sample."""
    if "cls" not in sample.texts:
        found = ", ".join([*sample.pictures, *sample.texts, *sample.others])
        raise RefusedError(f"{name} has no label (.cls), found {found}.")
    digits = _LABEL.fullmatch(sample.texts["cls"])
    if digits is None:
        raise RefusedError(f"{name}.cls must be a class index as digits, found {sample.texts['cls'][:20]!r}.")
    label = int(digits[1])
    if not 0 <= label < classes:
        raise RefusedError(
            f"{name}.cls: label {label} is out of range, the set has {classes:,} classes (0 to {classes - 1:,}). "
            "Give the data set whose classes these are."
        )
    return label
