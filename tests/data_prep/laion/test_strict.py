"""Tests of data_prep.laion.strict: damage within a JPEG's scan is found, and no whole picture is called damaged."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from shard_files import encoded, noise

from data_prep.laion import findings as why
from data_prep.laion.findings import Found
from data_prep.laion.pictures import check_sample
from data_prep.laion.strict import decode_strictly

KINDS: list[dict[str, Any]] = [
    {"quality": 30},
    {"quality": 95},
    {"quality": 85, "progressive": True},
    {"quality": 85, "optimize": True},
    {"quality": 100, "subsampling": 0},
    {"quality": 85, "subsampling": 1},
    {"quality": 85, "restart_marker_blocks": 3},
]


def like_a_photograph(seed: int, size: tuple[int, int] = (256, 192)) -> Image.Image:
    """Smooth, with noise on it."""
    draw = np.random.default_rng(seed)
    small = Image.fromarray(draw.integers(0, 256, (12, 16, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
    return Image.fromarray((np.asarray(small) + draw.normal(0, 6, (size[1], size[0], 3))).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_whole_pictures(mode: str, options: dict[str, Any]) -> None:
    for size in ((256, 192), (97, 131), (17, 9)):
        data = encoded(like_a_photograph(1, size).convert(mode), **options)
        for after in (b"", b"after the end", bytes(3000), encoded(noise(1))):
            found = decode_strictly(data + after)
            if mode == "CMYK":
                assert found is None
                continue
            assert found is not None
            pillow = Image.open(io.BytesIO(data)).convert("RGB")
            assert np.abs(np.asarray(found).astype(int) - np.asarray(pillow)).max() <= 2


def start_of_scan(data: bytes) -> int:
    return data.rindex(b"\xff\xda")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data[:-2] + b"\0\0\x12\x34" + data[-2:], id="bytes-before-the-end"),
        pytest.param(lambda data: data[:-2] + b"\xff\xff\xff" + data[-2:], id="fill-before-the-end"),
        pytest.param(lambda data: data.replace(b"JFIF\0\1\1", b"JFIF\0\3\1"), id="version"),
        pytest.param(
            lambda data: data[: start_of_scan(data) + 11] + bytes(3) + data[start_of_scan(data) + 14 :], id="SOS"
        ),
        pytest.param(lambda data: data.replace(b"\xff\xdb", bytes(14) + b"\xff\xdb"), id="bytes-before-tables"),
        pytest.param(lambda data: data.replace(b"\xff\xc0", b"\0\0\xff\xc0"), id="bytes-before-the-frame"),
        pytest.param(lambda data: data.replace(b"\xff\xda", b"\0\xff\xda"), id="bytes-before-the-scan"),
    ],
)
def test_oddities_of_whole_pictures(change: Callable[[bytes], bytes]) -> None:
    """As phones and programs write them; libjpeg warns of some."""
    for seed in range(8):
        whole = encoded(like_a_photograph(seed), quality=85)
        assert change(whole) != whole
        decode_strictly(change(whole))


@pytest.mark.parametrize(
    "data", [b"", b"no picture", b"\xff\xd8\xff", encoded(noise(1), "PNG"), encoded(noise(1), "WEBP")]
)
def test_what_is_no_jpeg_is_left_to_others(data: bytes) -> None:
    assert decode_strictly(data) is None


def test_a_bomb_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.laion.strict.MOST_PIXELS", 32 * 24 - 1)
    assert decode_strictly(encoded(noise(1))) is None


OTHER = encoded(like_a_photograph(100), quality=90)
DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "zeros": lambda data, at: data[:at] + bytes(512) + data[at + 512 :],
    "many zeros": lambda data, at: data[:at] + bytes(4096) + data[at + 4096 :],
    "taken out": lambda data, at: data[:at] + data[at + 512 :],
    "HTML": lambda data, at: data[:at] + b"<html>not found</html>" * 40 + data[at + 880 :],
    "another's end": lambda data, at: data[:at] + OTHER[-len(OTHER) // 2 :],
    "cut": lambda data, at: data[:at],
    "cut, and an end": lambda data, at: data[:at] + b"\xff\xd9",
}


def test_bytes_between_the_scans() -> None:
    for seed in range(8):
        whole = encoded(like_a_photograph(seed), quality=85, progressive=True)
        last = start_of_scan(whole)
        assert decode_strictly(whole[:last] + b"\0\0" + whole[last:]) is None  # Pillow is to decode it


def is_found(data: bytes) -> bool:
    found = Found()
    check_sample("a", {"jpg": data, "txt": b"a caption"}, found, 3.0)
    return why.UNDECODABLE in found.counts


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found(kind: str, options: dict[str, Any]) -> None:
    """Now and then a decoder comes back into step, and no more bytes are left than a whole picture may have."""
    pictures = [encoded(like_a_photograph(seed), **options) for seed in range(20)]
    assert not any(map(is_found, pictures))
    missed = sum(not is_found(DAMAGE[kind](data, len(data) // 3)) for data in pictures)
    assert missed <= (0 if kind.startswith("cut") else 6)


@pytest.mark.parametrize(
    "odd",
    [
        lambda data: data.replace(b"JFIF\0\1\1", b"JFIF\0\2\1"),
        lambda data: data.replace(b"\xff\xdb", b"\0\0\xff\xdb"),
    ],
    ids=["version", "bytes-before-tables"],
)
def test_an_oddity_hides_no_damage(odd: Callable[[bytes], bytes]) -> None:
    for kind in ("cut, and an end", "taken out"):
        damaged = [DAMAGE[kind](encoded(like_a_photograph(seed)), 6000) for seed in range(10)]
        assert all(odd(data) != data for data in damaged)
        assert [is_found(odd(data)) for data in damaged] == [is_found(data) for data in damaged]
        assert sum(map(is_found, damaged)) >= 8
