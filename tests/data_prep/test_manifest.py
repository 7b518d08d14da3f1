"""Tests of data_prep.manifest: what is written is read again, and every malformed line is named by its number."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import DataError
from data_prep.manifest import MANIFEST, ShardEntry, read_manifest, sha256_file, write_manifest

HASH = "0" * 64


def entry(shard: str = "00000.tar", size: int = 3, samples: int = 1) -> ShardEntry:
    return ShardEntry(shard, size, HASH, samples)


def put(folder: Path, *lines: Any) -> None:
    """A manifest with these lines (objects as JSON), and the shard they name."""
    (folder / "00000.tar").write_bytes(b"abc")
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


file_names = st.text(st.characters(codec="utf-8", exclude_characters="/\\", min_codepoint=32), min_size=1, max_size=40)
file_names = file_names.filter(lambda name: name not in (".", "..", MANIFEST) and len(name.encode()) < 200)


@settings(max_examples=30)  # each example waits for the disk
@given(st.dictionaries(file_names, st.tuples(st.binary(max_size=9), st.integers(0, 10**12)), min_size=1, max_size=5))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, shards: dict[str, tuple[bytes, int]]) -> None:
    folder = tmp_path_factory.mktemp("set")
    entries = []
    for name, (content, samples) in shards.items():
        (folder / name).write_bytes(content)
        entries.append(ShardEntry(name, len(content), hashlib.sha256(content).hexdigest(), samples))
    write_manifest(folder, entries)
    assert read_manifest(folder) == entries


def test_sha256_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc" * 100_000)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(b"abc" * 100_000).hexdigest()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ("[1]", "line 2: expected an object, found list"),
        ({"bytes": 3, "sha256": HASH, "samples": 1}, "line 2: 'shard' is missing"),
        ({"shard": 7, "bytes": 3, "sha256": HASH, "samples": 1}, "line 2: 'shard' must be str, found 7"),
        ({"shard": "a.tar", "bytes": "3", "sha256": HASH, "samples": 1}, "line 2: 'bytes' must be int, found '3'"),
        ({"shard": "a.tar", "bytes": True, "sha256": HASH, "samples": 1}, "line 2: 'bytes' must be int, found True"),
        ({"shard": "a.tar", "bytes": 3, "sha256": HASH, "samples": -1}, "line 2: 'samples' must not be negative"),
        ({"shard": "a.tar", "bytes": 3, "sha256": "f00", "samples": 1}, "line 2: 'sha256' must be 64 hexadecimal"),
        ({**asdict(entry()), "failures": {"HTTP 404": -1}}, "line 2: 'failures' must be counts by reason"),
        ({**asdict(entry()), "failures": [1]}, "line 2: 'failures' must be counts by reason"),
        *[
            ({"shard": name, "bytes": 3, "sha256": HASH, "samples": 1}, "line 2: 'shard' must be a plain file name")
            for name in (
                "../a.tar",
                "/etc/passwd",
                "a\\b.tar",
                "..",
                "",
                "a\0b",
                "a/../b",
                "a//b",
                "./a",
                "a/",
                "\ud800.tar",
            )
        ],
    ],
)
def test_malformed_line_is_named(tmp_path: Path, line: Any, complaint: str) -> None:
    put(tmp_path, asdict(entry()), line)
    with pytest.raises(DataError) as caught:
        read_manifest(tmp_path)
    assert complaint in str(caught.value)


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest\.jsonl does not exist"):
        read_manifest(tmp_path)


def test_not_text(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        read_manifest(tmp_path)


def test_no_shard(tmp_path: Path) -> None:
    put(tmp_path, "", "  ")
    with pytest.raises(DataError, match="names no shard"):
        read_manifest(tmp_path)
    with pytest.raises(DataError, match="would name no shard"):
        write_manifest(tmp_path, [])


def test_shard_named_twice(tmp_path: Path) -> None:
    put(tmp_path, asdict(entry()), asdict(entry()))
    with pytest.raises(DataError, match=r"names 00000\.tar twice"):
        read_manifest(tmp_path)


def test_missing_shard(tmp_path: Path) -> None:
    put(tmp_path, asdict(entry("00001.tar")))
    with pytest.raises(DataError, match=r"00001\.tar is named in the manifest and missing"):
        read_manifest(tmp_path)


def test_shard_of_another_size(tmp_path: Path) -> None:
    put(tmp_path, asdict(entry(size=4)))
    with pytest.raises(DataError, match=r"00000\.tar has 3 bytes, the manifest says 4"):
        read_manifest(tmp_path)


def test_write_refuses_what_read_would(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="plain file name"):
        write_manifest(tmp_path, [entry("../a.tar")])
    assert not (tmp_path / MANIFEST).exists()


def test_shards_in_folders_below(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "0.tar").write_bytes(b"abc")
    write_manifest(tmp_path, [ShardEntry("a/b/0.tar", 3, HASH, 1)])
    assert [e.shard for e in read_manifest(tmp_path)] == ["a/b/0.tar"]


def test_failures_stand_only_where_there_are_some(tmp_path: Path) -> None:
    for name in ("0.tar", "1.tar"):
        (tmp_path / name).write_bytes(b"abc")
    write_manifest(tmp_path, [ShardEntry("0.tar", 3, HASH, 1), ShardEntry("1.tar", 3, HASH, 1, {"HTTP 404": 2})])
    assert [e.failures for e in read_manifest(tmp_path)] == [{}, {"HTTP 404": 2}]
    lines = (tmp_path / MANIFEST).read_text().splitlines()
    assert list(json.loads(lines[0])) == ["shard", "bytes", "sha256", "samples"]
