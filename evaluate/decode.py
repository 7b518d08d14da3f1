"""From the places of pictures to what a model's eval transform takes, and which of them OpenCLIP would read otherwise.

    reader = Reader(pictures.places, fast=False)
    pixels = transform(reader(7))
    reader.otherwise[7]         # "transparency", if picture 7 has any

The reader shows a picture as a person would see it (`data_prep.shards.decode_image`): upright, on white where it is
transparent, 16 bits scaled. Of an ordinary JPEG or PNG that is to the pixel what OpenCLIP's `convert("RGB")` gives.

`fast` decodes JPEG by torchvision and resizes bytes in place of Pillow's pictures; pixels differ by rounding, and with
them about one prediction in some thousand may. `python -m benchmarks.zero_shot` measures both.
"""

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import ExifTags, Image
from torch import Tensor
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize
from torchvision.transforms.v2 import functional as F

from data_prep.jpeg import NoDecoderError, check_decoder, decode_plain_jpeg
from data_prep.shards import decode_image
from evaluate.data.pictures import Place
from evaluate.encode import Picture, Preprocess
from evaluate.errors import RefusedError

# Where PNG and WebP say which way up a picture is.
EXIF_MARKS = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp", b"EXIF", b"XMP ")
DECODERS = {False: "pillow", True: "torchvision"}  # what the result calls it


class Reader:
    """Picture number → decoded picture: Pillow's RGB, or (3, H, W) uint8 where `fast`. Threads may share it.

    Attributes:
        otherwise: of each picture read so far that `convert("RGB")` would read otherwise: what it has.
    """

    def __init__(self, places: Sequence[Place], *, fast: bool) -> None:
        self.places = places
        self.fast = fast
        self.otherwise: dict[int, str] = {}

    def __call__(self, number: int) -> Picture:
        """Raises DataError where it is no picture, OSError or EOFError where it cannot be read."""
        data = self.places[number].read()
        if self.fast and (pixels := decode_plain_jpeg(data)) is not None:
            return pixels
        image = decode_image(data)
        if has := read_otherwise(data):
            self.otherwise[number] = has
        return F.pil_to_tensor(image) if self.fast else image


def read_otherwise(data: bytes) -> str | None:
    """What a readable picture has that `convert("RGB")` alone would show otherwise; None for ordinary ones."""
    with Image.open(io.BytesIO(data)) as header:
        # Pillow would decode a whole PNG to look for a block that is not there. TIFF it turns by itself.
        marked = any(mark in data for mark in EXIF_MARKS)
        if header.format in ("JPEG", "MPO") or (header.format != "TIFF" and marked):
            try:
                orientation = header.getexif().get(ExifTags.Base.Orientation, 1)
            except Exception:  # a damaged block says nothing
                orientation = 1
            if orientation in range(2, 9):
                return "rotation"
        if header.mode.startswith("I"):
            return "16 bits"
        hides = header.has_transparency_data and np.asarray(header.convert("RGBA"))[..., 3].min() < 255
        return "transparency" if hides else None


def fast_transform(transform: Compose) -> Preprocess:
    """OpenCLIP's eval transform on (3, H, W) uint8: its own steps, in its order, with the resize on bytes.

    A transform of other steps (for pictures that are not square) works on Pillow's pictures; then the decoding alone
    is fast.

    Raises:
        RefusedError: a torchvision that cannot decode JPEG.
    """
    try:
        check_decoder()
    except NoDecoderError as error:
        raise RefusedError(f"--fast-decode needs torchvision's decode_jpeg: {error}. Leave it out.") from error
    *geometry, _, _, normalise = transform.transforms  # before the last one: to RGB, to a tensor
    if not (all(isinstance(step, (Resize, CenterCrop)) for step in geometry) and isinstance(normalise, Normalize)):
        return lambda picture: transform(picture if isinstance(picture, Image.Image) else F.to_pil_image(picture))

    def apply(picture: Picture) -> Tensor:
        # Pillow's is the blank in place of an unreadable one.
        pixels = F.pil_to_tensor(picture) if isinstance(picture, Image.Image) else picture
        for step in geometry:
            pixels = step(pixels)
        return normalise(pixels.to(torch.float32).div_(255))

    return apply
