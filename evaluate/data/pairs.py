"""Held-out pairs of picture and caption: which there are and where each lies, so that any process can read any of them.

    pairs = read_pairs(Path("data/heldout/manifest.jsonl"))
    image, captions = pairs[0].picture(), pairs[0].captions

Captions are in memory; a picture is read from its place in its shard when it is wanted.
Cost: every shard is read once to be checked, about 1 s a GB from a fast disk.
"""

import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from data_prep.errors import DataError
from data_prep.manifest import MANIFEST, ShardEntry, read_manifest, sha256_file
from data_prep.shards import KEY, PICTURES, decode_image, read_samples
from evaluate.data.pictures import Place


@dataclass(frozen=True, slots=True)
class Pair:
    """One picture, by its place in its shard, and its captions: at least one."""

    place: Place
    key: str
    captions: tuple[str, ...]

    def picture(self) -> Image.Image:
        """The decoded picture, RGB. Raises DataError where it is none, OSError or EOFError where it cannot be read."""
        return decode_image(self.place.read())


def manifest_file(path: Path) -> Path:
    """The manifest of a shard set given by it or by its folder."""
    return path if path.name == MANIFEST else path / MANIFEST


def read_pairs(manifest: Path) -> list[Pair]:
    """The pairs of a shard set in the manifest's order; `manifest` is the file or its folder.

    Raises:
        DataError: no or a malformed manifest, a shard that is missing, damaged or not the manifest's, a sample without
            picture or caption, or fewer than two pairs.
    """
    folder = manifest_file(manifest).parent
    pairs = [pair for entry in read_manifest(folder) for pair in _read_shard(folder / entry.shard, entry)]
    if len(pairs) < 2:
        raise DataError(f"{folder} holds {len(pairs)} pairs; retrieval needs at least two")
    return pairs


def _read_shard(shard: Path, entry: ShardEntry) -> Iterator[Pair]:
    """The pairs of one shard, which is first compared with its manifest."""
    if sha256_file(shard) != entry.sha256:
        raise DataError(f"{shard} is not the file that its manifest describes (its sha256 differs); copy it again")
    parts = [_parts(shard, sample) for sample in read_samples(shard)]
    if len(parts) != entry.samples:
        raise DataError(f"{shard} holds {len(parts)} samples, the manifest says {entry.samples}; copy or make it again")
    with tarfile.open(shard, "r:", encoding="utf-8") as tar:
        places = {member.name: (member.offset_data, member.size) for member in tar}
    for key, suffix, caption in parts:
        yield Pair(Place(shard, *places[f"{key}.{suffix}"]), key, (caption,))


def _parts(shard: Path, sample: dict[str, bytes]) -> tuple[str, str, str]:
    """Key, picture's suffix and caption of a sample. Raises DataError where it has no picture or no caption."""
    key = sample[KEY].decode("utf-8", "surrogateescape")
    suffix = next((suffix for suffix in PICTURES if suffix in sample), None)
    if suffix is None:
        raise DataError(f"{shard}: sample {key!r} has no picture ({', '.join(PICTURES)})")
    if "txt" not in sample:
        raise DataError(f"{shard}: sample {key!r} has no caption (txt)")
    try:
        return key, suffix, sample["txt"].decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{shard}: sample {key!r}: its caption is not UTF-8 ({error.reason})") from error


def duplicates(pairs: Sequence[Pair]) -> int:
    """How many of the pictures' captions are captions of another picture too."""
    pictures = Counter(caption for pair in pairs for caption in set(pair.captions))
    return sum(times for times in pictures.values() if times > 1)
