"""What is seen of a JPEG's damage in its bytes: that of each kind it can be seen for, and none in sound ones."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_prep.laion.jpeg import damage, exif

RNG = np.random.default_rng(0)
# A slope with noise: its scan is 6 kB.
PIXELS = np.clip(np.linspace(0, 200, 200)[:, None] + RNG.normal(20, 12, (150, 200, 3)), 0, 255).astype(np.uint8)


def jpeg(mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS[..., 0] if mode == "L" else PIXELS).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quality": 95, "subsampling": 0},
        {"optimize": True},
        {"progressive": True},
        {"restart_marker_rows": 1},
        {"mode": "L"},
        {"mode": "CMYK"},
    ],
)
def test_sound_ones(options: dict[str, Any]) -> None:
    sound = jpeg(**options)
    assert damage(sound) == ""
    assert damage(sound[:2] + b"\xff\xff" + sound[2:]) == ""  # a marker that is filled up
    assert damage(sound + RNG.bytes(1000) + b"\xff\xda \xff\x01") == ""  # as telephones put films behind a picture


def test_what_is_cut() -> None:
    for sound in (jpeg(), jpeg(progressive=True)):
        for end in (len(sound) // 2, len(sound) - 2):
            assert damage(sound[:end]) == f"cut short ({end} bytes)"
            assert damage(sound[:end].ljust(len(sound), b"\0")) == f"cut short ({len(sound)} bytes)"


def test_an_end_within_a_thumbnail_is_not_the_pictures() -> None:
    sound, tag = jpeg(), b"Exif\0\0" + jpeg(quality=10)
    segment = b"\xff\xe1" + (len(tag) + 2).to_bytes(2, "big") + tag
    data = sound[:2] + segment + sound[2:]
    assert damage(data) == ""
    assert damage(data[:-2]) == f"cut short ({len(data) - 2} bytes)"
    assert exif(data) == tag[6:]
    assert exif(sound) == b""


def test_other_data_in_the_scan() -> None:
    sound = jpeg()
    half = len(sound) // 2
    for other in (b"<html>\xff\xd8 error</html>", RNG.bytes(2000), sound[:500]):
        assert "other data from byte" in damage(sound[:half] + other + sound[half + len(other) :])
    assert damage(sound[:half] + b"\xff\x01" + sound[half + 2 :]) == f"other data from byte {half} of {len(sound)} on"


def test_what_is_no_jpeg_says_nothing() -> None:
    for data in (b"", b"\xff\xd8", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", jpeg()[:100]):
        assert damage(data) == ""
        assert exif(data) == b""
