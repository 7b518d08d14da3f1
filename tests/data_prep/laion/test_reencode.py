"""Tests of `verify --reencode`: pictures come out as a person would see them, and nothing else changes."""

import io
import json
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from shard_files import encoded, meta, noise, samples, write_tar

from data_prep.__main__ import main
from data_prep.errors import DataError
from data_prep.laion import findings as why
from data_prep.laion import renewed
from data_prep.laion.adopt import adopt
from data_prep.laion.reencode import reencode
from data_prep.laion.verify import Options, verify
from data_prep.manifest import MANIFEST, parse_manifest, read_manifest, sha256_file

ALONE = Options(workers=1)
KEY = "000000001"
# Of EXIF orientation n, where the picture's first row and column are, in exifread's words.
WORDS = [
    "Horizontal (normal)",
    "Mirrored horizontal",
    "Rotated 180",
    "Mirrored vertical",
    "Mirrored horizontal then rotated 90 CCW",
    "Rotated 90 CW",
    "Mirrored horizontal then rotated 90 CW",
    "Rotated 90 CCW",
]


def smooth(size: tuple[int, int] = (48, 32)) -> Image.Image:
    """A picture that JPEG keeps nearly as it is, each corner of another colour."""
    corners = np.array([[[250, 20, 20], [20, 250, 20]], [[20, 20, 250], [240, 240, 20]]], np.uint8)
    return Image.fromarray(corners).resize(size, Image.Resampling.BILINEAR)


def tagged(image: Image.Image, turn: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = turn
    return encoded(image, quality=95, exif=exif)


def shard(path: Path, content: bytes, **fields: object) -> Path:
    """Four samples; the second has this picture, and these fields in its JSON."""
    members = dict(samples(4))
    members[f"{KEY}.jpg"] = content
    members[f"{KEY}.json"] = meta(KEY, "picture 1", **fields)
    return write_tar(path, list(members.items()))


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]


def far(image: Image.Image, other: Image.Image) -> float:
    assert image.size == other.size
    return float(np.abs(np.asarray(image).astype(int) - np.asarray(other)).mean())


@pytest.mark.parametrize("turn", range(2, 9))
def test_a_kept_tag(tmp_path: Path, turn: int) -> None:
    content = tagged(smooth(), turn)
    before = read(shard(tmp_path / "a.tar", content, width=48, height=32))
    assert reencode(tmp_path / "a.tar") == 1
    after = read(tmp_path / "a.tar")
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    found = Image.open(io.BytesIO(after[f"{KEY}.jpg"]))
    assert far(found, upright) < 3
    assert found.getexif().get(0x0112, 1) == 1
    said = json.loads(after[f"{KEY}.json"])
    assert (said["width"], said["height"], said["reencoded"]) == (*upright.size, True)
    changed = {name for name in before if before[name] != after[name]}
    assert (list(after), changed) == (list(before), {f"{KEY}.jpg", f"{KEY}.json"})
    assert not verify(tmp_path, ALONE).unsound


@pytest.mark.parametrize("turn", range(2, 9))
def test_a_lost_tag(tmp_path: Path, turn: int) -> None:
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(tagged(smooth(), turn))))
    fields = {"width": 48, "height": 32, "exif": json.dumps({"Image Orientation": WORDS[turn - 1]})}
    shard(tmp_path / "a.tar", encoded(smooth(), quality=95), **fields)
    assert why.ROTATION_LOST in verify(tmp_path, ALONE).counts
    assert reencode(tmp_path / "a.tar") == 1
    assert far(Image.open(io.BytesIO(read(tmp_path / "a.tar")[f"{KEY}.jpg"])), upright) < 3
    assert not verify(tmp_path, ALONE).counts
    assert reencode(tmp_path / "a.tar") == 0


def test_sixteen_bits(tmp_path: Path) -> None:
    grey = smooth().convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    members = [pair for pair in samples(4) if not pair[0].startswith(KEY)]
    members += [(f"{KEY}.PNG", encoded(deep, "PNG")), (f"{KEY}.txt", b"grey")]
    write_tar(tmp_path / "a.tar", [pair for pair in members if "json" not in pair[0]])
    assert reencode(tmp_path / "a.tar") == 1
    found = Image.open(io.BytesIO(read(tmp_path / "a.tar")[f"{KEY}.jpg"]))
    assert far(found.convert("L"), grey) < 3
    assert not verify(tmp_path, ALONE).unsound


def test_the_bytes_of_the_other_samples_stay_with_their_headers(tmp_path: Path) -> None:
    whole = shard(tmp_path / "a.tar", tagged(noise(1), 3)).read_bytes()
    reencode(tmp_path / "a.tar")
    first = (tmp_path / "a.tar").read_bytes()
    assert first.startswith(whole[: whole.index(f"{KEY}.jpg".encode())])
    last = whole[whole.index(b"000000002.jpg") :].rstrip(b"\0")
    assert first.rstrip(b"\0").endswith(last)
    shard(tmp_path / "a.tar", tagged(noise(1), 3))
    reencode(tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == first


def test_the_mode_stays_and_what_a_link_leads_to(tmp_path: Path) -> None:
    theirs = shard(tmp_path / "theirs.tar", tagged(noise(1), 3))
    theirs.chmod(0o640)
    before = theirs.read_bytes()
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/a.tar").symlink_to(theirs)
    assert reencode(tmp_path / "ours/a.tar") == 1
    found = (tmp_path / "ours/a.tar").lstat()
    assert (stat.S_ISREG(found.st_mode), stat.S_IMODE(found.st_mode)) == (True, 0o640)
    assert theirs.read_bytes() == before


@pytest.mark.parametrize(
    "fields",
    [{"mtime": "nan"}, {"mtime": "inf"}, {"mtime": "1e30"}, {"mtime": "-5"}, {"uid": "9" * 30}, {"gid": "-1"}],
    ids=str,
)
def test_headers_of_any_numbers(tmp_path: Path, fields: dict[str, str]) -> None:
    """pax headers hold numbers that no plain header has room for."""
    members = dict(samples(4)) | {f"{KEY}.jpg": tagged(noise(1), 6)}
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), fields
            tar.addfile(info, io.BytesIO(content))
    assert reencode(tmp_path / "a.tar") == 1
    assert list(read(tmp_path / "a.tar")) == list(members)
    assert not verify(tmp_path, ALONE).counts


def test_long_names(tmp_path: Path) -> None:
    members = [(f"{'k' * 150}{name}", was) for name, was in samples(3) if "json" not in name]
    members[2] = (members[2][0], tagged(noise(1), 6))
    write_tar(tmp_path / "a.tar", members)
    assert reencode(tmp_path / "a.tar") == 1
    assert list(read(tmp_path / "a.tar")) == [name for name, _ in members]


def test_a_damaged_shard_stays_as_it_is(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", tagged(noise(1), 6))
    path.write_bytes(path.read_bytes()[:-5000])
    before = path.read_bytes()
    with pytest.raises(DataError, match="cut short"):
        reencode(tmp_path / "a.tar")
    assert path.read_bytes() == before
    assert main(["verify", str(tmp_path), "--workers", "1", "--reencode"]) == 1
    assert path.read_bytes() == before


def test_broken_samples_stay_and_the_rest_is_repaired(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", tagged(noise(1), 6))
    members = [(name, b"no picture" if name == "000000002.jpg" else was) for name, was in read(path).items()]
    write_tar(path, members)
    assert main(["verify", str(tmp_path), "--workers", "1", "--reencode"]) == 1
    assert verify(tmp_path, ALONE).counts == {why.UNDECODABLE: 1}
    assert read(path)["000000002.jpg"] == b"no picture"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tar(tmp_path / "0.tar", samples(4, 40))
    shard(tmp_path / "1.tar", tagged(noise(1), 6))
    loose = Options(workers=1, max_flawed=1.0)
    adopt(tmp_path, tmp_path / MANIFEST, loose, leave_out=False)
    before = read_manifest(tmp_path)
    words = ["verify", str(tmp_path), "--workers", "2", "--max-flawed", "0.01"]
    assert main(words) == 1
    assert f"1.tar: {why.LYING} (000000001)" in capsys.readouterr().out
    assert main([*words, "--reencode"]) == 0
    after = read_manifest(tmp_path)
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert [entry.samples for entry in after] == [4, 4]
    assert main(["check", str(tmp_path), "--workers", "1"]) == 0
    assert main([*words, "--reencode"]) == 0
    assert read_manifest(tmp_path) == after


STOPPED = """
import os, signal, sys
from data_prep.__main__ import main

def stop(when, target):
    if (when, target.name) == (sys.argv[2], "b.tar"):
        os.kill(os.getpid(), int(sys.argv[3]))

def replace(source, target, replace=os.replace):
    stop("before", target)
    replace(source, target)
    stop("after", target)

os.replace = replace
sys.exit(main(["verify", sys.argv[1], "--workers", "1", "--reencode"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("when", ["before", "after"])
def test_stopped_and_started_again(tmp_path: Path, when: str, number: int) -> None:
    """Between two shards, before or after the second of three is put in place."""
    for name in "abc":
        shard(tmp_path / f"{name}.tar", tagged(noise(ord(name)), 6))
    write_tar(tmp_path / "d.tar", samples(4, 40))
    adopt(tmp_path, tmp_path / MANIFEST, Options(workers=1, max_flawed=1.0), leave_out=False)
    words = [sys.executable, "-c", STOPPED, tmp_path, when, str(int(number))]
    done = subprocess.run(words, cwd=Path(__file__).parents[3], capture_output=True, timeout=60, check=False)
    assert done.returncode == (130 if number == signal.SIGINT else -number)
    assert main(["verify", str(tmp_path), "--workers", "1", "--reencode"]) == 0
    assert [entry.shard for entry in read_manifest(tmp_path)] == ["a.tar", "b.tar", "c.tar", "d.tar"]
    assert main(["check", str(tmp_path), "--workers", "1"]) == 0
    assert not verify(tmp_path, ALONE).counts
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", tagged(noise(1), 6))
    with renewed.alone(tmp_path, []):
        assert main(["verify", str(tmp_path), "--workers", "1", "--reencode"]) == 1


def test_a_manifest_that_names_a_missing_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stays unsound, and the re-encoded one is named as it is now."""
    shard(tmp_path / "a.tar", tagged(noise(1), 6))
    write_tar(tmp_path / "b.tar", samples(4, 40))
    adopt(tmp_path, tmp_path / MANIFEST, Options(workers=1, max_flawed=1.0), leave_out=False)
    (tmp_path / "b.tar").unlink()
    assert main(["verify", str(tmp_path), "--workers", "1", "--reencode"]) == 1
    assert "error: 1 of 2 shards unsound" in capsys.readouterr().err
    entries = parse_manifest((tmp_path / MANIFEST).read_text(), MANIFEST)
    assert [entry.shard for entry in entries] == ["a.tar", "b.tar"]
    assert entries[0].sha256 == sha256_file(tmp_path / "a.tar")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("under", [".", "shards"])
def test_stopped_below_or_above_and_verified_elsewhere(tmp_path: Path, under: str, number: int) -> None:
    """The log stands beside the manifest, so that it does not matter which folder the commands are given."""
    (tmp_path / "shards").mkdir()
    for name in "abc":
        shard(tmp_path / f"shards/{name}.tar", tagged(noise(ord(name)), 6))
    for folder in (tmp_path, tmp_path / "shards"):  # one above, one beside
        adopt(tmp_path / "shards", folder / MANIFEST, Options(workers=1, max_flawed=1.0), leave_out=False)
    words = [sys.executable, "-c", STOPPED, tmp_path / under, "after", str(int(number))]
    done = subprocess.run(words, cwd=Path(__file__).parents[3], capture_output=True, timeout=60, check=False)
    assert done.returncode == (130 if number == signal.SIGINT else -number)
    other = tmp_path if under == "shards" else tmp_path / "shards"
    words = ["verify", str(other), "--workers", "1", "--quarantine", "--max-flawed", "1"]
    assert main(words) == 0
    for folder in (tmp_path, tmp_path / "shards"):
        assert len(read_manifest(folder)) == 3
        assert main(["check", str(folder), "--workers", "1"]) == 0
        assert not (folder / renewed.LOG).exists()


def test_manifests_above_and_through_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    shard(tmp_path / "a/0.tar", tagged(noise(1), 6))
    write_tar(tmp_path / "a/1.tar", samples(4, 40))
    adopt(tmp_path, tmp_path / MANIFEST, Options(workers=1, max_flawed=1.0), leave_out=False)
    (tmp_path / "b").symlink_to("a")
    (tmp_path / MANIFEST).write_text((tmp_path / MANIFEST).read_text().replace("a/0.tar", "b/0.tar"))
    assert main(["verify", str(tmp_path / "a"), "--workers", "1", "--reencode"]) == 0
    assert [entry.shard for entry in read_manifest(tmp_path)] == ["b/0.tar", "a/1.tar"]
    assert main(["check", str(tmp_path), "--workers", "1"]) == 0
    assert main(["verify", str(tmp_path), "--workers", "1"]) == 0
    (tmp_path / MANIFEST).write_text((tmp_path / MANIFEST).read_text().replace("a/1.tar", "a/0.tar"))
    assert main(["verify", str(tmp_path), "--workers", "1"]) == 1  # one file by two names


def test_a_copy_with_its_log(tmp_path: Path) -> None:
    """Made between a kill and the next verification, keeping times or not."""
    (tmp_path / "set").mkdir()
    for name in "abc":
        shard(tmp_path / f"set/{name}.tar", tagged(noise(ord(name)), 6))
    adopt(tmp_path / "set", tmp_path / "set" / MANIFEST, Options(workers=1, max_flawed=1.0), leave_out=False)
    words = [sys.executable, "-c", STOPPED, tmp_path / "set", "after", str(int(signal.SIGKILL))]
    subprocess.run(words, cwd=Path(__file__).parents[3], capture_output=True, timeout=60, check=False)
    for copy in (shutil.copytree, partial(shutil.copytree, copy_function=shutil.copyfile)):
        copy(tmp_path / "set", tmp_path / "copy")
        words = ["verify", str(tmp_path / "copy"), "--workers", "1", "--quarantine", "--max-flawed", "1"]
        assert main(words) == 0
        assert len(read_manifest(tmp_path / "copy")) == 3
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.parametrize("damage", [b"[" * 100_000, b"\xff\xfe", b'deadbeef {"shard": "a.tar"}\n'])
def test_a_damaged_log_is_passed_over(tmp_path: Path, damage: bytes) -> None:
    write_tar(tmp_path / "a.tar", samples(4, 40))
    adopt(tmp_path, tmp_path / MANIFEST, Options(workers=1), leave_out=False)
    (tmp_path / renewed.LOG).write_bytes(damage)
    assert main(["verify", str(tmp_path), "--workers", "1"]) == 0
    assert not (tmp_path / renewed.LOG).exists()
