"""Tests of what happens to verified shards: collected, put aside, adopted, checked; and that a kill loses none."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import webdataset
from shard_files import downloaded, samples, write_record, write_tar

from data_prep.__main__ import main
from data_prep.errors import DataError
from data_prep.laion import collect as collect_module
from data_prep.laion import findings as why
from data_prep.laion.adopt import adopt
from data_prep.laion.alone import alone
from data_prep.laion.check import check
from data_prep.laion.collect import collect
from data_prep.laion.names import collected_as, downloaded_as
from data_prep.laion.verify import Options, verify
from data_prep.manifest import MANIFEST, ShardEntry, read_manifest, write_manifest

ALONE = Options(workers=1)


def download(root: Path) -> dict[str, bytes]:
    """Two parts and a retry with a damaged shard, an empty one and an unfinished one; the sound ones by new name."""
    first = root / "parts" / "00000"
    sound = [downloaded(first, 0), downloaded(root / "parts/00000-retry1", 5), downloaded(root / "parts/00001", 8)]
    damaged = downloaded(first, 1)
    damaged.write_bytes(damaged.read_bytes()[:5000])
    write_record(write_tar(first / "00002.tar", []), [], ["000020000"])
    (first / "00003.tar").write_bytes(b"half")
    names = ["00000-00000.tar", "00000r1-00005.tar", "00001-00008.tar"]
    return {name: path.read_bytes() for name, path in zip(names, sound, strict=True)}


def tars(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.tar"))


def test_names() -> None:
    for old, new in (
        ("parts/00001/00002.tar", "shards/00001-00002.tar"),
        ("parts/00001-retry2/00000.tar", "shards/00001r2-00000.tar"),
    ):
        assert collected_as(old) == new
        assert downloaded_as(new) == old
    for other in ("00000.tar", "shards/a.tar", "shards/a/0-1.tar", "shards/part-00001.tar", "parts/00000/00000.tar"):
        assert downloaded_as(other) is None


def test_collect(tmp_path: Path) -> None:
    sound = download(tmp_path)
    result = collect(tmp_path, ALONE)
    assert [verdict.report.name for verdict in result.unsound] == ["parts/00000/00001.tar"]
    assert tars(tmp_path) == sorted(
        [
            "parts/00000/00003.tar",
            "parts/00000/00002.tar",  # which nothing came of
            "quarantine/parts-00000-00001.tar",
            *(f"shards/{name}" for name in sound),
        ]
    )
    shards = tmp_path / "shards"
    entries = read_manifest(shards)
    assert {entry.shard: entry.sha256 for entry in entries} == {
        name: hashlib.sha256(content).hexdigest() for name, content in sound.items()
    }
    assert [(entry.samples, entry.failures) for entry in entries] == [(4, {"HTTP Error 404: Not Found": 1})] * 3
    assert json.loads((shards / "sizes.json").read_text()) == dict.fromkeys(sorted(sound), 4)
    shutil.copytree(shards, tmp_path / "copy")
    assert not verify(tmp_path / "copy", ALONE).unsound
    why_not = json.loads((tmp_path / "quarantine/parts-00000-00001.json").read_text())
    assert why_not["shard"] == "parts/00000/00001.tar"
    assert why.TAR in why_not["against"]
    assert not (tmp_path / "parts/00000/00001_stats.json").exists()
    assert (tmp_path / "parts/00000/00000_stats.json").exists()


def test_an_empty_shard_that_was_collected_goes_back(tmp_path: Path) -> None:
    """A copy of `shards/` would be unsound with it."""
    sound = download(tmp_path)
    write_record(write_tar(tmp_path / "parts/00000-retry1/00000.tar", []), [], ["000000000"])
    collect(tmp_path, ALONE)
    for name in ("parts/00000/00002.tar", "parts/00000-retry1/00000.tar"):
        (tmp_path / name).rename(tmp_path / collected_as(name))
    manifest = (tmp_path / "shards" / MANIFEST).read_bytes()
    assert not collect(tmp_path, ALONE).unsound
    assert {path.name for path in (tmp_path / "shards").glob("*.tar")} == sound.keys()
    assert {"parts/00000/00002.tar", "parts/00000-retry1/00000.tar"} <= set(tars(tmp_path))
    assert (tmp_path / "shards" / MANIFEST).read_bytes() == manifest
    assert collect(tmp_path, ALONE).bytes_read == 0
    shutil.copytree(tmp_path / "shards", tmp_path / "copy")
    assert not verify(tmp_path / "copy", ALONE).unsound


def test_collect_again_reads_nothing_and_takes_what_was_made_again(tmp_path: Path) -> None:
    download(tmp_path)
    collect(tmp_path, ALONE)
    manifest = (tmp_path / "shards" / MANIFEST).read_bytes()
    again = collect(tmp_path, ALONE)
    assert (again.bytes_read, again.unsound) == (0, [])
    assert (tmp_path / "shards" / MANIFEST).read_bytes() == manifest
    downloaded(tmp_path / "parts/00000", 1)
    assert collect(tmp_path, ALONE).samples_read == 4
    assert len(read_manifest(tmp_path / "shards")) == 4


def test_collected_shards_are_compared_with_their_tables_too(tmp_path: Path) -> None:
    download(tmp_path)
    collect(tmp_path, ALONE)
    (tmp_path / "parts/00000/00003.tar").unlink()
    (tmp_path / "verify.jsonl").unlink()
    assert not verify(tmp_path, ALONE).unsound  # one of them holds nothing, as its table says
    write_tar(tmp_path / "shards/00000-00000.tar", samples(3))
    (verdict,) = verify(tmp_path, ALONE).unsound
    assert verdict.against.keys() >= {why.KEYS, why.COUNT}


class KilledError(BaseException):
    """Stands for a kill: nothing after it is done."""


@pytest.mark.parametrize("after", range(12))
def test_killed_anywhere_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    download(tmp_path / "whole")
    collect(tmp_path / "whole", ALONE)
    root = tmp_path / "killed"
    download(root)
    left = after

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def rename(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                raise KilledError
            left -= 1
            return real(*arguments)

        return rename

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dying(os.rename))
        patch.setattr(os, "replace", dying(os.replace))
        try:
            collect(root, ALONE)
        except KilledError:
            pass
        else:
            assert after > 8
    collect(root, ALONE)
    assert tars(root) == tars(tmp_path / "whole")
    for name in (MANIFEST, "sizes.json"):
        assert (root / "shards" / name).read_bytes() == (tmp_path / "whole/shards" / name).read_bytes()


def test_a_collected_shard_that_rots_is_put_aside_and_made_again(tmp_path: Path) -> None:
    download(tmp_path)
    collect(tmp_path, ALONE)
    rotten = tmp_path / "shards/00000-00000.tar"
    content = bytearray(rotten.read_bytes())
    content[700] ^= 1
    rotten.write_bytes(content)
    assert main(["verify", str(tmp_path), "--workers", "1", "--quarantine"]) == 1
    assert (tmp_path / "quarantine/shards-00000-00000.tar").exists()
    assert not (tmp_path / "parts/00000/00000_stats.json").exists()
    assert "00000-00000.tar" not in [entry.shard for entry in read_manifest(tmp_path / "shards")]
    downloaded(tmp_path / "parts/00000", 0)
    collect(tmp_path, ALONE)
    assert "00000-00000.tar" in [entry.shard for entry in read_manifest(tmp_path / "shards")]


def test_a_collected_shard_that_is_gone_is_made_again(tmp_path: Path) -> None:
    download(tmp_path)
    collect(tmp_path, ALONE)
    (tmp_path / "shards/00000-00000.tar").unlink()
    assert "shards/00000-00000.tar" in [verdict.report.name for verdict in collect(tmp_path, ALONE).unsound]
    assert not (tmp_path / "parts/00000/00000_stats.json").exists()
    assert [entry.shard for entry in read_manifest(tmp_path / "shards")] == ["00000r1-00005.tar", "00001-00008.tar"]
    assert not collect(tmp_path, ALONE).unsound


def test_a_collected_shard_that_is_gone_and_was_made_again_already(tmp_path: Path) -> None:
    download(tmp_path)
    collect(tmp_path, ALONE)
    manifest = (tmp_path / "shards" / MANIFEST).read_bytes()
    (tmp_path / "shards/00000-00000.tar").unlink()
    table = downloaded(tmp_path / "parts/00000", 0).with_suffix(".parquet")
    assert [verdict.report.name for verdict in collect(tmp_path, ALONE).unsound] == ["shards/00000-00000.tar"]
    assert table.exists()
    assert (tmp_path / "parts/00000/00000_stats.json").exists()
    assert (tmp_path / "shards" / MANIFEST).read_bytes() == manifest
    assert not collect(tmp_path, ALONE).unsound


def test_put_aside_again_and_again(tmp_path: Path) -> None:
    """Every reason is kept, of the shards the newest two."""
    folder = tmp_path / "quarantine"
    write_tar(tmp_path / "b/a.tar", samples(4)).write_bytes(b"another")
    for number in range(4):
        downloaded(tmp_path / "b-", 0)  # a table and statistics beside it
        (tmp_path / "b-/00000.tar").rename(tmp_path / "b-/a.tar")
        for path in (tmp_path / "b-").glob("00000*"):
            path.rename(path.with_name(path.name.replace("00000", "a")))
        (tmp_path / "b-/a.tar").write_bytes(b"bad %d" % number)
        (tmp_path / "b--a.tar").write_bytes(b"of the same name in the quarantine")
        words = ["verify", str(tmp_path), "--workers", "1", "--again", "--quarantine"]
        assert main(words) == 1
    assert tars(tmp_path) == [f"quarantine/{name}.tar" for name in ("b--a.5", "b--a.6", "b--a.7", "b--a.8", "b-a")]
    by_shard: dict[str, list[bytes]] = {}
    for reason in sorted(folder.glob("*.json")):
        if not reason.name.endswith("_stats.json"):
            by_shard.setdefault(json.loads(reason.read_text())["shard"], []).append(reason.name.encode())
    assert {shard: len(reasons) for shard, reasons in by_shard.items()} == {"b--a.tar": 4, "b-/a.tar": 4, "b/a.tar": 1}
    left = {path.read_bytes() for path in folder.glob("*.tar")}
    assert left == {b"another", b"bad 2", b"bad 3", b"of the same name in the quarantine"}
    assert len(list(folder.glob("*.parquet"))) == len(list(folder.glob("*_stats.json"))) == 2


def test_a_name_that_is_collected_is_not_overwritten(tmp_path: Path) -> None:
    download(tmp_path)
    collect(tmp_path, ALONE)
    downloaded(tmp_path / "parts/00000", 0)
    with pytest.raises(DataError, match="was downloaded again though"):
        collect(tmp_path, Options(workers=1, max_flawed=1.0))


def test_folders_on_another_disk(tmp_path: Path) -> None:
    """Nothing can be moved there, and nothing is; once all is collected shards/ may be linked elsewhere."""
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second disk")
    sound = download(tmp_path)
    before = tars(tmp_path)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        (tmp_path / "shards").symlink_to(other)
        with pytest.raises(DataError, match=f"{tmp_path / 'shards'} is on another disk"):
            collect(tmp_path, ALONE)
        assert tars(tmp_path) == before
        (tmp_path / "shards").unlink()
        collect(tmp_path, ALONE)
        shutil.copytree(tmp_path / "shards", Path(other) / "shards")
        shutil.rmtree(tmp_path / "shards")
        (tmp_path / "shards").symlink_to(Path(other) / "shards")
        assert not collect(tmp_path, ALONE).unsound
        assert {entry.shard for entry in read_manifest(tmp_path / "shards")} == sound.keys()


def test_a_shard_that_changed_since_it_was_verified_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(tmp_path)
    shard = tmp_path / "parts/00001/00008.tar"

    def verify_and_write(*arguments: Any) -> Any:
        result = verify(*arguments)
        with open(shard, "ab") as file:
            file.write(b"x")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(collect_module, "verify", verify_and_write)
        with pytest.raises(DataError, match=f"{shard} was written to while it was verified"):
            collect(tmp_path, ALONE)
    assert [verdict.report.name for verdict in collect(tmp_path, ALONE).unsound] == ["parts/00001/00008.tar"]


def test_while_it_is_downloaded_nothing_is_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = download(tmp_path)
    before = tars(tmp_path)
    with alone(tmp_path):
        with pytest.raises(DataError, match="another process is downloading to"):
            collect(tmp_path, ALONE)
        for option in ("--quarantine", "--reencode"):
            assert main(["verify", str(tmp_path), "--workers", "1", option]) == 1
            assert "another process is downloading to" in capsys.readouterr().err
        assert main(["verify", str(tmp_path), "--workers", "1"]) == 1  # looking is free
        assert "4 of 6 shards sound" in capsys.readouterr().out
    assert tars(tmp_path) == before
    collect(tmp_path, ALONE)
    assert {path.name for path in (tmp_path / "shards").glob("*.tar")} >= sound.keys()


def test_nothing_to_collect(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no downloaded shard"):
        collect(tmp_path, ALONE)
    write_record(write_tar(tmp_path / "parts/00000/00000.tar", []), [], ["000000000"])
    with pytest.raises(DataError, match="no sound shard holds a sample"):
        collect(tmp_path, ALONE)


def test_nothing_sound(tmp_path: Path) -> None:
    shard = downloaded(tmp_path / "parts/00000", 0)
    whole = shard.read_bytes()
    shard.write_bytes(b"bad")
    assert len(collect(tmp_path, ALONE).unsound) == 1
    assert list((tmp_path / "shards").iterdir()) == []
    downloaded(tmp_path / "parts/00000", 0).write_bytes(whole)
    assert not collect(tmp_path, ALONE).unsound
    assert len(read_manifest(tmp_path / "shards")) == 1


def theirs(root: Path) -> dict[str, bytes]:
    """Shards that plain webdataset wrote, in folders."""
    for number, name in enumerate(("a/0.tar", "a/1.tar", "b/c/0.tar")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with webdataset.TarWriter(str(root / name)) as writer:
            members = samples(3, 10 * number)
            for first in range(0, len(members), 3):
                jpg, txt, _ = (content for _, content in members[first : first + 3])
                writer.write({"__key__": members[first][0][:-4], "jpg": jpg, "txt": txt.decode()})
    return {name: (root / name).read_bytes() for name in tars(root)}


def test_adopt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = theirs(tmp_path)
    assert main(["manifest", str(tmp_path), "--output", str(tmp_path / MANIFEST), "--workers", "1"]) == 0
    assert "3 of 3 shards sound; 9 samples in all" in capsys.readouterr().out
    assert [(entry.shard, entry.samples) for entry in read_manifest(tmp_path)] == [(name, 3) for name in before]
    assert json.loads((tmp_path / "a/sizes.json").read_text()) == {"0.tar": 3, "1.tar": 3}  # as OpenCLIP looks them up
    assert json.loads((tmp_path / "b/c/sizes.json").read_text()) == {"0.tar": 3}
    assert {name: (tmp_path / name).read_bytes() for name in tars(tmp_path)} == before
    assert main(["manifest", str(tmp_path), "--output", str(tmp_path / MANIFEST), "--workers", "1"]) == 0


def test_adopt_from_elsewhere(tmp_path: Path) -> None:
    before = theirs(tmp_path / "theirs")
    for _ in range(2):
        adopt(tmp_path / "theirs", tmp_path / "ours" / MANIFEST, ALONE, leave_out=False)
    ours = tmp_path / "ours"
    assert {entry.shard: (ours / entry.shard).read_bytes() for entry in read_manifest(ours)} == before
    assert (ours / "a/0.tar").is_symlink()
    assert [path.name for path in (tmp_path / "theirs").rglob("*") if path.suffix != ".tar" and path.is_file()] == []
    assert verify(ours, ALONE).bytes_read == 0
    adopt(tmp_path / "theirs", tmp_path / MANIFEST, ALONE, leave_out=False)
    assert [entry.shard for entry in read_manifest(tmp_path)] == [f"theirs/{name}" for name in before]
    (ours / "a/0.tar").unlink()
    (ours / "a/0.tar").write_bytes(b"something else")
    with pytest.raises(DataError, match="is there and no link"):
        adopt(tmp_path / "theirs", ours / MANIFEST, ALONE, leave_out=False)
    with pytest.raises(DataError, match="is inside"):
        adopt(tmp_path / "theirs", tmp_path / "theirs/a/list" / MANIFEST, ALONE, leave_out=False)


def test_adopt_refuses_damage_unless_it_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs(tmp_path)
    (tmp_path / "a/1.tar").write_bytes((tmp_path / "a/1.tar").read_bytes()[:3000])
    words = ["manifest", str(tmp_path), "--output", str(tmp_path / MANIFEST), "--workers", "1"]
    assert main(words) == 1
    assert "error: 1 of 3 shards unsound" in capsys.readouterr().err
    assert not (tmp_path / MANIFEST).exists()
    assert main([*words, "--leave-out"]) == 0
    assert [entry.shard for entry in read_manifest(tmp_path)] == ["a/0.tar", "b/c/0.tar"]


@pytest.mark.parametrize("name", ["notes.txt", "manifest.jsonl", "a/sizes.json"])
def test_adopt_replaces_no_file_of_others(tmp_path: Path, name: str) -> None:
    theirs(tmp_path)
    file = tmp_path / ("manifest.jsonl" if name == "a/sizes.json" else name)
    (tmp_path / name).touch()
    adopt(tmp_path, file, ALONE, leave_out=False)  # an empty file is nobody's
    adopt(tmp_path, file, ALONE, leave_out=False)  # and this is ours
    for content in (b'{"0.tar": 3, "1.tar": 3}', b"buy milk\n", b"\xff\n{}", b'["shard"]'):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name} was not written by data_prep and would be replaced"):
            adopt(tmp_path, file, ALONE, leave_out=False)
        assert (tmp_path / name).read_bytes() == content


def test_a_manifest_of_others_is_told_or_passed_over(tmp_path: Path) -> None:
    before = theirs(tmp_path / "theirs")
    own = tmp_path / "theirs" / MANIFEST
    own.write_text('{"name": "a/0.tar", "rows": 3}\n')
    with pytest.raises(DataError, match="line 1: 'shard' is missing; is it a manifest of data_prep"):
        verify(tmp_path / "theirs", ALONE)
    adopt(tmp_path / "theirs", tmp_path / "ours" / MANIFEST, ALONE, leave_out=False)
    assert [entry.shard for entry in read_manifest(tmp_path / "ours")] == list(before)
    adopt(tmp_path / "theirs", tmp_path / "theirs/list.jsonl", ALONE, leave_out=False)
    assert own.read_text() == '{"name": "a/0.tar", "rows": 3}\n'


def test_adopt_of_no_shards_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no folder"):
        adopt(tmp_path / "typo", tmp_path / "typo" / MANIFEST, ALONE, leave_out=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no \*\.tar"):
        adopt(tmp_path / "empty", tmp_path / "ours" / MANIFEST, ALONE, leave_out=False)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs(tmp_path)
    adopt(tmp_path, tmp_path / MANIFEST, ALONE, leave_out=False)
    for place in (tmp_path, tmp_path / MANIFEST):
        assert main(["check", str(place), "--workers", "1"]) == 0
        assert "3 of 3 shards as recorded (9 samples" in capsys.readouterr().out
    content = bytearray((tmp_path / "a/0.tar").read_bytes())
    content[-1] ^= 1
    (tmp_path / "a/0.tar").write_bytes(content)
    with open(tmp_path / "a/1.tar", "ab") as file:
        file.write(b"x")
    (tmp_path / "b/c/0.tar").unlink()
    for workers in (1, 2):
        wrong = check(tmp_path, workers)["wrong"]
        assert list(wrong) == ["a/0.tar", "a/1.tar", "b/c/0.tar"]
        assert wrong["a/0.tar"].startswith("has SHA-256")
        assert wrong["a/1.tar"].endswith(f"recorded are {len(content)}")
        assert wrong["b/c/0.tar"] == "is missing"
    assert main(["check", str(tmp_path), "--workers", "1", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["wrong"] == wrong
    assert "error: 3 of 3 shards not as recorded" in err


def test_check_of_a_shard_whose_name_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(tmp_path, [ShardEntry("\udcff\x7f.tar", 3, "0" * 64, 1)])
    assert main(["check", str(tmp_path), "--workers", "1"]) == 1
    assert "\\udcff\\x7f.tar is missing" in capsys.readouterr().out


def test_check_of_no_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 1
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / MANIFEST).write_bytes(b"\xff")
    assert main(["check", str(tmp_path)]) == 1
    assert "is not UTF-8" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["check", str(tmp_path), "--workers", "0"])
    assert caught.value.code == 2
