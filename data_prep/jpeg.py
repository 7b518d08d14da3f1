"""JPEG by torchvision's decoder: faster than Pillow, with pixels that differ by rounding.

    pixels = decode_plain_jpeg(data)        # None where the picture needs `shards.decode_image`

Of a JPEG damaged within its pixels either decoder shows what it can, as libjpeg does; torchvision's libjpeg then writes
"Corrupt JPEG data" to stderr, which it offers no way to turn off.
"""

import io

import torch
import torchvision
from PIL import ExifTags, Image
from torch import Tensor

from data_prep.shards import MOST_PIXELS


class NoDecoderError(RuntimeError):
    """This torchvision cannot decode JPEG; the message says which it is."""


def decode_plain_jpeg(data: bytes) -> Tensor | None:
    """Pixels (3, H, W) uint8 of an upright RGB or grey JPEG.

    None for anything else: another format, CMYK, a rotated, damaged or huge picture, on all of which
    `shards.decode_image` has the last word.
    """
    if not _is_plain(data):
        return None
    try:
        return _decode(data)
    except RuntimeError:  # damaged, or of a kind that torchvision does not know
        return None


def check_decoder() -> None:
    """Raise NoDecoderError where every JPEG would come back as None: torchvision 0.29 announced its decoder's end."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    try:
        _decode(buffer.getvalue())
    except (AttributeError, RuntimeError) as error:
        raise NoDecoderError(f"torchvision {torchvision.__version__} here does not have it ({error})") from error


def _is_plain(data: bytes) -> bool:
    """Whether torchvision shows this picture as `decode_image` would: an upright RGB or grey JPEG of sane size.

    Pillow reads the header alone (20 µs). torchvision has no bound on the pixels, and would fill the memory.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as header:
            if header.mode not in ("RGB", "L") or header.width * header.height > MOST_PIXELS:
                return False
            return header.getexif().get(ExifTags.Base.Orientation, 1) == 1
    except Exception:  # Pillow raises many kinds for damaged input; decode_image then says what it is
        return False


def _decode(data: bytes) -> Tensor:
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)  # a copy: torch has no read-only tensors
    image: Tensor = torchvision.io.decode_jpeg(buffer, mode="RGB")
    return image
