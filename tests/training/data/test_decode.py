"""training.data.decode: pil is OpenCLIP's transform, fast the same picture by another way, and what both refuse."""

import io
import pickle
import random
from dataclasses import asdict

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image

from data_prep.errors import DataError
from data_prep.jpeg import decode_plain_jpeg
from data_prep.shards import MOST_PIXELS, decode_image
from training.data.decode import Decode, Normalise
from training.settings import Settings, SettingsError

# torchvision announces at every call that its decoders will go one day.
pytestmark = pytest.mark.filterwarnings("ignore:.*TorchCodec:DeprecationWarning")

SIZE = 64
CFG = asdict(PreprocessCfg(size=SIZE))
WHOLE = {"scale": [1.0, 1.0]}  # the crop is the whole picture, where that is nearly square


def photo(width=SIZE, height=SIZE, mode="RGB"):
    """Smooth colours and one sharp edge, so that a shift, a turn or a wrong resize would show."""
    noise = np.random.default_rng(0).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
    image.paste((250, 20, 20), (0, 0, width // 3, height // 2))
    return image.convert(mode)


def encoded(image, kind="JPEG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoder(decode="fast", cfg=CFG, **aug_cfg):
    return Decode(Settings(decode=decode, aug_cfg=aug_cfg), cfg)


def picture(decode, data, seed=0, suffix="jpg"):
    """The decoded picture, with both generators seeded."""
    torch.manual_seed(seed)
    random.seed(seed)
    return decode({suffix: data, "txt": b"a photo"})[0]


def generators():
    return torch.get_rng_state().tolist(), random.getstate()


JITTER = {"color_jitter": [0.4, 0.4, 0.4, 0.1], "color_jitter_prob": 0.8, "gray_scale_prob": 0.3}
NO_HUE = {**JITTER, "color_jitter": [0.4, 0.4, 0.4, 0.0]}


# How far apart the pixels may be, in steps of 255: the mean and the most. Pillow changes hue in 8 bits.
@pytest.mark.parametrize(
    ("aug_cfg", "mean", "most"),
    [({}, 0.1, 2), ({"scale": [0.3, 0.6]}, 0.1, 2), (NO_HUE, 1, 6), (JITTER, 3, 25)],
    ids=["default", "small", "colours", "hue"],
)
@pytest.mark.parametrize("size", [SIZE, (48, 80), [96, 32]], ids=str)
@pytest.mark.parametrize("shape", [(256, 256), (70, 300), (40, 30)], ids=str)
def test_fast_draws_and_shows_what_pil_does(aug_cfg, mean, most, size, shape):
    """The same crop and colours from the same state, and the generators left alike; pixels differ by rounding."""
    cfg = {**CFG, "size": size}
    data = encoded(photo(*shape), quality=95)
    decode_fast, decode_pil, normalise = decoder("fast", cfg, **aug_cfg), decoder("pil", cfg, **aug_cfg), Normalise(cfg)
    for seed in range(4):
        fast = picture(decode_fast, data, seed)
        after = generators()
        pil = picture(decode_pil, data, seed)
        assert generators() == after
        height, width = (size, size) if isinstance(size, int) else size
        assert fast.shape == pil.shape == (3, height, width)
        assert (fast.dtype, pil.dtype) == (torch.uint8, torch.float32)
        apart = (normalise(fast) - pil).abs() * normalise.std * 255
        assert apart.mean() < mean
        assert apart.max() < most + 0.01


@pytest.mark.filterwarnings("ignore:Unused augmentation")  # OpenCLIP's, of settings that it does use
@pytest.mark.parametrize("aug_cfg", [{}, JITTER, {"use_timm": True, "re_prob": 1.0, "ratio": [0.5, 2.0]}], ids=str)
def test_pil_is_open_clip_s_own_transform(aug_cfg):
    data = encoded(photo(100, 90))
    for size in (SIZE, [48, 80]):
        cfg = {**CFG, "size": size}
        found = picture(decoder("pil", cfg, **aug_cfg), data)
        upstream = PreprocessCfg(**{**cfg, "size": size if isinstance(size, int) else tuple(size)})
        transform = image_transform_v2(upstream, is_train=True, aug_cfg=aug_cfg)
        torch.manual_seed(0)
        random.seed(0)
        assert torch.equal(found, transform(decode_image(data)))


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


KINDS = {
    "444": encoded(photo(), subsampling=0),
    "420": encoded(photo(), subsampling=2),
    "progressive": encoded(photo(), progressive=True),
    "stored as RGB": encoded(photo(), keep_rgb=True),
    "odd size": encoded(photo(63, 61)),
    "grey": encoded(photo(mode="L")),
    "CMYK": encoded(photo(mode="CMYK")),
    "two pictures": encoded(photo(), "MPO", save_all=True, append_images=[photo(mode="L").convert("RGB")]),
    "damaged EXIF": encoded(photo(), exif=b"Exif\0\0MM\0*\0\0\xff\xff"),
    **{f"turned {n}": encoded(photo(70, 60), exif=exif(n)) for n in range(1, 9)},
    "PNG": encoded(photo(), "PNG"),
    "transparent PNG": encoded(photo(mode="LA").convert("P"), "PNG", transparency=255),
    "16-bit PNG": encoded(photo(mode="L").convert("I;16"), "PNG"),
    "WebP": encoded(photo(), "WEBP"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_fast_sees_every_picture_as_decode_image_does(kind):
    """Whatever the suffix says. The crop is the whole picture at its own size, so the pixels are the decoder's."""
    upright = decode_image(KINDS[kind])
    decode = decoder("fast", {**CFG, "size": upright.size[::-1]}, **WHOLE)
    expected = torch.from_numpy(np.array(upright)).permute(2, 0, 1)
    assert torch.equal(picture(decode, KINDS[kind]), expected)


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png", "webp"])
@pytest.mark.parametrize("decode", ["fast", "pil"])
def test_pictures_and_captions_by_suffix(suffix, decode):
    image, caption = decoder(decode)({suffix: KINDS["WebP"], "txt": "schön ✓".encode(), "cls": b"3", "pyd": b"cos\n"})
    assert image.shape == (3, SIZE, SIZE)
    assert caption == "schön ✓"


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ({"txt": b"a"}, r"no picture \(jpg, jpeg, png, webp\)"),
        ({"gif": KINDS["420"], "txt": b"a"}, r"no picture \(jpg, jpeg, png, webp\)"),
        ({"jpg": KINDS["420"], "json": b"{}"}, r"no caption \(txt\)"),
        ({"jpg": KINDS["420"], "txt": b"\xff"}, "caption is not UTF-8"),
        ({"jpg": b"", "txt": b"a"}, "not a readable picture"),
        ({"jpg": b"<html>", "txt": b"a"}, "not a readable picture"),
        ({"jpg": KINDS["420"][:600], "txt": b"a"}, "not a readable picture"),
        ({"png": KINDS["PNG"][:600], "txt": b"a"}, "not a readable picture"),
    ],
)
@pytest.mark.parametrize("decode", ["fast", "pil"])
def test_a_bad_sample_has_a_reason_that_can_be_counted(sample, reason, decode):
    with pytest.raises(DataError, match=f"^{reason}$"):
        decoder(decode)(sample)


@hypothesis_settings(max_examples=150)
@given(st.sampled_from(["420", "progressive", "grey", "CMYK", "turned 6", "PNG", "WebP"]), st.data())
def test_damage_gives_a_picture_or_a_reason(kind, data):
    """And the same from both decoders as to which: what is no picture for one is none for the other."""
    content = bytearray(KINDS[kind])
    places = st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)
    for place in data.draw(places):
        content[place] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.sampled_from([None, len(content) // 2, len(content) - 1]))])
    found = []
    for decode in (decoder("fast"), decoder("pil")):
        try:
            image = picture(decode, content)
            assert image.shape == (3, SIZE, SIZE)
            found.append(None)
        except DataError as error:
            found.append(str(error))
    assert found[0] == found[1]
    assert found[0] in (None, "not a readable picture")


def test_a_jpeg_of_too_many_pixels_is_refused_before_it_fills_the_memory(monkeypatch):
    data = KINDS["420"]
    at = data.index(b"\xff\xc0") + 5  # in the frame header, height and width of two bytes each
    data = data[:at] + b"\xff\xdc\xff\xdc" + data[at + 4 :]
    decode = decoder("fast")
    monkeypatch.setattr(torchvision.io, "decode_jpeg", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(DataError, match=r"^not a readable picture$"):
        picture(decode, data)


@pytest.mark.parametrize("decode", ["fast", "pil"])
def test_pickled_it_is_the_same(decode):
    """As a worker that is spawned gets it."""
    original = decoder(decode, **JITTER)
    copy = pickle.loads(pickle.dumps(original))
    assert torch.equal(picture(copy, KINDS["420"]), picture(original, KINDS["420"]))


@pytest.mark.parametrize(
    ("decode", "aug_cfg", "complaint"),
    [
        ("fast", {"use_timm": True}, "use_timm=true needs --decode pil"),
        ("fast", {"ratio": [0.5, 2.0]}, "ratio would be ignored.*with use_timm=true, which needs --decode pil"),
        ("pil", {"re_prob": 0.2, "re_count": 2}, "re_count, re_prob would be ignored"),
        ("pil", {"use_timm": True, "gray_scale_prob": 0.2}, "gray_scale_prob would be ignored.*without use_timm"),
        ("fast", {"color_jitter": [0.1, 0.1, 0.1, 0.1]}, "color_jitter would be ignored: give color_jitter_prob"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(decode, aug_cfg, complaint):
    with pytest.raises(SettingsError, match=complaint):
        decoder(decode, **aug_cfg)


@pytest.mark.filterwarnings("error:Unused augmentation")
def test_settings_that_are_used_do_not_warn():
    decoder("pil", **JITTER, ratio=None)


def test_a_torchvision_without_decoders_is_named(monkeypatch):
    """Not every picture through Pillow in silence."""
    monkeypatch.delattr(torchvision.io, "decode_jpeg")
    with pytest.raises(SettingsError, match=r"needs torchvision's decode_jpeg.*use --decode pil"):
        decoder("fast")
    decoder("pil")


def test_another_open_clip_s_transform_is_named(monkeypatch):
    monkeypatch.setattr("training.data.decode.RandomResizedCrop", torch.nn.Identity)
    with pytest.raises(SettingsError, match="does not know this OpenCLIP's transform, use --decode pil"):
        decoder("fast")


@pytest.mark.parametrize("cfg", [CFG, {**CFG, "mean": 0.5, "std": 0.25}], ids=["three values", "one value"])
def test_normalise_gives_the_bits_of_open_clip(cfg):
    values = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(2, 3, 16, 16)
    to_tensor, normalise = image_transform_v2(PreprocessCfg(**cfg), is_train=False).transforms[-2:]
    expected = torch.stack([normalise(to_tensor(image.permute(1, 2, 0).numpy())) for image in values])
    found = Normalise(cfg)(values)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_normalise_leaves_floats_and_holds_nothing_to_save():
    images = torch.randn(2, 3, 4, 4)
    module = Normalise(CFG)
    assert module(images) is images
    assert not module.state_dict()
    assert all(buffer.device.type == "meta" for buffer in module.to("meta").buffers())


def test_a_picture_of_too_many_pixels_is_refused_by_both_decoders():
    """Pillow's own limit is higher than that of decode_image."""
    buffer = io.BytesIO()
    Image.new("L", (9000, 9000)).save(buffer, "JPEG")
    assert MOST_PIXELS < 9000 * 9000
    assert decode_plain_jpeg(buffer.getvalue()) is None
    with pytest.raises(DataError, match="9000 x 9000 pixels are more than"):
        decode_image(buffer.getvalue())
