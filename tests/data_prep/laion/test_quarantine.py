"""Tests of `verify --quarantine` beside files that it did not write; what it does with shards is in test_collect.py."""

import json
from pathlib import Path

import pytest
from shard_files import samples, write_tar

from data_prep.__main__ import main
from data_prep.laion.adopt import adopt
from data_prep.laion.verify import Options
from data_prep.manifest import MANIFEST, read_manifest


def one_bad(root: Path) -> list[str]:
    """A manifest of two shards, of which the first is damaged since; returns the words that put it aside."""
    for number in range(2):
        write_tar(root / f"{number}.tar", samples(4, number * 10))
    adopt(root, root / MANIFEST, Options(workers=1), leave_out=False)
    (root / "0.tar").write_bytes(b"bad")
    (root / "quarantine").mkdir()
    return ["verify", str(root), "--workers", "1", "--quarantine"]


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


FOREIGN = [b"{}", b"[]", b"garbage", b"\xff", b'{"shard": 5}', b"[" * 100_000]


@pytest.mark.parametrize("content", FOREIGN, ids=["object", "list", "text", "bytes", "number", "deep"])
def test_a_json_of_someone_else(tmp_path: Path, content: bytes) -> None:
    words = one_bad(tmp_path)
    (tmp_path / "quarantine/0.json").write_bytes(content)
    assert main(words) == 1
    assert listed(tmp_path / "quarantine") == ["0.2.json", "0.2.tar", "0.json"]
    assert (tmp_path / "quarantine/0.json").read_bytes() == content
    assert json.loads((tmp_path / "quarantine/0.2.json").read_bytes())["shard"] == "0.tar"
    assert [entry.shard for entry in read_manifest(tmp_path)] == ["1.tar"]


@pytest.mark.parametrize("suffix", [".tar", ".parquet", "_stats.json"])
def test_a_shard_or_table_of_someone_else(tmp_path: Path, suffix: str) -> None:
    words = one_bad(tmp_path)
    (tmp_path / "0.parquet").write_bytes(b"a table")
    (tmp_path / f"quarantine/0{suffix}").write_bytes(b"mine")
    assert main(words) == 1
    assert listed(tmp_path / "quarantine") == sorted(["0.2.json", "0.2.tar", "0.2.parquet", f"0{suffix}"])
    assert (tmp_path / f"quarantine/0{suffix}").read_bytes() == b"mine"


def test_a_shard_of_a_linked_folder_stays_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = one_bad(tmp_path / "set")
    write_tar(tmp_path / "theirs/2.tar", samples(4)).write_bytes(b"bad")
    (tmp_path / "set/link").symlink_to(tmp_path / "theirs")
    before = (tmp_path / "set" / MANIFEST).read_bytes()
    assert main(words) == 1
    assert f"link leads out of {tmp_path / 'set'}, so its unsound shards are not moved" in capsys.readouterr().err
    assert listed(tmp_path / "set/quarantine") == []
    assert (tmp_path / "set" / MANIFEST).read_bytes() == before
    (tmp_path / "set/link").unlink()
    assert main(words) == 1
    assert listed(tmp_path / "set/quarantine") == ["0.json", "0.tar"]
    assert listed(tmp_path / "theirs") == ["2.tar"]
