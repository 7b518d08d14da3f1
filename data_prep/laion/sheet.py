"""Pairs drawn at random from verified shards, for a person to look at.

for pair in draw(Path("laion/shards"), read_manifest("laion/shards"), count=100, seed=0): pair.caption, pair.jpeg
"""

import io
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from PIL import Image

from data_prep.errors import DataError
from data_prep.laion.findings import Found
from data_prep.laion.tar import walk
from data_prep.manifest import ShardEntry
from data_prep.shards import PICTURES, decode_image

SIDE = 160  # pixels of the longer side as shown


@dataclass(frozen=True)
class Pair:
    """A sample: where it is, its caption, and its picture made small; None where that cannot be decoded."""

    shard: str
    key: str
    caption: str
    jpeg: bytes | None


def draw(folder: Path, entries: Sequence[ShardEntry], count: int, seed: int) -> Iterator[Pair]:
    """At most `count` samples, each as likely as any other, in the order of the shards; a seed draws the same ones.

    A shard is read up to the last sample that is drawn from it.
    """
    ends = list(accumulate(entry.samples for entry in entries))
    total = ends[-1] if ends else 0
    places: dict[int, set[int]] = defaultdict(set)
    for drawn in random.Random(seed).sample(range(total), min(count, total)):
        shard = bisect_right(ends, drawn)
        places[shard].add(drawn - (ends[shard] - entries[shard].samples))
    for shard, wanted in sorted(places.items()):
        last = max(wanted)
        for place, (key, members) in enumerate(walk(folder / entries[shard].shard, Found())):
            if place in wanted:
                caption = members.get("txt", b"").decode("utf-8", "replace")
                yield Pair(entries[shard].shard, key, caption, _small(members))
            if place == last:
                break


def _small(members: dict[str, bytes]) -> bytes | None:
    data = next((members[suffix] for suffix in PICTURES if suffix in members), b"")
    try:
        image = decode_image(data)
    except DataError:
        return None
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
