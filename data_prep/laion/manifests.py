"""The manifests that name some shards: those beside them and in the folders above, wherever a command began.

    for folder, entries in manifests_over(root, ["shards/00000.tar"]).items():
        for entry, name in entries: ...        # name is "shards/00000.tar" where the entry means it, else None

A shard is known by what its path leads to, as a manifest may name it through a linked folder.
"""

import os
from collections.abc import Collection
from pathlib import Path

from data_prep.errors import DataError
from data_prep.laion.ours import is_manifest
from data_prep.manifest import MANIFEST, ShardEntry, parse_manifest

Named = list[tuple[ShardEntry, str | None]]


def folders_over(root: Path, names: Collection[str]) -> list[Path]:
    """The folders beside or above these shards of `root`, and above `root`, that have a manifest of data_prep."""
    below = {root / parent for name in names for parent in Path(name).parents}
    return sorted(folder for folder in below | {*root.resolve().parents} if is_manifest(folder / MANIFEST))


def manifests_over(root: Path, names: Collection[str]) -> dict[Path, Named]:
    """The manifests that name one of these shards, by folder, with the shard's name here beside each entry.

    Raises:
        DataError: one is damaged.
    """
    real = {os.path.realpath(root / name): name for name in names}
    found: dict[Path, Named] = {}
    for folder in folders_over(root, names):
        entries = [(entry, real.get(os.path.realpath(folder / entry.shard))) for entry in entries_in(folder)]
        if any(name for _, name in entries):
            found[folder] = entries
    return found


def entries_in(folder: Path) -> list[ShardEntry]:
    """A folder's manifest as it is written; the shards are not looked at.

    Raises:
        DataError: it is damaged.
    """
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; remove it and make it again") from None
    return parse_manifest(text, str(path))
