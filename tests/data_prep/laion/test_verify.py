"""Tests of data_prep.laion.verify: every kind of damage is found and named, and what is sound passes."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from shard_files import (
    Members,
    downloaded,
    encoded,
    found,
    meta,
    noise,
    parts,
    reasons,
    samples,
    tampered,
    write_record,
    write_tar,
)

from data_prep.__main__ import main
from data_prep.errors import DataError
from data_prep.laion import findings as why
from data_prep.laion.duplicates import in_earlier
from data_prep.laion.journal import LINES
from data_prep.laion.verify import Options, as_json, shards_under, verify

ALONE = Options(workers=1)
KEYS = [f"{number:09d}" for number in range(4)]
ROTATED = json.dumps({"Image Orientation": "Rotated 90 CW"})


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def replaced(name: str, content: bytes, as_name: str = "") -> Members:
    """Four good samples but for one member."""
    return [(as_name or name, content) if old == name else (old, was) for old, was in samples(4)]


def picture(content: bytes, **changes: object) -> Members:
    """Four good samples but for the picture of the second, and its JSON."""
    json_ = meta(KEYS[1], "picture 1", **changes)
    return [
        (name, content if name == f"{KEYS[1]}.jpg" else json_ if name == f"{KEYS[1]}.json" else was)
        for name, was in samples(4)
    ]


def caption(content: bytes) -> Members:
    """Four good samples but for the second's caption; no JSON."""
    return [pair for pair in replaced(f"{KEYS[1]}.txt", content) if not pair[0].endswith("json")]


def exif(turn: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = turn
    return found


GOOD = samples(4)
SIXTEEN = Image.fromarray(np.random.default_rng(0).integers(0, 1 << 16, (24, 32), np.uint16))
MEMBERS: list[tuple[str, Members | list[tarfile.TarInfo | tuple[str, bytes]], str]] = [
    ("symlink", [*GOOD, member("a.txt", tarfile.SYMTYPE, "/etc/passwd")], why.MEMBER),
    ("hardlink", [*GOOD, member("a.txt", tarfile.LNKTYPE, GOOD[0][0])], why.MEMBER),
    ("device", [*GOOD, member("a.txt", tarfile.CHRTYPE)], why.MEMBER),
    ("folder", [*GOOD, member("folder", tarfile.DIRTYPE)], why.MEMBER),
    ("climbs", replaced(GOOD[1][0], b"x", "../../a.txt"), why.CLIMBS),
    ("absolute", replaced(GOOD[1][0], b"x", "/etc/a.txt"), why.CLIMBS),
    ("windows", replaced(GOOD[1][0], b"x", "..\\a.txt"), why.CLIMBS),
    ("in-a-folder", replaced(GOOD[1][0], b"x", "b/a.txt"), why.NAME),
    ("two-dots", replaced(GOOD[0][0], GOOD[0][1], "000000000.b.jpg"), why.NAME),
    ("no-suffix", replaced(GOOD[1][0], b"x", "000000000"), why.NAME),
    ("no-key", replaced(GOOD[1][0], b"x", ".txt"), why.NAME),
    ("control", replaced(GOOD[1][0], b"x", "a\x1b[2Jb.txt"), why.NAME),
    ("not-UTF-8", replaced(GOOD[1][0], b"x", "a\udcff.txt"), why.NAME),
    ("passed-over", replaced(GOOD[1][0], b"x", "__a__.txt"), why.NAME),
    ("reader's-key", [*GOOD, ("000000003.__key__", b"x")], why.NAME),
    ("reader's-URL", [*GOOD, ("000000003.__URL__", b"x")], why.NAME),
    ("reader's-bad", [*GOOD, ("000000003.__bad__", b"x")], why.NAME),
    ("pickle", [*GOOD, ("000000003.pickle", b"cos\nsystem\n")], why.EXECUTABLE),
    ("PYD", [*GOOD, ("000000003.PYD", b"x")], why.EXECUTABLE),
    ("pyd.gz", [*GOOD, ("000000003.pyd.gz", b"x")], why.EXECUTABLE),
    ("pth", [*GOOD, ("000000003.pth", b"x")], why.EXECUTABLE),
    ("twice", [*GOOD, ("000000003.json", b"{}")], why.TWICE),
    ("TWICE", [*GOOD, ("000000003.TXT", b"{}")], why.TWICE),
    ("interleaved", [GOOD[0], *GOOD[3:], *GOOD[1:3]], why.APART),
    ("key-again", [*GOOD, *GOOD[:3]], why.APART),
    ("empty", [], why.EMPTY),
    ("no-picture", GOOD[1:], why.NO_PICTURE),
    ("two-pictures", [*GOOD, ("000000003.png", encoded(noise(9), "PNG"))], why.PICTURES_TWO),
    ("no-caption", [GOOD[0], *GOOD[2:]], why.NO_CAPTION),
    ("no-JSON", [*GOOD[:2], *GOOD[3:]], why.NO_JSON),
    ("no-JSON-but-text", replaced(GOOD[2][0], b"{"), why.BAD_JSON),
    ("deep-JSON", replaced(GOOD[2][0], b"[" * 100_000), why.BAD_JSON),
    ("JSON-list", replaced(GOOD[2][0], b"[]"), why.BAD_JSON),
    ("other-key", replaced(GOOD[2][0], GOOD[5][1]), why.OTHER_JSON),
    ("other-caption", replaced(GOOD[1][0], b"picture 2"), why.OTHER_JSON),
    ("other-size", picture(encoded(noise(1, (24, 32)))), why.OTHER_JSON),
    ("other-bytes", picture(encoded(noise(1)), width=None, height=None, sha256="0" * 64), why.OTHER_JSON),
    ("JPEG-cut", picture(encoded(noise(1))[:-200]), why.UNDECODABLE),
    ("JPEG-without-end", picture(encoded(noise(1))[:-2]), why.UNDECODABLE),
    ("PNG-without-end", picture(encoded(noise(1), "PNG")[:-12]), why.UNDECODABLE),
    ("WEBP-cut", picture(encoded(noise(1), "WEBP")[:-1]), why.UNDECODABLE),
    ("empty-picture", picture(b""), why.UNDECODABLE),
    ("HTML", picture(b"<html>not found</html>"), why.UNDECODABLE),
    ("bomb", picture(encoded(Image.new("1", (12_000, 12_000)), "PNG")), why.UNDECODABLE),
    ("white", picture(encoded(Image.new("RGB", (32, 24), "white"))), why.ONE_COLOUR),
    ("grey", picture(encoded(Image.new("L", (32, 24), 77), "PNG")), why.ONE_COLOUR),
    ("lying", picture(encoded(noise(1), exif=exif(6))), why.LYING),
    ("rotation-lost", picture(encoded(noise(1)), exif=ROTATED), why.ROTATION_LOST),
    ("16-bit", picture(encoded(SIXTEEN, "PNG")), why.SIXTEEN_BITS),
    ("long-and-thin", picture(encoded(noise(1, (97, 32))), width=97, height=32), why.ASPECT),
    ("same-picture", picture(GOOD[0][1]), why.DUPLICATE),
    ("caption-not-UTF-8", caption(b"caf\xe9"), why.NOT_UTF8),
    ("caption-empty", caption(b" \n"), why.EMPTY_CAPTION),
    ("caption-NUL", caption(b"a\0b"), why.CONTROL),
    ("caption-escape", caption(b"a\x1b[2Jb"), why.CONTROL),
    ("caption-long", caption(b"ab " * 400), why.LONG_CAPTION),
]


@pytest.mark.parametrize(("members", "reason"), [pytest.param(*rest, id=name) for name, *rest in MEMBERS])
def test_damage_is_found(tmp_path: Path, members: Members, reason: str) -> None:
    write_tar(tmp_path / "a.tar", members)
    write_tar(tmp_path / "b.tar", samples(4, 10))
    result = verify(tmp_path, ALONE)
    assert [verdict.report.name for verdict in result.unsound] == ["a.tar"]
    assert reason in result.unsound[0].against
    json.dumps(as_json(result), allow_nan=False).encode("ascii")


@pytest.mark.parametrize(
    "members",
    [
        pytest.param(GOOD, id="img2dataset"),
        pytest.param([pair for pair in GOOD if not pair[0].endswith("json")], id="without-JSON"),
        pytest.param([(name.replace("jpg", "JPG"), was) for name, was in GOOD], id="JPG"),
        pytest.param([(f"{'k' * 150}{name}", was) for name, was in GOOD if "json" not in name], id="long-names"),
        pytest.param([("é" + name, was) for name, was in GOOD if "json" not in name], id="letters"),
        pytest.param(replaced(GOOD[2][0], b'{"caption": "of another kind", "width": 5}'), id="other-JSON"),
        pytest.param(picture(encoded(noise(1), exif=exif(1))), id="upright"),
        pytest.param(picture(encoded(noise(1)) + b"after the end"), id="more-behind-a-JPEG"),
        pytest.param(picture(encoded(noise(1, (24, 32))), exif=ROTATED, width=24, height=32), id="turned-already"),
        pytest.param(picture(encoded(noise(1)), exif=ROTATED, reencoded=True), id="reencoded"),
        pytest.param(picture(encoded(noise(1, (96, 32))), width=96, height=32), id="three-to-one"),
        pytest.param(caption(b"two lines\nwith\ttabs"), id="lines"),
    ],
)
def test_sound(tmp_path: Path, members: Members) -> None:
    write_tar(tmp_path / "a.tar", members)
    result = verify(tmp_path, ALONE)
    assert not result.unsound
    assert result.verdicts[0].report.samples == 4


@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"restart_marker_blocks": 2}], ids=str)
def test_a_jpeg_with_a_block_of_something_else(tmp_path: Path, options: dict[str, object]) -> None:
    whole = encoded(noise(1, (256, 256)), **options)
    other = np.random.default_rng(0).bytes(4096)
    middle = len(whole) // 2
    write_tar(tmp_path / "a.tar", picture(whole, width=256, height=256))
    assert not reasons(tmp_path)
    damaged = whole[:middle] + other + whole[middle + len(other) :]
    write_tar(tmp_path / "a.tar", picture(damaged, width=256, height=256))
    assert reasons(tmp_path) == {why.UNDECODABLE}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda tar: b"", id="nothing"),
        pytest.param(lambda tar: tar[:1000], id="in-a-picture"),
        pytest.param(lambda tar: tar[: tar.index(b"000000002.jpg")], id="between-samples"),
        pytest.param(lambda tar: tar.rstrip(b"\0") + bytes(-len(tar.rstrip(b"\0")) % 512), id="no-closing-blocks"),
        pytest.param(lambda tar: tar.replace(b"000000002.jpg", b"\xff\xff0000002.jpg", 1), id="header"),
        pytest.param(lambda tar: tar + tar, id="two-in-one"),
        pytest.param(lambda tar: tar + b"x", id="more-behind"),
        pytest.param(lambda tar: b"\x1f\x8b" + tar, id="no-tar"),
    ],
)
def test_damaged_tar(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    tampered(write_tar(tmp_path / "a.tar", GOOD), change)
    assert why.TAR in reasons(tmp_path)


def headers(path: Path) -> list[int]:
    with tarfile.open(path) as tar:
        return [info.offset for info in tar]


@settings(max_examples=60)
@given(st.data())
def test_a_bit_that_flips_in_a_header_is_found_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    shard = downloaded(folder, 0)
    whole = bytearray(shard.read_bytes())
    place = data.draw(st.sampled_from(headers(shard))) + data.draw(st.integers(0, 511))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    shard.write_bytes(whole)
    after = place % 512 in (154, 155)  # behind the checksum's digits, where nothing is said
    assert why.TAR in reasons(folder) or after


@settings(max_examples=40)
@given(st.data())
def test_any_cut_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("cut")
    shard = write_tar(folder / "a.tar", GOOD)
    needed = len(shard.read_bytes().rstrip(b"\0")) // 512 * 512 + 512 + 1024
    length = data.draw(st.one_of(st.integers(0, needed - 1), st.sampled_from([n for n in headers(shard) if n])))
    tampered(shard, lambda tar: tar[:length])
    assert why.TAR in reasons(folder)


@settings(max_examples=60)
@given(st.data())
def test_bytes_of_any_kind_are_a_finding_and_no_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    shard = write_tar(folder / "a.tar", GOOD)
    whole = bytearray(shard.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(whole) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=600))
        whole[place : place + len(patch)] = patch
    shard.write_bytes(whole)
    verify(folder, ALONE)


@pytest.mark.parametrize("negative", [-512, -1024, -(1 << 40)])
def test_a_member_of_negative_size_does_not_go_round_for_ever(tmp_path: Path, negative: int) -> None:
    info = tarfile.TarInfo("000000009.txt")
    info.size = 0
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (b"\xff" * 12)[:4] + negative.to_bytes(8, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(write_tar(tmp_path / "b.tar", GOOD).read_bytes()[:-10240] + header + bytes(1024))
    assert why.TAR in reasons(tmp_path)


def test_webdataset_loses_without_a_word_what_is_found_here(tmp_path: Path) -> None:
    cut = write_tar(tmp_path / "cut" / "a.tar", GOOD)
    tampered(cut, lambda tar: tar[: tar.index(b"000000002.jpg")])
    header = write_tar(tmp_path / "header" / "a.tar", GOOD)
    tampered(header, lambda tar: tar.replace(b"000000002.jpg", b"\xff\xff0000002.jpg", 1))
    dots = write_tar(tmp_path / "dots" / "a.tar", [(n.replace(".jpg", ".b.jpg"), was) for n, was in GOOD])
    for shard, lost in ((cut, why.TAR), (header, why.TAR), (dots, why.NAME)):
        read = [s for s in webdataset.WebDataset(str(shard), shardshuffle=False) if "jpg" in s and "txt" in s]
        assert len(read) == (0 if shard is dots else 2)
        assert lost in reasons(shard.parent)


def test_what_the_download_recorded(tmp_path: Path) -> None:
    downloaded(tmp_path, 0)
    assert not reasons(tmp_path)
    write_record(tmp_path / "00000.tar", KEYS[:3])  # one sample more than it says
    assert reasons(tmp_path, Options(workers=1, again=True)) == {why.COUNT, why.KEYS}
    write_record(tmp_path / "00000.tar", [*KEYS[:3], "000000007"])
    assert reasons(tmp_path, Options(workers=1, again=True)) == {why.KEYS}
    (tmp_path / "00000.parquet").write_bytes(b"PAR1 but no more")
    assert reasons(tmp_path, Options(workers=1, again=True)) == {why.COUNT}
    (tmp_path / "00000.parquet").unlink()
    (tmp_path / "00000_stats.json").write_text('{"successes": 5}')
    assert reasons(tmp_path, Options(workers=1, again=True)) == {why.COUNT}


def test_nothing_downloaded_is_sound_where_that_was_recorded(tmp_path: Path) -> None:
    write_record(write_tar(tmp_path / "00000.tar", []), [], KEYS)
    assert not reasons(tmp_path)


@pytest.mark.parametrize("record", ["00000.parquet", "00000_stats.json"])
@pytest.mark.parametrize("content", [None, b"", b"PAR1{"])
def test_a_shard_of_ours_without_its_record(tmp_path: Path, record: str, content: bytes | None) -> None:
    """Collected, or not yet; a copy of shards/ alone is sound."""
    tar = downloaded(tmp_path / "parts/00000", 0)
    (tmp_path / "shards").mkdir()
    for place in (tar, tmp_path / "shards/00000-00000.tar"):
        tar.rename(place)
        assert not reasons(tmp_path)
        whole = (tmp_path / "parts/00000" / record).read_bytes()
        (tmp_path / "parts/00000" / record).unlink()
        if content is not None:
            (tmp_path / "parts/00000" / record).write_bytes(content)
        assert reasons(tmp_path) == {why.RECORD if content is None else why.COUNT}
        (tmp_path / "parts/00000" / record).write_bytes(whole)
    (tmp_path / "parts/00000").rename(tmp_path / "elsewhere")
    assert not reasons(tmp_path)


def test_shares(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", picture(b"no picture"))
    assert reasons(tmp_path) == {why.UNDECODABLE}
    assert not reasons(tmp_path, Options(workers=1, max_broken=0.25))
    write_tar(tmp_path / "a.tar", caption(b""))
    assert reasons(tmp_path) == {why.EMPTY_CAPTION}
    assert reasons(tmp_path, Options(workers=1, max_flawed=0.25)) == {why.EMPTY_CAPTION}
    result = verify(tmp_path, Options(workers=1, max_flawed=0.26))
    assert not result.unsound
    assert result.counts == {why.EMPTY_CAPTION: 1}


def test_a_copy_of_a_shard(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", GOOD)
    write_tar(tmp_path / "b.tar", [(f"1{name}", was) for name, was in GOOD if "json" not in name])
    write_tar(tmp_path / "c.tar", [*samples(3, 20), *GOOD[:3]])
    result = verify(tmp_path, ALONE)
    assert [verdict.report.name for verdict in result.unsound] == ["b.tar"]
    assert result.repeated == 5


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_pictures_in_earlier_shards(at_once: int) -> None:
    draw = np.random.default_rng(0)
    shards = [draw.integers(0, 40, size, np.uint64) for size in (10, 0, 30, 20)]
    seen: set[int] = set()
    expected = []
    for shard in shards:
        expected.append(len(set(shard.tolist()) & seen))
        seen |= set(shard.tolist())
    assert in_earlier(shards, at_once) == expected
    assert in_earlier([], at_once) == []


def test_processes_find_the_same(tmp_path: Path) -> None:
    parts(tmp_path)
    alone = verify(tmp_path, ALONE)
    assert len(alone.unsound) == 2
    assert found(verify(tmp_path, Options(workers=2, again=True))) == found(alone)


def test_killed_and_started_again(tmp_path: Path) -> None:
    parts(tmp_path, 30)
    words = [sys.executable, "-m", "data_prep", "verify", str(tmp_path), "--workers", "2"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not ((tmp_path / LINES).exists() and (tmp_path / LINES).stat().st_size):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    result = verify(tmp_path, ALONE)
    assert [verdict.report.name[-9:] for verdict in result.unsound] == ["00001.tar", "00003.tar"]
    assert found(result) == found(verify(tmp_path, Options(workers=1, again=True)))


def test_another_process_verifies(tmp_path: Path) -> None:
    import fcntl

    write_tar(tmp_path / "a.tar", GOOD)
    with open(tmp_path / LINES, "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is verifying"):
            verify(tmp_path, ALONE)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", GOOD)
    (tmp_path / LINES).mkdir()
    with pytest.raises(DataError, match=r"cannot be written .*--state"):
        verify(tmp_path, ALONE)


def test_sparse_members(tmp_path: Path) -> None:
    info = tarfile.TarInfo("000000009.txt")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    content = b"1\n0\n1\n".ljust(512, b"\0")
    info.size = len(content)
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(content))
    assert why.MEMBER in reasons(tmp_path)


def test_which_files_are_shards(tmp_path: Path) -> None:
    for name in ("b/x.tar", "a.tar", "quarantine/bad.tar", ".draft/x.tar", ".y.tar", "b/quarantine/z.tar"):
        write_tar(tmp_path / name, GOOD)
    (tmp_path / "b" / "round").symlink_to(tmp_path)
    (tmp_path / "b" / "no.txt").write_text("")
    assert shards_under(tmp_path) == ["a.tar", "b/quarantine/z.tar", "b/x.tar"]
    (tmp_path / "gone.tar").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.tar")
    against = {verdict.report.name: verdict.against for verdict in verify(tmp_path, ALONE).unsound}
    assert against["gone.tar"] == {why.UNREADABLE: "it is a link to nothing"}
    assert against["pipe.tar"] == {why.UNREADABLE: "it is no regular file"}


def test_linked_folders(tmp_path: Path) -> None:
    """One of the set goes by its own name, however many links to it there are, and one from elsewhere by the first."""
    write_tar(tmp_path / "set/m/0.tar", GOOD)
    write_tar(tmp_path / "set/m/n/1.tar", GOOD)
    write_tar(tmp_path / "else/2.tar", GOOD)
    for link, target in (("a", "m"), ("z", "m"), ("m/b", "../m/n"), ("m/up", ".."), ("y", "../else"), ("x", "../else")):
        (tmp_path / "set" / link).symlink_to(target)
    assert shards_under(tmp_path / "set") == ["m/0.tar", "m/n/1.tar", "x/2.tar"]


def test_a_shard_whose_name_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / os.fsdecode(b"\xff\x1b[2J.tar")).write_bytes(b"")
    assert main(["verify", str(tmp_path), "--workers", "1"]) == 1
    assert "\\udcff\\x1b[2J.tar: tar cut or damaged" in capsys.readouterr().out
    assert main(["verify", str(tmp_path), "--workers", "1", "--json"]) == 1
    assert main(["verify", str(tmp_path), "--workers", "1", "--quarantine"]) == 1
    assert len(list((tmp_path / "quarantine").iterdir())) == 2


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards, state = tmp_path / "shards", tmp_path / "state"
    write_tar(shards / "a.tar", GOOD)
    assert main(["verify", str(shards), "--workers", "1", "--state", str(state)]) == 0
    assert "1 of 1 shard sound; 4 samples in all" in capsys.readouterr().out
    assert [path.name for path in shards.iterdir()] == ["a.tar"]
    tampered(shards / "a.tar", lambda tar: tar[:1000])
    assert main(["verify", str(shards), "--workers", "1", "--state", str(state), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["unsound"]["a.tar"].keys() >= {why.TAR}
    assert "error: 1 of 1 shard unsound" in err
    assert main(["verify", str(state)]) == 1
    assert "has no *.tar below it" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "nowhere")]) == 1
    assert "is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--workers", "0"], ["--max-broken", "2"], ["--max-aspect", "0.5"]])
def test_wrong_usage(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(tmp_path), *words])
    assert caught.value.code == 2


@pytest.mark.parametrize("rows", [{"key": KEYS}, {"key": [None] * 4, "status": ["success"] * 4}, {"a": [1]}])
def test_tables_of_any_kind(tmp_path: Path, rows: dict[str, list[object]]) -> None:
    downloaded(tmp_path, 0)
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "00000.parquet")
    assert reasons(tmp_path) <= {why.KEYS, why.COUNT}


def test_a_table_of_far_too_many_rows_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloaded(tmp_path, 0)
    monkeypatch.setattr("data_prep.laion.shard.MOST_ROWS", 4)
    assert reasons(tmp_path) == {why.COUNT}
