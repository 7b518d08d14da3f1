"""The stamps set from a small package: both layouts, the same bytes twice, and every refusal."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import webdataset
from debs import STAMPS, png, stamps, write_deb
from PIL import Image

from data_prep.__main__ import main
from data_prep.errors import DataError
from data_prep.manifest import read_manifest
from data_prep.shards import read_samples
from data_prep.stamps import build as module
from data_prep.stamps.build import build

DESCRIPTIONS = ["A fish – grün.", "A house.", "An owl."]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_deb(tmp_path / "stamps.deb", stamps())


@pytest.fixture
def built(tmp_path: Path, package: Path) -> Path:
    build(tmp_path / "set", package, 32)
    return tmp_path / "set"


def test_described_stamps_are_there_and_nothing_else(built: Path) -> None:
    samples = list(read_samples(built / "test" / "0.tar"))
    assert [(s["__key__"], s["txt"].decode(), s["cls"]) for s in samples] == [
        (b"animals-birds-an-owl", "An owl.", b"2"),
        (b"animals-fish", "A fish – grün.", b"0"),
        (b"town-flag", "A fish – grün.", b"0"),
        (b"town-house", "A house.", b"1"),
    ]
    assert json.loads(samples[0]["json"]) == {
        "path": "animals/birds/an owl",
        "category": "animals",
        "package": "tuxpaint-stamps-default",
        "license": "GPL-2",
    }
    assert (built / "copyright").read_bytes() == b"GPL-2"
    assert [entry.samples for entry in read_manifest(built / "test")] == [4]


def test_pictures_are_squares_on_white_png_before_svg(built: Path) -> None:
    pictures = {
        s["__key__"].decode(): np.asarray(Image.open(io.BytesIO(s["png"])))
        for s in read_samples(built / "test" / "0.tar")
    }
    for picture in pictures.values():
        assert picture.shape == (32, 32, 3)
        assert (picture[:7] == 255).all(), "twice as wide as high, centred"
        assert (picture[-7:] == 255).all()
    assert (pictures["animals-fish"][9:23] == (0, 255, 0)).all(), "the PNG, not the SVG"
    assert (pictures["town-house"][9:23] == (0, 0, 255)).all(), "an SVG whose size is in points"


def test_webdataset_reads_it_as_clip_benchmark_does(built: Path) -> None:
    assert (built / "classnames.txt").read_text(encoding="utf-8").splitlines() == DESCRIPTIONS
    assert (built / "zeroshot_classification_templates.txt").read_text() == "{c}\n"
    assert (built / "test" / "nshards.txt").read_text() == "1\n"
    pairs = (
        webdataset.WebDataset([str(built / "test" / "0.tar")], shardshuffle=False)
        .decode("pil")
        .to_tuple("webp;png;jpg;jpeg", "cls")
    )
    assert [label for _, label in pairs] == [2, 0, 0, 1]


def test_the_same_package_gives_the_same_bytes(built: Path, tmp_path: Path, package: Path) -> None:
    build(tmp_path / "again", package, 32)
    for name in ("test/0.tar", "test/manifest.jsonl", "classnames.txt"):
        assert (tmp_path / "again" / name).read_bytes() == (built / name).read_bytes()


def test_page_and_record_say_what_is_in_it(built: Path) -> None:
    stats = json.loads((built / "stats.json").read_text())
    assert (stats["pictures"], stats["descriptions"], stats["pictures_sharing_a_description"]) == (4, 3, 2)
    assert stats["categories"] == {"animals": 2, "town": 2}
    assert stats["version"] == "1.2-3"
    page = (built / "README.md").read_text(encoding="utf-8")
    assert "GPL-2" in page
    assert "4 pictures" in page
    assert "animals 2, town 2" in page


def test_a_second_call_finds_it_built(
    built: Path, tmp_path: Path, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["stamps", "--output", str(built), "--image-size", "32"]
    assert main(command) == 0
    assert main([*command, "--deb", str(package)]) == 0
    assert "already built" in capsys.readouterr().out
    other = write_deb(tmp_path / "other.deb", stamps() | {f"{STAMPS}x.txt": b"x"})
    assert main([*command, "--deb", str(other)]) == 1
    assert "was made with --deb of sha256" in capsys.readouterr().err
    assert main(["stamps", "--output", str(built)]) == 1
    assert "was made with --image-size 32, not 224" in capsys.readouterr().err
    (built / "test" / "0.tar").unlink()
    assert main(command) == 1
    assert "is damaged" in capsys.readouterr().err


def test_command_line(tmp_path: Path, package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stamps", "--output", str(tmp_path / "cli"), "--deb", str(package), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"] == 4
    with pytest.raises(SystemExit) as caught:
        main(["stamps", "--output", str(tmp_path / "x"), "--image-size", "4"])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("files", "package", "message"),
    [
        (stamps(), "tuxpaint", "is the package 'tuxpaint'; this takes tuxpaint-stamps-default"),
        ({"./usr/share/other.png": png((1, 2, 3))}, "tuxpaint-stamps-default", "has no described pictures below"),
        (
            stamps() | {f"{STAMPS}town/house.svg": b"<svg", f"{STAMPS}town/flag.png": png((255, 255, 255, 0))},
            "tuxpaint-stamps-default",
            "2 of 4 pictures cannot be drawn, more than 2%; the first is town/flag: nothing but white",
        ),
    ],
)
def test_refuses_and_leaves_nothing(tmp_path: Path, files: dict[str, bytes], package: str, message: str) -> None:
    file = write_deb(tmp_path / "p.deb", files, package)
    with pytest.raises(DataError, match=message):
        build(tmp_path / "set", file, 32)
    assert [path.name for path in tmp_path.iterdir()] == ["p.deb"]


def test_a_few_that_cannot_be_drawn_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_MOST_FAILED", 0.5)
    files = stamps() | {f"{STAMPS}town/flag.png": b"no picture"}
    stats = build(tmp_path / "set", write_deb(tmp_path / "p.deb", files), 32)
    assert list(stats["failed"]) == ["town/flag"]
    assert "left out town/flag: not a readable picture" in capsys.readouterr().err
    assert "left out: `town/flag`" in (tmp_path / "set" / "README.md").read_text(encoding="utf-8")


def test_no_package_given_means_apt(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.deb, "download", lambda name, folder: package)
    assert build(tmp_path / "set", None, 32)["pictures"] == 4
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == [
        "README.md",
        "classnames.txt",
        "copyright",
        "stats.json",
        "test",
        "zeroshot_classification_templates.txt",
    ]
