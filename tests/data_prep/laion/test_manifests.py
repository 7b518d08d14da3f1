"""What manifests beside and above shards say of them, by whatever way they name them."""

from pathlib import Path

import pytest
from shard_files import reasons, samples, write_tar

from data_prep.laion import findings as why
from data_prep.laion.verify import Options, shards_under, verify
from data_prep.manifest import ShardEntry, sha256_file, write_manifest

ALONE = Options(workers=1)


def test_what_a_manifest_recorded(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a.tar", samples(4))
    write_manifest(tmp_path, [ShardEntry("a.tar", shard.stat().st_size, "0" * 64, 5)])
    assert reasons(tmp_path) == {why.OTHER_BYTES, why.COUNT}


def test_what_a_manifest_above_recorded_and_is_missing(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a/b/0.tar", samples(4))
    size = shard.stat().st_size
    names = ("a/b/0.tar", "a/1.tar")
    write_manifest(tmp_path, [ShardEntry(name, size, sha256_file(shard), 4) for name in names])
    unsound = verify(tmp_path, ALONE).unsound
    assert [(verdict.report.name, list(verdict.against)) for verdict in unsound] == [("a/1.tar", [why.UNREADABLE])]


@pytest.mark.parametrize("place", ["1.tar/x", ".1.tar", "quarantine/1.tar"])
def test_what_a_manifest_names_and_nobody_looks_at(tmp_path: Path, place: str) -> None:
    write_tar(tmp_path / "0.tar", samples(4))
    shard = write_tar(tmp_path / place, samples(4, 10))
    named = place.removesuffix("/x")
    entry = ShardEntry(named, shard.stat().st_size, sha256_file(shard), 4)
    write_manifest(tmp_path, [entry])
    (verdict,) = verify(tmp_path, ALONE).unsound
    assert (verdict.report.name, verdict.against.keys()) == (named, {why.UNREADABLE})


@pytest.mark.parametrize("change", [b"", b"x"])
def test_a_manifest_that_names_a_shard_by_another_way(tmp_path: Path, change: bytes) -> None:
    """A set may have links to its own folders; each shard is looked at once."""
    shard = write_tar(tmp_path / "a/0.tar", samples(4))
    (tmp_path / "b").symlink_to("a")
    known = {str(folder / "0.tar") for folder in (Path("a"), Path("b"))} - set(shards_under(tmp_path))
    write_manifest(tmp_path, [ShardEntry(known.pop(), shard.stat().st_size, sha256_file(shard), 4)])
    shard.write_bytes(shard.read_bytes() + 512 * change)
    assert (why.OTHER_BYTES in reasons(tmp_path)) == bool(change)
