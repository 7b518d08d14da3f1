"""Shards: plain tar files holding KEY.png, KEY.txt, KEY.json … of one sample after the other (webdataset's layout).

    with ShardWriter("00000.tar") as writer: writer.write("cat-1", {"png": png, "txt": b"a cat"})
    for sample in read_samples("00000.tar"): image = decode_image(sample["png"])

`ShardWriter` writes the same bytes for the same samples on every machine. `read_samples` refuses whatever would lose
or mix samples in silence, and nothing here unpickles or chooses a decoder by a member's suffix.
"""

import contextlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from data_prep.errors import DataError
from data_prep.manifest import ShardEntry, sha256_file

KEY = "__key__"
PICTURES = ("jpg", "jpeg", "png", "webp")  # the suffixes of a sample's picture, the first that is there
REPACK = 'pack it anew without folders: see "Members in folders" in docs/data.md'
_BLOCK = 512
# Of all that Pillow reads, what pictures come in: its EPS reader would run Ghostscript on a sample.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO")
MOST_PIXELS = 1 << 26  # 67 million: a file of kilobytes can hold many more, at 4 bytes each
_KEY = re.compile(r"[^\W_][^./\\\x00-\x1f\x7f\ud800-\udfff]*")
_SUFFIX = re.compile(r"[a-z0-9][a-z0-9_]*")


class ShardWriter:
    """Writes one shard; use it in a `with` block. The same samples in the same order give the same bytes.

    Members have time, owner and group 0 and mode 0644. When the block ends with an error no file is left.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.samples = 0
        self._keys: set[str] = set()
        self._file = open(self.path, "wb")  # noqa: SIM115  (close() closes it, which __exit__ calls)
        self._tar = tarfile.TarFile(fileobj=self._file, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8")

    def write(self, key: str, members: Mapping[str, bytes]) -> None:
        """Append one sample: `members` maps a suffix without dots ("png") to the content, in the order to write.

        Raises:
            DataError: an unusable or repeated key, an unusable suffix, or no member.
        """
        if not _KEY.fullmatch(key):
            raise DataError(
                f"{self.path}: a key starts with a letter or digit and has no dot, slash or control character, "
                f"found {key!r}"
            )
        if key in self._keys:
            raise DataError(f"{self.path}: key {key!r} was written twice")
        if not members:
            raise DataError(f"{self.path}: sample {key!r} has no member")
        for suffix in members:
            if not _SUFFIX.fullmatch(suffix):
                raise DataError(f"{self.path}: suffix {suffix!r} must be small letters, digits and underscores")
        for suffix, content in members.items():
            info = tarfile.TarInfo(f"{key}.{suffix}")
            info.size, info.mode, info.mtime = len(content), 0o644, 0
            self._tar.addfile(info, io.BytesIO(content))
        self._keys.add(key)
        self.samples += 1

    def close(self) -> ShardEntry:
        """Finish the tar if it is not yet, bring it to the disk, and return its manifest entry."""
        if not self._file.closed:
            self._tar.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return ShardEntry(self.path.name, self.path.stat().st_size, sha256_file(self.path), self.samples)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
            self.path.unlink(missing_ok=True)


def read_samples(path: Path | str) -> Iterator[dict[str, bytes]]:
    """The samples of a shard in order, each a dict of suffix -> content, with the key as UTF-8 under "__key__".

    Raises:
        DataError: the tar is cut short or damaged (perhaps only found after the last whole sample), a member is no
            plain file or has no single suffix, a suffix comes twice in one sample, or members of different samples
            are interleaved.
    """
    path = Path(path)
    sample: dict[str, bytes] = {}
    finished: set[str] = set()
    current: str | None = None
    for name, content in _members(path):
        key, dot, suffix = name.partition(".")
        if not key or not suffix or not dot or "." in suffix or "/" in name:
            raise DataError(f"{path}: member {name!r} is not named KEY.SUFFIX{f'; {REPACK}' if '/' in name else ''}")
        if key != current:
            if current is not None:
                yield sample
                finished.add(current)
            if key in finished:
                raise DataError(f"{path}: members of sample {key!r} are interleaved with those of another")
            current, sample = key, {KEY: key.encode("utf-8", "surrogateescape")}
        if suffix in sample:
            raise DataError(f"{path}: sample {key!r} has two members .{suffix}")
        sample[suffix] = content
    if current is not None:
        yield sample


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each member."""
    for info, file in read_headers(path):
        if not info.isfile() or info.issparse():
            raise DataError(f"{path}: member {info.name!r} is not a plain file{f'; {REPACK}' if info.isdir() else ''}")
        file.seek(info.offset_data)
        yield info.name, file.read(info.size)


def read_headers(path: Path) -> Iterator[tuple[tarfile.TarInfo, BinaryIO]]:
    """Each member's header, and the tar's file, where its content stands: `info.size` bytes at `info.offset_data`.

    Raises:
        DataError: no such file, or the tar is cut short or damaged: after the last member nothing but zeros may stand,
            at least two blocks of them.
    """
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
            end = 0
            for info in tar:
                if info.size < 0:  # tarfile would go back, and round for ever
                    raise tarfile.HeaderError(f"a member of {info.size} bytes")
                yield info, file
                end = info.offset_data + (info.size + _BLOCK - 1) // _BLOCK * _BLOCK
            _check_end(file, end, path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except DataError:
        raise
    except Exception as error:  # of hostile headers tarfile raises many kinds; all mean the same here
        raise DataError(f"{path} is cut short, damaged or no tar: {error}") from error


def _check_end(file: BinaryIO, end: int, path: Path) -> None:
    """tarfile takes a damaged header for the end, and needs no closing blocks; both lose samples in silence."""
    file.seek(end)
    if len(file.read(2 * _BLOCK)) < 2 * _BLOCK:
        raise DataError(f"{path} is cut short at byte {end}: the two closing zero blocks are not there")
    file.seek(end)
    if any(piece.strip(b"\0") for piece in iter(lambda: file.read(1 << 20), b"")):
        raise DataError(f"{path} is damaged after byte {end}: there is more, and no readable header")


def decode_image(data: bytes) -> Image.Image:
    """Decode a picture to RGB as a person would see it: upright, and on white where it is transparent.

    Palette, grey, 1-bit, 16-bit, CMYK and alpha pictures are handled; of an animation it is the first frame.

    Raises:
        DataError: the bytes are cut short, no picture of FORMATS that Pillow can show as RGB, or one of more than
            MOST_PIXELS.
    """
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > MOST_PIXELS:
            raise DataError(f"{image.width} x {image.height} pixels are more than {MOST_PIXELS:,}")
        image.load()
        return _to_rgb(_upright(image))
    except UnidentifiedImageError as error:
        raise DataError(f"not a readable picture ({len(data)} bytes): none of {', '.join(FORMATS)}") from error
    except Exception as error:  # Pillow raises many kinds for damaged input; all mean the same here
        raise DataError(f"not a readable picture ({len(data)} bytes): {error}") from error


def _upright(image: Image.Image) -> Image.Image:
    """Turn the picture as its EXIF tag says; a damaged EXIF block says nothing."""
    with contextlib.suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)  # otherwise it copies upright pictures too
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB without Pillow's traps: it would clip 16 bits to white and show what lies under transparency."""
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise DataError("more than 16 bits a pixel")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise DataError("floating-point pixels have no agreed white")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # which would copy
