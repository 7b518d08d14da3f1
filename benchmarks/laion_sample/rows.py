"""The sample's metadata, with LAION-400M's columns, and what is known of each of its rows."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.laion_sample.causes import LEFT_OUT, kinds
from benchmarks.laion_sample.pictures import Pictures

FILES = 2
_T = TypeVar("_T")
_NO_URLS = (None, "", "picture.jpg", "ftp://127.0.0.1/{place}.jpg", "http://me:secret@127.0.0.1/{place}.jpg")
_NO_TEXTS = (b"", b"   ", b"\x00\x01\x02\x03\x04\x05", b"ab")


@dataclass(frozen=True)
class Row:
    """A row of the metadata. `place` is its number, its SAMPLE_ID and its picture; `text` is TEXT's bytes.

    `caption` is the text that has to stand in the shards.
    """

    place: int
    kind: str
    url: str | None
    text: bytes | None
    caption: str
    width: int
    height: int
    similarity: float | None
    nsfw: str | None


def make_rows(pictures: Pictures, server: str) -> list[Row]:
    """All rows, in their order. `server` is the beginning of its addresses, as "http://127.0.0.1:8000"."""
    order = kinds()
    random.Random(0).shuffle(order)
    chance = random.Random(1)
    # A copy comes after what it is a copy of, so that it is the one to be left out: the last places are given to them.
    order.sort(key=lambda kind: kind == "duplicate")
    copied = chance.sample([place for place, kind in enumerate(order) if kind == "picture"], LEFT_OUT["duplicate"][0])
    return [
        _row(place, kind, copied[place - len(order)] if kind == "duplicate" else place, pictures, server, chance)
        for place, kind in enumerate(order)
    ]


def _row(place: int, kind: str, shown: int, pictures: Pictures, server: str, chance: random.Random) -> Row:
    """One row; `shown` is the number of the picture that its address is of."""
    caption = pictures.caption(shown)
    url: str | None = f"{server}/{'picture' if kind in LEFT_OUT else kind}/{shown}.jpg"
    if kind == "file":
        url = "file:///etc/hostname"
    elif kind == "data":
        url = "data:image/png;base64,AAAA"
    elif kind == "no-url":
        url = _pick(_NO_URLS, place)
        url = url and url.format(place=place)
    elif kind == "duplicate" and place % 2:
        url = f"{url}#again".replace("http:", "HTTP:")
    text: bytes | None = caption.encode()
    if kind == "no-caption":
        text = None
    elif kind == "blank":
        text = _pick(_NO_TEXTS, place)
    elif kind == "long-caption":
        text = caption.encode() * (100_000 // len(caption))
    elif kind == "dirty-caption":
        text = b"\xff\x00" + caption.encode() + b"\x07\n\xc3"
    width, height = pictures.size(shown)
    if kind == "side":
        width, height = 63, 60
    elif kind == "aspect":
        width, height = 4 * height, height
    return Row(
        place,
        kind,
        url,
        text,
        caption,
        width,
        height,
        _pick((0.05, 0.29, None), place) if kind == "similarity" else round(chance.uniform(0.3, 0.45), 4),
        _pick(("NSFW", "UNSURE", None), place) if kind == "nsfw" else "UNLIKELY",
    )


def _pick(choices: Sequence[_T], place: int) -> _T:
    return choices[place % len(choices)]


def write_metadata(rows: Sequence[Row], folder: Path) -> None:
    """The rows as parquet files, in the columns of LAION-400M; TEXT is whatever bytes, as the web's is."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir(parents=True)
    for number in range(FILES):
        some = rows[number * len(rows) // FILES : (number + 1) * len(rows) // FILES]
        columns = {
            "SAMPLE_ID": pa.array([row.place for row in some], pa.int64()),
            "URL": pa.array([row.url for row in some], pa.string()),
            "TEXT": pa.array([row.text for row in some], pa.binary()).view(pa.string()),
            "HEIGHT": pa.array([row.height for row in some], pa.int64()),
            "WIDTH": pa.array([row.width for row in some], pa.int64()),
            "LICENSE": pa.array(["?"] * len(some), pa.string()),
            "NSFW": pa.array([row.nsfw for row in some], pa.string()),
            "similarity": pa.array([row.similarity for row in some], pa.float64()),
        }
        parquet.write_table(pa.table(columns), folder / f"part-{number:05d}.parquet")
