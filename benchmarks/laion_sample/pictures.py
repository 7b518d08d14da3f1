"""The emoji set's pictures and captions as a web of other people would have them: JPEG, PNG and WebP of many sizes."""

import hashlib
import io
import json
import random
from pathlib import Path

import numpy as np
from PIL import Image

from data_prep.errors import DataError
from data_prep.shards import decode_image, read_samples

SHORTEST = 5  # characters of a caption that the plan takes
_FORMATS = ("JPEG",) * 7 + ("PNG", "WEBP", "WEBP")
TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
# EXIF orientation to what a camera held so has done to the picture before it stored it.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}
_ORIENTATION = 0x0112


class Pictures:
    """As many different pictures of a built emoji set as are asked for, numbered from 0, the same for the same set."""

    def __init__(self, folder: Path, number: int) -> None:
        """
        Raises:
            DataError: the set has fewer, or is no set.
        """
        found: dict[bytes, tuple[str, bytes]] = {}
        for shard in sorted(folder.glob("*.tar")):
            for sample in read_samples(shard):
                captions = [text for text in json.loads(sample["json"])["captions"] if len(text) >= SHORTEST]
                if captions:
                    found.setdefault(hashlib.sha256(sample["png"]).digest(), (captions[-1], sample["png"]))
        if len(found) < number:
            raise DataError(f"{folder} has {len(found)} different pictures, {number} are wanted; build it again")
        self._samples = random.Random(0).sample(list(found.values()), number)

    def caption(self, place: int) -> str:
        return self._samples[place][0]

    def size(self, place: int) -> tuple[int, int]:
        """Width and height of the picture as it stands on the web; at most twice as long as wide."""
        chance = random.Random(place)
        short = chance.randrange(160, 640)
        sides = (short, int(short * chance.uniform(1, 2)))
        return sides if chance.random() < 0.4 else (sides[1], sides[0])

    def image(self, place: int) -> Image.Image:
        """The picture upright, RGB, of this size: the drawing in the middle of white."""
        width, height = self.size(place)
        side = min(width, height)
        drawing = decode_image(self._samples[place][1]).resize((side, side), Image.Resampling.BICUBIC)
        image = Image.new("RGB", (width, height), "white")
        image.paste(drawing, ((width - side) // 2, (height - side) // 2))
        return image

    def encoded(self, place: int, kind: str) -> tuple[bytes, str]:
        """The file that the server sends for a picture of a kind (`causes.py`), and its content type."""
        image, format_ = self.image(place), _FORMATS[place % len(_FORMATS)]
        if kind == "turned":
            return _turned(image, list(_TURNS)[place % len(_TURNS)]), TYPES["JPEG"]
        if kind == "16-bit":
            image, format_ = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG"
        elif kind == "8x8":
            image = image.resize((8, 8))
        elif kind == "4-to-1":
            image = image.resize((4 * image.width, image.width))
        return _bytes(image, format_), TYPES[format_]


def _turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    return _bytes(image.transpose(_TURNS[orientation]), "JPEG", exif=exif)


def _bytes(image: Image.Image, format_: str, **more: object) -> bytes:
    quick = {"JPEG": {"quality": 90}, "PNG": {"compress_level": 1}, "WEBP": {"quality": 90, "method": 0}}[format_]
    buffer = io.BytesIO()
    image.save(buffer, format_, **quick, **more)
    return buffer.getvalue()


def difference(image: Image.Image, other: Image.Image) -> float:
    """How far two pictures are apart, 0 to 255 a pixel on average, in grey and at 32 x 32 pixels."""
    few = [np.asarray(one.convert("L").resize((32, 32), Image.Resampling.BOX), np.float32) for one in (image, other)]
    return float(np.abs(few[0] - few[1]).mean())
