"""Tests of data_prep.shards: same bytes out as in, nothing lost in silence, every kind of picture seen as it is."""

import io
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep.errors import DataError
from data_prep.laion.findings import NAME, Found
from data_prep.laion.tar import walk
from data_prep.manifest import sha256_file
from data_prep.shards import KEY, ShardWriter, decode_image, read_samples

keys = st.from_regex(r"[a-z0-9][a-z0-9 é表-]{0,150}", fullmatch=True)
suffixes = st.from_regex(r"[a-z0-9][a-z0-9_]{0,5}", fullmatch=True)
samples = st.dictionaries(
    keys, st.dictionaries(suffixes, st.binary(max_size=1500), min_size=1, max_size=4), min_size=0, max_size=6
)


def plain_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    """A tar as any other tool might write it."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@settings(max_examples=30)  # each example waits for the disk
@given(samples)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, content: dict[str, dict[str, bytes]]) -> None:
    folder = tmp_path_factory.mktemp("set")
    entries = []
    for name in ("a.tar", "b.tar"):
        with ShardWriter(folder / name) as writer:
            for key, members in content.items():
                writer.write(key, members)
        entries.append(writer.close())
    assert list(read_samples(folder / "a.tar")) == [{KEY: key.encode(), **members} for key, members in content.items()]
    assert entries[0].samples == len(content)
    assert entries[0].bytes == (folder / "a.tar").stat().st_size
    assert entries[0].sha256 == entries[1].sha256 == sha256_file(folder / "a.tar")


def test_webdataset_reads_the_same(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a.tar") as writer:
        for number in range(5):
            writer.write(f"k-{number}", {"txt": b"%d" % number, "json": b"{}"})
    found = list(webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False))
    assert [(s["__key__"], s["txt"]) for s in found] == [(f"k-{n}", b"%d" % n) for n in range(5)]


@pytest.mark.parametrize("key", ["a.b", "a/b", "", "_a", "-a", "a\nb", ".a", "a\ud800"])
def test_unusable_key(tmp_path: Path, key: str) -> None:
    with pytest.raises(DataError, match="a key starts with"), ShardWriter(tmp_path / "a.tar") as writer:
        writer.write(key, {"txt": b""})
    assert not (tmp_path / "a.tar").exists()


@pytest.mark.parametrize(
    ("members", "complaint"), [({}, "no member"), ({"a.b": b""}, "suffix 'a.b'"), ({"__key__": b""}, "suffix")]
)
def test_unusable_members(tmp_path: Path, members: dict[str, bytes], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint), ShardWriter(tmp_path / "a.tar") as writer:
        writer.write("a", members)


def test_repeated_key(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a.tar") as writer:
        writer.write("a", {"txt": b""})
        with pytest.raises(DataError, match="'a' was written twice"):
            writer.write("a", {"txt": b""})


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([("a.txt", b""), ("b.txt", b""), ("a.png", b"")], "members of sample 'a' are interleaved"),
        ([("a.txt", b""), ("a.txt", b"")], "two members .txt"),
        ([("a.__key__", b"")], "two members .__key__"),
        ([("a.b.jpg", b"")], "not named KEY.SUFFIX"),
        ([("a", b"")], "not named KEY.SUFFIX"),
        ([(".txt", b"")], "not named KEY.SUFFIX"),
        ([("d/a.txt", b"")], "not named KEY.SUFFIX"),
    ],
)
def test_members_that_would_mix_samples(tmp_path: Path, members: list[tuple[str, bytes]], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        list(read_samples(plain_tar(tmp_path / "a.tar", members)))


def test_members_in_folders_are_packed_anew_as_the_page_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")
    script = page.partition("**Members in folders.**")[2].partition("```bash\n")[2].partition("```")[0]
    content = {"0.jpg": b"a", "0.txt": b"b", "a/b/0.jpg": b"c", "a/b/0.txt": b"d", "a/b/0-1.txt": b"e"}
    for name, data in content.items():
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).write_bytes(data)
    subprocess.run(["tar", "cf", tmp_path / "x.tar", "."], cwd=tmp_path / "old", check=True)
    with pytest.raises(DataError, match='pack it anew without folders: see "Members in folders"'):
        list(read_samples(tmp_path / "x.tar"))
    plain_tar(tmp_path / "y.tar", [("./0.jpg", b"a")])
    with pytest.raises(DataError, match=r"member '\./0\.jpg' is not named KEY\.SUFFIX; pack it anew"):
        list(read_samples(tmp_path / "y.tar"))
    list(walk(tmp_path / "y.tar", found := Found()))
    assert found.examples[NAME].startswith("./0.jpg; pack it anew")
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    assert list(read_samples(tmp_path / "x-new.tar")) == [
        {KEY: b"0", "jpg": b"a", "txt": b"b"},
        {KEY: b"a_b_0-1", "txt": b"e"},
        {KEY: b"a_b_0", "jpg": b"c", "txt": b"d"},
    ]


def test_link_is_no_sample(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("a.txt")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(DataError, match="not a plain file"):
        list(read_samples(tmp_path / "a.tar"))


def three(tmp_path: Path) -> bytes:
    """A tar with three samples of two blocks each; the closing zeros begin at byte 3072."""
    members = [(f"{number}.txt", bytes([65 + number]) * 300) for number in range(3)]
    return plain_tar(tmp_path / "a.tar", members).read_bytes()


@pytest.mark.parametrize("length", [1, 511, 512, 700, 1024, 2048, 3071, 3072, 3584, 4095])
def test_tar_cut_anywhere(tmp_path: Path, length: int) -> None:
    whole = three(tmp_path)
    (tmp_path / "a.tar").write_bytes(whole[:length])
    with pytest.raises(DataError, match="cut short"):
        list(read_samples(tmp_path / "a.tar"))


@pytest.mark.parametrize("length", [4096, 5000])
def test_two_closing_blocks_suffice(tmp_path: Path, length: int) -> None:
    whole = three(tmp_path)
    (tmp_path / "a.tar").write_bytes(whole[:length])
    assert [sample[KEY] for sample in read_samples(tmp_path / "a.tar")] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("start", "stop", "patch", "complaint"),
    [
        (1024, 1030, b"\xff" * 6, "damaged after byte 1024"),  # the header of the second sample
        (0, 6, b"\xff" * 6, "damaged or no tar"),
        (1024, 2048, bytes(1024), "damaged after byte 1024"),  # the second sample is zeros
    ],
)
def test_damaged_tar(tmp_path: Path, start: int, stop: int, patch: bytes, complaint: str) -> None:
    whole = bytearray(three(tmp_path))
    whole[start:stop] = patch
    (tmp_path / "a.tar").write_bytes(whole)
    with pytest.raises(DataError, match=complaint):
        list(read_samples(tmp_path / "a.tar"))


def test_two_tars_put_together(tmp_path: Path) -> None:
    whole = three(tmp_path)
    (tmp_path / "a.tar").write_bytes(whole + whole)
    with pytest.raises(DataError, match="damaged after byte 3072"):
        list(read_samples(tmp_path / "a.tar"))


def test_no_such_shard(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        list(read_samples(tmp_path / "a.tar"))


# ---------------------------------------------------------------- pictures


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def corner(data: bytes) -> tuple[int, ...]:
    """The top left pixel as decoded, which must be RGB."""
    image = decode_image(data)
    assert image.mode == "RGB"
    return tuple(np.asarray(image)[0, 0].tolist())


def palette(**options: object) -> bytes:
    image = Image.new("P", (2, 2), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    return encoded(image, **options)


SIXTEEN = Image.fromarray(np.full((2, 2), 257 * 100, np.uint16))


@pytest.mark.parametrize(
    ("data", "pixel"),
    [
        pytest.param(encoded(Image.new("RGB", (2, 2), (1, 2, 3))), (1, 2, 3), id="RGB"),
        pytest.param(encoded(Image.new("RGBA", (2, 2), (0, 0, 0, 0))), (255, 255, 255), id="clear"),
        pytest.param(encoded(Image.new("RGBA", (2, 2), (0, 0, 0, 51))), (204, 204, 204), id="half-clear"),
        pytest.param(encoded(Image.new("LA", (2, 2), (0, 0))), (255, 255, 255), id="LA"),
        pytest.param(encoded(Image.new("L", (2, 2), 77)), (77, 77, 77), id="L"),
        pytest.param(encoded(Image.new("1", (2, 2), 1)), (255, 255, 255), id="1"),
        pytest.param(palette(), (10, 20, 30), id="P"),
        pytest.param(palette(transparency=1), (255, 255, 255), id="P-clear"),
        pytest.param(encoded(Image.new("RGB", (2, 2), (1, 2, 3)), transparency=(1, 2, 3)), (255,) * 3, id="RGB-clear"),
        pytest.param(encoded(SIXTEEN), (100, 100, 100), id="16-bit"),
        pytest.param(encoded(SIXTEEN, "TIFF"), (100, 100, 100), id="16-bit-TIFF"),
        pytest.param(encoded(Image.new("I", (2, 2), 65535), "TIFF"), (255, 255, 255), id="32-bit"),
        pytest.param(encoded(Image.new("CMYK", (2, 2), (0, 255, 255, 0)), "TIFF"), (255, 0, 0), id="CMYK"),
        pytest.param(encoded(Image.new("YCbCr", (2, 2), (255, 128, 128)), "TIFF"), (255, 255, 255), id="YCbCr"),
        pytest.param(encoded(Image.new("RGBA", (2, 2), (0, 0, 0, 0)), "WEBP"), (255, 255, 255), id="WEBP-clear"),
    ],
)
def test_decode_every_mode(data: bytes, pixel: tuple[int, int, int]) -> None:
    assert corner(data) == pixel


def test_decode_cmyk_jpeg() -> None:
    red = corner(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95))
    assert red[0] > 245
    assert max(red[1:]) < 10


def test_decode_turns_upright() -> None:
    image = Image.new("RGB", (4, 2), "white")
    image.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right
    turned = decode_image(encoded(image, exif=exif))
    assert turned.size == (2, 4)
    assert turned.getpixel((1, 0)) == (255, 0, 0)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_decode_ignores_damaged_exif() -> None:
    image = decode_image(encoded(Image.new("RGB", (2, 2), (1, 2, 3)), exif=b"Exif\0\0MM\0*\0\0\xff\xff"))
    assert image.size == (2, 2)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"no picture", id="text"),
        pytest.param(encoded(Image.effect_noise((64, 64), 50))[:2000], id="cut"),
        pytest.param(encoded(Image.new("F", (2, 2), 0.5), "TIFF"), id="float"),
        pytest.param(encoded(Image.new("I", (2, 2), 70000), "TIFF"), id="more-than-16-bits"),
    ],
)
def test_decode_refuses(data: bytes) -> None:
    with pytest.raises(DataError, match="not a readable picture"):
        decode_image(data)


def test_a_picture_that_is_a_program_is_not_run():
    """Pillow's reader of PostScript would start Ghostscript."""
    with pytest.raises(DataError, match="none of JPEG, PNG"):
        decode_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded():
    image = Image.new("1", (12_000, 12_000))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    assert len(buffer.getvalue()) < 100_000
    with pytest.raises(DataError, match="12000 x 12000 pixels are more than"):
        decode_image(buffer.getvalue())
