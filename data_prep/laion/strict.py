"""JPEG by a decoder that says where the scan is damaged, which Pillow and training pass over: they show something.

    image = decode_strictly(data)       # None where `shards.decode_image` is to decode, too

libjpeg warns of such damage, and simplejpeg hands its warnings on: see "What is not sound" in docs/data.md for how much
`verify` finds with it. It is about as fast as Pillow up to 1 Mpx,
and half slower at 12 Mpx (15 to 90 %, by the picture).
"""

import io
import re

import simplejpeg
from PIL import Image

from data_prep.errors import DataError
from data_prep.laion import jpeg
from data_prep.shards import MOST_PIXELS

# Some programs leave a few bytes behind a scan of a whole picture; after damage there are mostly more, or a restart.
_CORRUPT = re.compile(
    r"Premature end of JPEG file|Corrupt JPEG data: (?!(\d|1[0-6]) extraneous bytes before marker 0x(?!d[0-7]))"
)


def decode_strictly(data: bytes) -> Image.Image | None:
    """The picture as RGB, as it is stored; None for anything but a JPEG of RGB or grey that the decoder knows.

    Raises:
        DataError: the scan is damaged, of a JPEG of CMYK too.
    """
    try:
        header = Image.open(io.BytesIO(data), formats=("JPEG",))
    except Exception:  # Pillow raises many kinds; decode_image then says what it is
        return None
    if header.width * header.height > MOST_PIXELS:
        return None
    try:
        whole = jpeg.without_oddities(data)  # it stops at the first warning, and would not come to the scan
        pixels = simplejpeg.decode_jpeg(whole, "CMYK" if header.mode == "CMYK" else "RGB", strict=True)
    except ValueError as error:
        if _CORRUPT.search(str(error)):
            raise DataError(f"not a whole picture ({len(data)} bytes): {error}") from None
        return None  # of other warnings the pixels are whole, and it does not know every sampling
    return None if header.mode == "CMYK" else Image.fromarray(pixels)
