"""Held-out pairs of picture and caption: which there are and where each lies, so that any process can read any of them.

    pairs = read_pairs("data/heldout/manifest.jsonl")      # a shard set: a sample's .txt is its caption
    pairs = read_pairs("clip-benchmark/wds_flickr8k")       # CLIP_benchmark's layout, test/nshards.txt: one a line
    image, captions = pairs[0].picture(), pairs[0].captions

Captions are in memory; a picture is read from its place in its shard when it is wanted.
Cost: every shard is read once to be checked, about 1 s a GB from a fast disk.
"""

import hashlib
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
from evaluate.data.remote import bring, is_address
from evaluate.data.webdataset import TEST, Sample, has_layout
from evaluate.data.webdataset import read_samples as webdataset_samples


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


def read_pairs(data: str | Path) -> list[Pair]:
    """The pairs of a set in the order of its shards.

    Args:
        data: a manifest or its folder; or a folder or address in CLIP_benchmark's layout.

    Raises:
        DataError: no or a malformed manifest, a shard that is missing, damaged or not the manifest's, a sample without
            picture or caption, or fewer than two pairs.
        RefusedError: the same of a set in CLIP_benchmark's layout.
    """
    root = bring(str(data)) if is_address(str(data)) else Path(data)
    if has_layout(root):
        pairs = [_captioned(name, place, sample) for name, place, sample in webdataset_samples(root, TEST)]
    else:
        folder = manifest_file(root).parent
        pairs = [pair for entry in read_manifest(folder) for pair in _read_shard(folder / entry.shard, entry)]
    if len(pairs) < 2:
        raise DataError(f"{data} holds {len(pairs)} pairs; retrieval needs at least two")
    return pairs


def _captioned(name: str, place: Place, sample: Sample) -> Pair:
    """The pair that a sample in CLIP_benchmark's layout is, with a caption a line of its text."""
    try:
        captions = sample.texts.get("txt", b"").decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: its captions are not UTF-8 ({error.reason})") from error
    if not captions:
        raise DataError(f"{name} has no caption (a line of txt)")
    return Pair(place, sample.key, tuple(captions))


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


def list_sha256(pairs: Sequence[Pair]) -> str:
    """Hash of every picture's key, size and captions: two results of one hash are about the same pairs."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(repr((pair.key, pair.place.size, pair.captions)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def duplicates(pairs: Sequence[Pair]) -> int:
    """How many of the pictures' captions are captions of another picture too."""
    pictures = Counter(caption for pair in pairs for caption in set(pair.captions))
    return sum(times for times in pictures.values() if times > 1)
