"""Which pictures are read otherwise than OpenCLIP reads them, and that all others are read to the pixel as it does."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torchvision.transforms.v2 import functional as F

from evaluate.data.pictures import Place
from evaluate.decode import Reader, fast_transform, read_otherwise
from evaluate.errors import RefusedError

# torchvision announces at every call that its decoders will go one day.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
RGB = Image.fromarray(PIXELS)


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def rotated(form: str, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(RGB, form, exif=exif, **options)


def turned_by_xmp(*, packed: bool) -> bytes:
    """A PNG whose only word on its rotation is an XMP packet, as some editors write it."""
    text = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", text, zip=packed)
    return encoded(RGB, "PNG", pnginfo=info)


def turned_by_raw_profile() -> bytes:
    """A PNG with EXIF as hexadecimal text, as ImageMagick wrote it before PNG had a block for it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    content = exif.tobytes()
    info = PngInfo()
    info.add_text("Raw profile type exif", f"\nexif\n{len(content):8}\n{content.hex()}\n", zip=True)
    return encoded(RGB, "PNG", pnginfo=info)


def place_of(folder: Path, content: bytes) -> Place:
    """The picture in the middle of a file, as inside a tar."""
    (folder / "file").write_bytes(b"before" + content + b"after")
    return Place(folder / "file", 6, len(content))


TRANSPARENT = Image.merge("RGBA", (*RGB.split(), Image.new("L", RGB.size, 100)))
PALETTE = RGB.convert("P")
ORDINARY = {
    "jpeg": encoded(RGB, "JPEG"),
    "png": encoded(RGB, "PNG"),
    "webp": encoded(RGB, "WEBP", lossless=True),
    "grey jpeg": encoded(RGB.convert("L"), "JPEG"),
    "grey png": encoded(RGB.convert("L"), "PNG"),
    "one bit": encoded(RGB.convert("1"), "PNG"),
    "palette": encoded(PALETTE, "PNG"),
    "alpha that hides nothing": encoded(RGB.convert("RGBA"), "PNG"),
    "cmyk": encoded(RGB.convert("CMYK"), "JPEG"),
    "rotated tiff, which Pillow turns": rotated("TIFF"),
}
OTHERWISE = {
    "rotated jpeg": (rotated("JPEG"), "rotation"),
    "rotated png": (rotated("PNG"), "rotation"),
    "rotated webp": (rotated("WEBP"), "rotation"),
    "rotated mpo": (rotated("MPO", save_all=True, append_images=[RGB]), "rotation"),
    "rotated by a raw profile": (turned_by_raw_profile(), "rotation"),
    "rotated by xmp": (turned_by_xmp(packed=False), "rotation"),
    "rotated by packed xmp": (turned_by_xmp(packed=True), "rotation"),
    "alpha": (encoded(TRANSPARENT, "PNG"), "transparency"),
    "palette with alpha": (encoded(PALETTE, "PNG", transparency=PALETTE.getpixel((0, 0))), "transparency"),
    "16 bits": (encoded(Image.fromarray(PIXELS[:, :, 0].astype(np.uint16) * 257), "PNG"), "16 bits"),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_pictures_are_read_as_openclip_does(name: str, tmp_path: Path) -> None:
    reader = Reader([place_of(tmp_path, ORDINARY[name])], fast=False)
    theirs = Image.open(io.BytesIO(ORDINARY[name])).convert("RGB")
    assert np.array_equal(np.asarray(reader(0)), np.asarray(theirs))
    assert reader.otherwise == {}


@pytest.mark.parametrize("name", OTHERWISE)
def test_others_are_counted_by_what_they_have(name: str, tmp_path: Path) -> None:
    content, has = OTHERWISE[name]
    for fast in (False, True):
        reader = Reader([place_of(tmp_path, content)], fast=fast)
        ours = np.asarray(reader(0)) if not fast else reader(0).permute(1, 2, 0).numpy()  # type: ignore[union-attr]
        theirs = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        assert ours.shape != theirs.shape or not np.array_equal(ours, theirs)
        assert reader.otherwise == {0: has}


def test_a_damaged_exif_block_says_nothing() -> None:
    content = encoded(RGB, "JPEG", exif=b"Exif\0\0broken")
    assert read_otherwise(content) is None


def test_fast_decoding_is_for_plain_jpeg(tmp_path: Path) -> None:
    for content in (ORDINARY["jpeg"], ORDINARY["png"], ORDINARY["cmyk"]):
        pixels = Reader([place_of(tmp_path, content)], fast=True)(0)
        assert isinstance(pixels, torch.Tensor)
        assert (pixels.shape, pixels.dtype) == ((3, 30, 40), torch.uint8)
        theirs = F.pil_to_tensor(Image.open(io.BytesIO(content)).convert("RGB"))
        assert (pixels.int() - theirs.int()).abs().max() <= 3


@pytest.mark.parametrize("size", [24, (24, 24), (24, 12)], ids=str)
@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
def test_fast_transform_is_openclips_but_for_rounding(size: Any, mode: str) -> None:
    transform = image_transform_v2(PreprocessCfg(size=size, resize_mode=mode), is_train=False)
    smooth = RGB.resize((90, 70), Image.Resampling.BICUBIC)
    slow, fast = transform(smooth), fast_transform(transform)(F.pil_to_tensor(smooth))
    assert slow.shape == fast.shape == fast_transform(transform)(smooth).shape
    assert (slow - fast).abs().max() * 0.27 * 255 <= 4


def test_a_torchvision_without_decoders_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torchvision.io, "decode_jpeg")
    with pytest.raises(RefusedError, match=r"--fast-decode needs torchvision's decode_jpeg.*Leave it out"):
        fast_transform(image_transform_v2(PreprocessCfg(size=8), is_train=False))
