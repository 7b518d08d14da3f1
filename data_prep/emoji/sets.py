"""Shares drawings out to the three sets, and writes each as a folder of shards, manifest.jsonl and classes.json."""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_prep import atomic
from data_prep.emoji.concepts import Concept, captions, stable_hash, training_caption
from data_prep.emoji.mapping import Artwork
from data_prep.emoji.render import Job, Picture, render_all
from data_prep.errors import DataError
from data_prep.manifest import write_manifest
from data_prep.shards import ShardWriter

TRAIN, HELDOUT_VENDOR, HELDOUT_CONCEPTS = "train", "heldout-vendor", "heldout-concepts"
SETS = (TRAIN, HELDOUT_VENDOR, HELDOUT_CONCEPTS)
_SAMPLES_A_SHARD = 1000


@dataclass
class Part:
    """One of the three sets: what is to be drawn, and what came of it."""

    name: str
    drawings: list[Artwork]
    made: list[Artwork] = field(default_factory=list)
    problems: list[Picture] = field(default_factory=list)
    pixels: Counter[bytes] = field(default_factory=Counter)

    def counts(self) -> dict[str, Any]:
        """What the set came out as; "identical" counts the pictures that equal another one of the set."""
        concepts = {drawing.concept for drawing in self.made}
        return {
            "pictures": len(self.made),
            "concepts": len(concepts),
            "flags": sum(concept.flag for concept in concepts),
            "identical": sum(times for times in self.pixels.values() if times > 1),
            "vendors": dict(sorted(Counter(drawing.vendor.name for drawing in self.made).items())),
        }


def split(drawings: Sequence[Artwork], heldout_vendor: str, heldout_concepts: set[str]) -> list[Part]:
    """Share the drawings out, each set in the order of its keys' hashes, which mixes vendors and concepts.

    Some vendors have one drawing for several concepts: where one of these is held out, the drawing is not trained on
    under any name.

    Returns:
        The three parts. The held-out vendor's has only concepts that have a training drawing by another vendor.

    Raises:
        DataError: a set would be empty.
    """
    ordered = sorted(drawings, key=lambda drawing: stable_hash(f"order/{drawing.key}"))
    unseen = [d for d in ordered if d.concept.hexcode in heldout_concepts]
    unseen_sources = {d.source for d in unseen}
    known = [d for d in ordered if d.concept.hexcode not in heldout_concepts]
    train = [d for d in known if d.vendor.name != heldout_vendor and d.source not in unseen_sources]
    trained = {d.concept.hexcode for d in train}
    vendor = [d for d in known if d.vendor.name == heldout_vendor and d.concept.hexcode in trained]
    parts = [Part(TRAIN, train), Part(HELDOUT_VENDOR, vendor), Part(HELDOUT_CONCEPTS, unseen)]
    for part in parts:
        if not part.drawings:
            raise DataError(f"no picture is left for {part.name}: there are too few vendors or concepts")
    return parts


def write_set(folder: Path, part: Part, size: int, workers: int) -> None:
    """Render and write one set to a new folder; `part` then tells what was made and what failed."""
    folder.mkdir()
    entries = []
    jobs = [Job(drawing.key, drawing.source, size) for drawing in part.drawings]
    pictures = zip(part.drawings, render_all(jobs, workers), strict=True)
    shards = even_slices(part.drawings, _SAMPLES_A_SHARD)
    with tqdm(total=len(part.drawings), desc=part.name, unit="pictures", disable=not sys.stderr.isatty()) as bar:
        for number, drawings in enumerate(shards):
            with ShardWriter(folder / f"{number:05d}.tar") as writer:
                _write_shard(writer, part, islice(pictures, len(drawings)), bar)
            entries.append(writer.close())
            if bar.disable:
                print(f"{part.name}: shard {number + 1} of {len(shards)}", file=sys.stderr, flush=True)
        next(pictures, None)  # nothing, but an interrupt that came since the last picture
    write_manifest(folder, entries)
    concepts = {drawing.concept.hexcode: drawing.concept for drawing in part.made}
    listed = [_description(concepts[hexcode]) for hexcode in sorted(concepts)]
    atomic.write_text(folder / "classes.json", json.dumps(listed, indent=1, ensure_ascii=False) + "\n")


def _write_shard(writer: ShardWriter, part: Part, pictures: Iterable[tuple[Artwork, Picture]], bar: tqdm) -> None:
    """Write the samples of one shard."""
    for drawing, picture in pictures:
        bar.update()
        if picture.png is None:
            part.problems.append(picture)
            continue
        writer.write(drawing.key, _members(drawing, picture.png, tagged=part.name == TRAIN))
        part.made.append(drawing)
        part.pixels[hashlib.sha256(picture.png).digest()] += 1


def _members(drawing: Artwork, png: bytes, tagged: bool) -> dict[str, bytes]:
    """One sample; its caption is the bare name, or where `tagged`, perhaps the name with some tags."""
    choices = captions(drawing.concept)
    caption = training_caption(drawing.key, choices) if tagged else choices[0]
    record = {
        **_description(drawing.concept),
        "captions": choices,
        "vendor": drawing.vendor.name,
        "license": drawing.vendor.licence,
        "package": drawing.vendor.package.spec,
    }
    return {"png": png, "txt": caption.encode("utf-8"), "json": json.dumps(record, ensure_ascii=False).encode("utf-8")}


def _description(concept: Concept) -> dict[str, Any]:
    """A concept as classes.json and every sample give it."""
    return {
        "concept": concept.hexcode,
        "name": concept.name,
        "tags": list(concept.tags),
        "group": concept.group,
        "subgroup": concept.subgroup,
        "flag": concept.flag,
    }


def even_slices(drawings: Sequence[Artwork], most: int) -> list[Sequence[Artwork]]:
    """Cut into the fewest pieces of at most `most`, their lengths differing by one at most."""
    count = -(-len(drawings) // most)
    return [drawings[len(drawings) * i // count : len(drawings) * (i + 1) // count] for i in range(count)]
