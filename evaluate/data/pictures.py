"""Labelled pictures of a data set, where they lie: what every reader of a set returns and every measure takes.

pictures.places[7].read()       # the encoded bytes, from a file or from inside a tar
pictures.labels[7]              # the class index: pictures.classes[label] is the class's id
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """Where an encoded picture lies: a whole file, or `size` bytes from `offset` in an uncompressed tar."""

    file: str | Path  # text where each picture has a file of its own: a million paths would cost a minute
    offset: int
    size: int

    def read(self) -> bytes:
        """The encoded picture. Raises OSError where the file cannot be read, EOFError where it is shorter now."""
        with open(self.file, "rb") as file:
            file.seek(self.offset)
            data = file.read(self.size)
        if len(data) < self.size:
            raise EOFError(f"{self.file} ends at byte {self.offset + len(data)}, before the picture's end")
        return data


@dataclass(frozen=True)
class Pictures:
    """N pictures of C classes, in the order in which they are scored. Can be pickled: ranks get it from the first."""

    root: str  # the folder or address they were read from
    classes: list[str]  # ids in class-index order: wnids, or whatever names a class once
    places: list[Place]
    names: list[str]  # of each picture, once: "n01440764/ILSVRC2012_val_00000293.JPEG", "0.tar:s0000012"
    labels: list[int]  # class index of each picture

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def list_sha256(self) -> str:
        """Hash of every picture's name, label and size: two results of one hash are about the same pictures."""
        digest = hashlib.sha256()
        for name, label, place in zip(self.names, self.labels, self.places, strict=True):
            digest.update(f"{name}\t{label}\t{place.size}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def only(self, numbers: list[int]) -> "Pictures":
        """Those pictures, of the same classes."""
        return replace(
            self,
            places=[self.places[n] for n in numbers],
            names=[self.names[n] for n in numbers],
            labels=[self.labels[n] for n in numbers],
        )
