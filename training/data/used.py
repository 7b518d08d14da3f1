"""Which samples of an epoch have been used: a bitmap a shard, and just the name where it is a whole shard.

    used.add(refs); record = used.record(names)         # tensors, lists and strings, as a checkpoint holds them
    used = Used.from_record(record, names, sizes)

A sample of an epoch is a `Ref`, (piece, index): its shard's copy in the epoch and its place in the shard from 0. An
epoch reads a shard more than once where a source's factor is above 1; then `piece = copy * shards + shard`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

Ref = tuple[int, int]


class Used:
    """A set of refs.

    Args:
        sizes: samples of each shard.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.whole: set[int] = set()
        self.partial: dict[int, np.ndarray] = {}  # piece → (size,) bool

    def size(self, piece: int) -> int:
        return self.sizes[piece % len(self.sizes)]

    def add(self, refs: Sequence[Ref]) -> None:
        """Add refs, most quickly many at a time."""
        if not refs:
            return
        pieces, indices = np.array(refs).T
        for piece in np.unique(pieces).tolist():
            self.add_indices(piece, indices[pieces == piece])

    def add_indices(self, piece: int, indices: np.ndarray) -> None:
        """Add samples of one piece, given by their numbers (integers) or as a mask (size,) of bool."""
        if piece in self.whole:
            return
        bits = self.partial.setdefault(piece, np.zeros(self.size(piece), dtype=bool))
        bits[indices] = True
        if bits.all():
            self.whole.add(piece)
            del self.partial[piece]

    def update(self, other: "Used") -> None:
        """Add all of another set."""
        for piece in other.whole:
            self.partial.pop(piece, None)
        self.whole |= other.whole
        for piece, bits in other.partial.items():
            self.add_indices(piece, bits)

    def free(self, piece: int, first: int, last: int) -> np.ndarray:
        """The numbers, of first … last-1, that are not in the set, ascending; int64."""
        if piece in self.whole:
            return np.arange(0)
        bits = self.partial.get(piece)
        return np.arange(first, last) if bits is None else first + np.flatnonzero(~bits[first:last])

    def __len__(self) -> int:
        return sum(map(self.size, self.whole)) + sum(int(bits.sum()) for bits in self.partial.values())

    def record(self, names: Sequence[str]) -> dict[str, Any]:
        """The set as a checkpoint holds it, a copy.

        Returns:
            `whole`, a list of labels "COPY/NAME" of whole shards, and `partial`, label → bitmap (uint8, packed by
            numpy.packbits: the highest bit of byte 0 is sample 0).
        """
        return {
            "whole": [_label(piece, names) for piece in sorted(self.whole)],
            "partial": {
                _label(piece, names): torch.from_numpy(np.packbits(self.partial[piece]))
                for piece in sorted(self.partial)
            },
        }

    @classmethod
    def from_record(cls, record: dict[str, Any], names: Sequence[str], sizes: Sequence[int]) -> "Used":
        """What `record` gave, under the same names and sizes."""
        used = cls(sizes)
        numbers = {name: number for number, name in enumerate(names)}
        used.whole = {_piece(label, numbers) for label in record["whole"]}
        for label, bits in record["partial"].items():
            piece = _piece(label, numbers)
            used.partial[piece] = np.unpackbits(bits.numpy(), count=used.size(piece)).astype(bool)
        return used


def _label(piece: int, names: Sequence[str]) -> str:
    copy, shard = divmod(piece, len(names))
    return f"{copy}/{names[shard]}"


def _piece(label: str, numbers: dict[str, int]) -> int:
    copy, _, name = label.partition("/")
    return int(copy) * len(numbers) + numbers[name]
