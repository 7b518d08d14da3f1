"""What is seen of a JPEG's damage in its bytes: that of each kind it can be seen for, and none in sound ones."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_prep.laion.jpeg import damage, exif, without_oddities

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


def segment(marker: int, content: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(content) + 2).to_bytes(2, "big") + content


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
@pytest.mark.parametrize(
    "extra",
    [
        segment(0xE5, b"\xff\x12\xff\x01\xff\xd8" * 30),
        segment(0xE1, b"Exif\0\0" + jpeg(quality=10)),
        segment(0xE1, jpeg(quality=10)) + segment(0xFE, b"\xff\x01"),
    ],
)
def test_segments_behind_the_scan(extra: bytes, options: dict[str, Any]) -> None:
    sound = jpeg(**options)
    assert damage(sound[:-2] + extra + sound[-2:]) == ""
    cut = sound[:-2] + extra
    assert damage(cut) == f"cut short ({len(cut)} bytes)"


def test_bytes_that_only_look_like_a_segment_hide_nothing() -> None:
    sound = jpeg()
    half = len(sound) // 2
    for marker in (0xE1, 0xFE):
        other = bytes((0xFF, marker)) + b"\0\x40" + b"\xff\x01" * 40
        assert "other data from byte" in damage(sound[:half] + other + sound[half + len(other) :])


@pytest.mark.parametrize("marker", [0xDB, 0xC0, 0xC4, 0xDA])
@pytest.mark.parametrize("stray", [b"\0\0", b"\0" * 14, b"\x12\xff\0\x34", b"\xff\xff", b"\xff\xd3"])
def test_stray_bytes_in_the_head(marker: int, stray: bytes) -> None:
    sound, tag = jpeg(), segment(0xE1, b"Exif\0\0a tag")
    at = sound.index(bytes((0xFF, marker)))
    data = sound[:at] + stray + tag + stray + sound[at:]
    assert exif(data) == b"a tag"
    assert without_oddities(data) == sound[:at] + tag + sound[at:]
    assert damage(data) == ""
    assert damage(data[:-2]) == f"cut short ({len(data) - 2} bytes)"


def test_a_revision_of_jfif() -> None:
    sound = jpeg()
    assert without_oddities(sound.replace(b"JFIF\0\1\1", b"JFIF\0\2\1")) == sound
    for data in (sound, sound[:100], sound + b"\xff\xda \xff\x01", jpeg(progressive=True), b"\xff\xd8"):
        assert without_oddities(data) == data


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
