"""What is wrong with a sample: its picture, its caption, its JSON.

    hashed = check_sample("000000012", members, Found(), max_aspect=3.0)

A picture is decoded whole, a JPEG strictly (strict.py). A bit that flips within it may still decode: only a checksum in
a manifest finds that.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from PIL import ExifTags, Image

from data_prep.errors import DataError
from data_prep.laion import findings, jpeg
from data_prep.laion.findings import Found
from data_prep.laion.strict import decode_strictly
from data_prep.shards import FORMATS, PICTURES, decode_image

MOST_CHARACTERS = 1000
ONE_COLOUR = 3  # of 255: JPEG's rounding
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# What img2dataset writes into a sample's JSON, from exifread. The numbers are EXIF's.
_TURNS = {
    "Mirrored horizontal": 2,
    "Rotated 180": 3,
    "Mirrored vertical": 4,
    "Mirrored horizontal then rotated 90 CCW": 5,
    "Rotated 90 CW": 6,
    "Mirrored horizontal then rotated 90 CW": 7,
    "Rotated 90 CCW": 8,
}


def check_sample(key: str, members: Mapping[str, bytes], found: Found, max_aspect: float) -> int | None:
    """Add to `found` what is wrong with the sample.

    Returns:
        The first 64 bits of the SHA-256 of its picture, by which duplicates are found; None without a picture.
    """
    meta, caption = meta_of(members), _caption(members)
    for problem in (*_caption_problems(members, caption), *_json_problems(key, members, meta, caption)):
        found.add(problem, key)
    pictures = [suffix for suffix in PICTURES if suffix in members]
    if len(pictures) != 1:
        found.add(findings.PICTURES_TWO if pictures else findings.NO_PICTURE, key)
    if not pictures:
        return None
    data = members[pictures[0]]
    try:
        for problem in _picture_problems(data, meta or {}, max_aspect):
            found.add(problem, key)
    except DataError as error:
        found.add(findings.UNDECODABLE, f"{key}: {error}")
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def lost_turn(meta: Mapping[str, Any], width: int, height: int) -> int:
    """The EXIF orientation (1 to 8) that img2dataset read and did not apply to a picture of this size; 1 for upright.

    Its JSON keeps the tag, and the size before anything was done: a quarter turn that was made shows in the sides.
    """
    try:
        turn = _TURNS.get(json.loads(meta["exif"])["Image Orientation"], 1)
        before = (meta["original_width"], meta["original_height"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return 1
    if meta.get("reencoded") or not all(isinstance(side, int) for side in before):
        return 1
    made = turn >= 5 and (before[0] - before[1]) * (width - height) < 0
    return 1 if made else turn


def own_turn(image: Image.Image) -> int:
    """The EXIF orientation of an opened picture; 1 where it says none or is damaged."""
    try:
        turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow raises many kinds for damaged EXIF, which says nothing then
        return 1
    return turn if turn in range(2, 9) else 1


def _picture_problems(data: bytes, meta: Mapping[str, Any], max_aspect: float) -> Iterator[str]:
    """Raises DataError where the picture cannot be decoded."""
    stored = decode_strictly(data)
    image = stored if stored is not None else decode_image(data)
    header = Image.open(io.BytesIO(data), formats=FORMATS)
    if _is_cut(data, header.format):
        raise DataError(f"cut short ({len(data)} bytes)")
    if header.format == "JPEG" and (what := jpeg.damage(data)):
        raise DataError(what)
    if _is_one_colour(image):
        yield findings.ONE_COLOUR
    if own_turn(header) != 1:
        yield findings.LYING
    elif lost_turn(meta, *header.size) != 1:
        yield findings.ROTATION_LOST
    if header.mode.startswith("I"):
        yield findings.SIXTEEN_BITS
    if max(image.size) > max_aspect * min(image.size):
        yield findings.ASPECT
    if _is_img2dataset(meta):
        said = (meta.get("width"), meta.get("height"))
        original = said == (None, None)  # then the bytes are those that were downloaded, of which it wrote the hash
        if _other_sha256(meta, data) if original else said != header.size:
            yield findings.OTHER_JSON


def _is_one_colour(image: Image.Image) -> bool:
    """A few pixels tell most pictures; where those are alike, all are looked at."""
    few = image.resize((8, 8), Image.Resampling.NEAREST)
    return all(np.ptp(np.asarray(some.getextrema()), axis=1).max() <= ONE_COLOUR for some in (few, image))


def _is_cut(data: bytes, kind: str | None) -> bool:
    """Whether the end of a PNG or WebP is missing, which Pillow forgives where all pixels are there."""
    if kind == "PNG":
        return b"IEND" not in data
    return kind == "WEBP" and int.from_bytes(data[4:8], "little") + 8 > len(data)


def _other_sha256(meta: Mapping[str, Any], data: bytes) -> bool:
    said = meta.get("sha256")
    return isinstance(said, str) and said != hashlib.sha256(data).hexdigest()


def _caption(members: Mapping[str, bytes]) -> str | None:
    """The caption, None where there is none that can be read."""
    try:
        return members["txt"].decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return None


def _caption_problems(members: Mapping[str, bytes], caption: str | None) -> Iterator[str]:
    if caption is None:
        yield findings.NOT_UTF8 if "txt" in members else findings.NO_CAPTION
        return
    if not caption.strip():
        yield findings.EMPTY_CAPTION
    if _CONTROL.search(caption):
        yield findings.CONTROL
    if len(caption) > MOST_CHARACTERS:
        yield findings.LONG_CAPTION


def meta_of(members: Mapping[str, bytes]) -> dict[str, Any] | None:
    """A sample's JSON object, None where there is none that can be read."""
    try:
        meta = json.loads(members["json"])
    except (KeyError, ValueError, RecursionError):
        return None
    return meta if isinstance(meta, dict) else None


def _json_problems(
    key: str, members: Mapping[str, bytes], meta: Mapping[str, Any] | None, caption: str | None
) -> Iterator[str]:
    if "json" in members and meta is None:
        yield findings.BAD_JSON
    if meta and _is_img2dataset(meta):
        said = meta.get("caption")
        if meta["key"] != key or (isinstance(said, str) and caption is not None and said != caption):
            yield findings.OTHER_JSON


def _is_img2dataset(meta: Mapping[str, Any]) -> bool:
    """Whether the JSON's fields mean what img2dataset means by them."""
    return "key" in meta and "status" in meta and "original_width" in meta
