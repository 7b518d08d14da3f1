"""Tests of data_prep.laion.journal: what is known is not read again, and nothing is believed that changed."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from shard_files import downloaded, found, parts, samples, write_tar

from data_prep.errors import DataError
from data_prep.laion.journal import HASHES, LINES, Journal
from data_prep.laion.verify import Options, verify
from data_prep.manifest import sha256_file

ALONE = Options(workers=1)
GOOD = samples(4)


def test_what_is_known_is_not_read_again(tmp_path: Path) -> None:
    parts(tmp_path)
    first = verify(tmp_path, ALONE)
    assert first.samples_read > 0
    second = verify(tmp_path, ALONE)
    assert (second.bytes_read, found(second)) == (0, found(first))
    downloaded(tmp_path / "parts/00000", 1)
    third = verify(tmp_path, ALONE)
    assert third.bytes_read == (tmp_path / "parts/00000/00001.tar").stat().st_size
    assert len(third.unsound) == 1


def test_a_journal_that_a_kill_cut_short(tmp_path: Path) -> None:
    parts(tmp_path)
    first = verify(tmp_path, ALONE)
    lines = (tmp_path / LINES).read_bytes()
    hashes = (tmp_path / "verify.hashes").read_bytes()
    for cut in range(0, len(lines), 97):
        (tmp_path / LINES).write_bytes(lines[:cut])
        (tmp_path / "verify.hashes").write_bytes(hashes[: 3 + cut // 20])
        assert found(verify(tmp_path, ALONE)) == found(first)
        assert verify(tmp_path, ALONE).bytes_read == 0


def test_other_bytes_of_the_same_size_and_time_are_seen(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a.tar", GOOD)
    verify(tmp_path, ALONE)
    before = shard.stat()
    whole = bytearray(shard.read_bytes())
    whole[600] ^= 1  # in the first picture
    for place in (shard, tmp_path / "copy.tar"):  # written over, and a copy put in its place
        place.write_bytes(whole)
        os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(place, shard)
        assert verify(tmp_path, ALONE).verdicts[0].report.sha256 == sha256_file(shard)
        whole[600] ^= 2
    assert verify(tmp_path, ALONE).bytes_read == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (rb"(?s).*", bytes(300)),
        (rb'(?<=name": ).*', b"[" * 100_000),
        (rb'(?<=name": ).*', b"5\nnull\n[]\n{}\n\xff"),
        (rb'"hashes": \[0, 4, \d+\]', b'"hashes": [0, 4, 0, 0]'),
        (rb'"hashes": \[0, 4, \d+\]', b'"hashes": [0]'),
        (rb'"hashes": \[0, 4, \d+\]', b'"hashes": [0.0, 4.0, 0]'),
        (rb'"hashes": \[0, 4, \d+\]', b'"hashes": [-3, 4, 0]'),
        (rb'"samples": 4', b'"samples": "4"'),
        (rb'"samples": 4, ', b""),
        (rb'"examples": {}, ', b""),
        (rb'"counts": {}', b'"counts": {"no such": 1.5}'),
        (rb'"crc32": \d+', b'"crc32": 0'),
    ],
)
def test_a_damaged_line_is_passed_over(tmp_path: Path, old: bytes, new: bytes) -> None:
    write_tar(tmp_path / "a.tar", GOOD)
    first = verify(tmp_path, ALONE)
    lines = (tmp_path / LINES).read_bytes()
    damaged = re.sub(old, lambda _: new, lines, count=1)
    assert damaged != lines
    (tmp_path / LINES).write_bytes(damaged)
    again = verify(tmp_path, ALONE)
    assert (found(again), again.samples_read) == (found(first), 4)
    assert verify(tmp_path, ALONE).bytes_read == 0


@pytest.mark.parametrize("content", [b"my own notes\n", b"{}\n", b"[]"])
def test_a_file_of_someone_else(tmp_path: Path, content: bytes) -> None:
    write_tar(tmp_path / "a.tar", GOOD)
    (tmp_path / LINES).write_bytes(content)
    for again in (False, True):
        with pytest.raises(DataError, match=r"verify.jsonl was not written by data_prep .*--state elsewhere"):
            verify(tmp_path, Options(workers=1, again=again))
    assert (tmp_path / LINES).read_bytes() == content
    assert not verify(tmp_path, Options(workers=1, state=tmp_path / "state")).unsound


def test_hashes_that_were_written_over(tmp_path: Path) -> None:
    """A copied shard is found by them."""
    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, GOOD)
    first = verify(tmp_path, ALONE)
    assert [verdict.report.name for verdict in first.unsound] == ["b.tar"]
    hashes = bytearray((tmp_path / HASHES).read_bytes())
    hashes[-8:] = bytes(8)
    (tmp_path / HASHES).write_bytes(hashes)
    again = verify(tmp_path, ALONE)
    assert (found(again), again.samples_read) == (found(first), 4)
    assert verify(tmp_path, ALONE).bytes_read == 0


def test_a_moved_shard_that_another_process_forgot(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", GOOD)
    report = verify(tmp_path, ALONE).verdicts[0].report
    with Journal(tmp_path) as journal:
        journal.move({"a.tar": replace(report, name="b.tar")})
        assert journal.find("b.tar", report.seen, report.max_aspect) == replace(report, name="b.tar")
        journal.clear()
        journal.move({"a.tar": replace(report, name="b.tar")})
        assert journal.find("b.tar", report.seen, report.max_aspect) is None


LIMITED = """
import resource, sys
from data_prep.__main__ import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
sys.exit(main(["verify", "--workers", "1", sys.argv[1]]))
"""


def test_a_journal_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Files of at most 100 bytes stand for a full disk: writes fail in the same way."""
    write_tar(tmp_path / "a.tar", GOOD)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    named = f"error: {tmp_path / LINES}: File too large; correct that and run the same command again"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, named)
    assert verify(tmp_path, ALONE).samples_read == 4
