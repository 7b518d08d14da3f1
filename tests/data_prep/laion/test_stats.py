"""Tests of what is counted of a data set, of the page, and of the pairs on it."""

import base64
import html
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from shard_files import downloaded, encoded, noise, samples, write_tar

from data_prep.__main__ import main
from data_prep.errors import DataError
from data_prep.laion.adopt import adopt
from data_prep.laion.columns import parse_columns
from data_prep.laion.counts import host_in
from data_prep.laion.frequent import MOST, Frequent
from data_prep.laion.histogram import MEASURES, Histogram
from data_prep.laion.plan import Shape, plan
from data_prep.laion.rules import Settings
from data_prep.laion.sheet import draw
from data_prep.laion.stats import stats
from data_prep.laion.verify import Options
from data_prep.manifest import ShardEntry, read_manifest, sha256_file, write_manifest

FAILURES = ("HTTP 404", "HTTP 503", "timeout")


def planned(root: Path, rows: int = 10) -> list[dict[str, Any]]:
    """A plan of shards of 4 rows, two a part; its rows."""
    metadata = root.parent / "metadata.jsonl"
    lines = [
        {"url": f"http://www.host{n % 3}.com/{n}.jpg", "caption": f"caption {n}", "similarity": 0.3 + n / 100}
        for n in range(rows)
    ]
    metadata.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan([metadata], root, parse_columns("auto"), Settings(), Shape(4, 2))
    return lines


def download(root: Path, part: str, shard: int, rows: list[dict[str, Any]], reasons: list[str | None]) -> None:
    """What img2dataset leaves of a shard: the table, the statistics, the tar; reason None is success."""
    folder = root / "parts" / part
    keys = [f"{shard:05d}{n}" for n in range(len(rows))]
    came = [reason is None for reason in reasons]
    table = {
        **{name: [row[name] for row in rows] for name in ("url", "caption", "similarity")},
        "key": keys,
        "status": ["success" if good else "failed_to_download" for good in came],
        "error_message": reasons,
        "width": [256 if good else None for good in came],
        "height": [128 if good else None for good in came],
        "original_width": [800 if good else None for good in came],
        "original_height": [400 if good else None for good in came],
    }
    members = [
        (f"{key}.{suffix}", content)
        for key, row, good in zip(keys, rows, came, strict=True)
        if good
        for suffix, content in (("jpg", encoded(noise(int(key)))), ("txt", row["caption"].encode()), ("json", b"{}"))
    ]
    write_tar(folder / f"{shard:05d}.tar", members)
    parquet.write_table(pa.table(table), folder / f"{shard:05d}.parquet")
    counts = Counter(reason or "success" for reason in reasons)
    (folder / f"{shard:05d}_stats.json").write_text(json.dumps({"successes": sum(came), "status_dict": counts}))


def test_rows_of_a_plan_add_up(tmp_path: Path) -> None:
    root = tmp_path / "set"
    rows = planned(root)
    download(root, "00000", 0, rows[:4], [None, None, "HTTP 404", None])
    download(root, "00000", 1, rows[4:8], ["timeout", None, "HTTP 404", "HTTP 503"])
    found = stats(root, seed=0, workers=1)
    assert found["reasons"] == {"success": 4, "HTTP 404": 2, "HTTP 503": 1, "timeout": 1}
    assert (found["rows"], found["rows_to_come"]) == (8, 2)
    assert found["hosts"] == [
        {"host": "host0.com", "rows": 3, "success": 2},
        {"host": "host1.com", "rows": 3, "success": 1},
        {"host": "host2.com", "rows": 2, "success": 1},
    ]
    histograms = found["histograms"]
    assert (histograms["side"]["mean"], histograms["aspect"]["mean"]) == (400, 2)
    similarities = [rows[n]["similarity"] for n in (0, 1, 3, 5)]
    assert histograms["similarity"]["mean"] == pytest.approx(np.mean(similarities))
    assert histograms["caption"]["counts"][:2] == [4, 0]
    assert found["plan"]["counts"]["rows_read"] == 10
    assert any("was put aside: 2 rows of the plan" in sentence for sentence in found["not_known"])
    assert json.loads((root / "stats.json").read_text()) == found
    # Rows that a retry asks for again are counted by it alone, and those that it has not asked for yet are to come.
    again = {name: [rows[n][name] for n in (4, 7)] for name in rows[0]} | {"reason": ["timeout", "HTTP 503"]}
    parquet.write_table(pa.table(again), root / "plan" / "r.parquet")
    counts = {"rows": 2, "sha256": "", "reasons": {"timeout": 1, "HTTP 503": 1}}
    record = {"number": "00000", "generation": 1, "file": "r.parquet", **counts}
    (root / "plan" / "retry.json").write_text(json.dumps({"parts": [record]}))
    found = stats(root, seed=0, workers=1)
    assert (found["reasons"], found["rows_to_come"]) == ({"success": 4, "HTTP 404": 2}, 4)
    download(root, "00000-retry1", 0, [rows[4], rows[7]], [None, "timeout"])
    found = stats(root, seed=0, workers=1)
    assert (found["reasons"], found["rows_to_come"]) == ({"success": 5, "HTTP 404": 2, "timeout": 1}, 2)
    # A shard that was put aside is to come but for what the retry has.
    (root / "parts/00000/00001_stats.json").unlink()
    found = stats(root, seed=0, workers=1)
    assert (found["reasons"], found["rows_to_come"]) == ({"success": 4, "HTTP 404": 1, "timeout": 1}, 4)
    (root / "plan" / "r.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"r.parquet cannot be read .*copy it again"):
        stats(root, seed=0, workers=1)


def test_a_shard_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    root = tmp_path / "set"
    rows = planned(root)
    download(root, "00000", 0, rows[:4], [None] * 4)
    download(root, "00000", 1, rows[4:8], [None] * 4)
    (root / "parts/00000/00001_stats.json").unlink()
    (root / "parts/00000/00001.parquet").write_bytes(b"half")
    assert stats(root, seed=0, workers=1)["rows_to_come"] == 6


def test_two_processes_find_the_same(tmp_path: Path) -> None:
    root = tmp_path / "set"
    rows = planned(root)
    for shard in range(2):
        download(root, "00000", shard, rows[shard * 4 : shard * 4 + 4], [None, *FAILURES])
    assert stats(root, seed=0, workers=2) == stats(root, seed=0, workers=1)


@pytest.mark.parametrize("name", ["stats.json", "stats.html"])
def test_files_of_others_are_not_replaced(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / "a.tar", samples(3))
    adopt(tmp_path, tmp_path / "manifest.jsonl", Options(workers=1), leave_out=False)
    for _ in range(2):
        stats(tmp_path, 0, 1)
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(DataError, match=f"{name} was not written by data_prep"):
        stats(tmp_path, 0, 1)
    assert (tmp_path / name).read_text() == '{"mine": 1}'


def test_adopted_shards_with_and_without_a_table(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    write_tar(theirs / "a.tar", samples(3))
    downloaded(theirs, 1)  # its table has no URLs: the shard is read
    full = [{"url": "http://a.com/x", "caption": "x" * 25, "similarity": 0.31}] * 2
    download(theirs, "b", 7, full, [None, "HTTP 404"])
    adopt(theirs, ours / "manifest.jsonl", Options(workers=1), leave_out=False)
    found = stats(ours, seed=0, workers=1)
    assert found["reasons"] == {"success": 8, "HTTP 404": 1, "HTTP Error 404: Not Found": 1}
    assert (found["shards"], found["samples"], found["rows"]) == (3, 8, 10)
    assert found["hosts"] == [{"host": "a.com", "rows": 2, "success": 1}]
    assert found["histograms"]["side"]["counts"][2:5] == [0, 7, 0]  # 48 of 64 x 48, in 45 to 64
    assert found["histograms"]["caption"]["counts"][:3] == [3, 4, 1]
    assert any("table beside them: 2." in sentence for sentence in found["not_known"])


def test_a_picture_without_json_is_measured_by_its_header(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("a.png", encoded(noise(1, (90, 60)), "PNG")), ("a.txt", b"ten chars.")])
    adopt(tmp_path, tmp_path / "manifest.jsonl", Options(workers=1), leave_out=False)
    histograms = stats(tmp_path, seed=0, workers=1)["histograms"]
    assert [histograms[name]["mean"] for name in MEASURES] == [60, 1.5, 10, None]


def test_nothing_to_count(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither plan/plan\.json nor a manifest\.jsonl"):
        stats(tmp_path, seed=0, workers=1)


HOSTILE = "<script>alert(1)</script> \"'>& \u202e\x1b[31m" + "long " * 500


def test_the_page_escapes_what_strangers_wrote(tmp_path: Path) -> None:
    members = [("a.jpg", encoded(noise(1))), ("a.txt", HOSTILE.encode()), ("b.jpg", b"none"), ("b.txt", b"\xff\xfe")]
    shard = write_tar(tmp_path / "a.tar", members)
    reason = "<img src=http://evil>"
    write_manifest(tmp_path, [ShardEntry("a.tar", shard.stat().st_size, sha256_file(shard), 2, failures={reason: 3})])
    assert stats(tmp_path, seed=0, workers=1)["reasons"] == {reason: 3, "success": 2}
    page = (tmp_path / "stats.html").read_text()
    assert "<script" not in page
    assert "<img src=http" not in page
    assert html.escape("<script>alert(1)</script> \"'>& \\u202e\\x1b[31m") in page
    assert "cannot be decoded" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert max(map(len, re.findall("<figcaption>(.*?)<small>", page))) < 600


def test_the_sheet_is_drawn_by_its_seed(tmp_path: Path) -> None:
    for number in range(3):
        write_tar(tmp_path / f"{number}.tar", samples(60, number * 100))
    adopt(tmp_path, tmp_path / "manifest.jsonl", Options(workers=1), leave_out=False)
    entries = read_manifest(tmp_path)
    pairs = list(draw(tmp_path, entries, 100, seed=1))
    keys = [pair.key for pair in pairs]
    assert (len(set(keys)), keys) == (100, sorted(keys))
    assert {pair.shard for pair in pairs} == {"0.tar", "1.tar", "2.tar"}
    assert all(pair.caption == f"picture {int(pair.key)}" for pair in pairs)
    assert pairs == list(draw(tmp_path, entries, 100, seed=1))
    assert keys != [pair.key for pair in draw(tmp_path, entries, 100, seed=2)]
    assert len(list(draw(tmp_path, entries, 500, seed=1))) == 180
    stats(tmp_path, seed=1, workers=1)
    shown = re.findall('base64,([^"]*)', (tmp_path / "stats.html").read_text())
    assert len(shown) == 100
    assert Image.open(io.BytesIO(base64.b64decode(shown[0]))).size == (32, 24)


def test_histogram_beside_numpy() -> None:
    edges = MEASURES["aspect"].edges
    values = np.exp(np.random.default_rng(0).normal(0, 1, 1000))
    values[:7] = [edges[0], edges[-1], edges[3], np.nan, 1e9, 1e-9, 1]
    whole, first, second = (Histogram(edges) for _ in range(3))
    whole.add(values)
    first.add(values[:300])
    second.add(values[300:])
    first.merge(second)
    found = whole.record()
    known = values[~np.isnan(values)]
    inside = known[(known >= edges[0]) & (known < edges[-1])]
    assert found["counts"] == np.histogram(inside, edges)[0].tolist()
    assert (found["below"], found["above"]) == (int((known < edges[0]).sum()), int((known >= edges[-1]).sum()))
    assert (found["unknown"], found["least"], found["most"]) == (1, 1e-9, 1e9)
    merged = first.record()
    assert merged.pop("mean") == pytest.approx(found.pop("mean"))
    assert merged == found


def test_frequent_names_are_right_within_the_bound() -> None:
    random = np.random.default_rng(0)
    names = [f"n{number}" for number in random.zipf(1.3, 20_000)]
    true = Counter(names)
    counts = Frequent(most=200)
    for start in range(0, len(names), 100):
        batch = Counter(names[start : start + 100])
        counts.add(batch, batch)
    assert len(counts.rows) <= 200
    assert counts.rows == counts.good
    for name, count in true.most_common(20):
        assert count - counts.undercount <= counts.rows[name] <= count
    assert [name for name, _ in counts.rows.most_common(5)] == [name for name, _ in true.most_common(5)]


def test_the_bound_is_told_where_there_are_too_many_reasons(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a.tar", samples(3))
    failures = {f"a reason of its own, {number}": 1 for number in range(MOST)} | {"HTTP 404": 5}
    write_manifest(tmp_path, [ShardEntry("a.tar", shard.stat().st_size, sha256_file(shard), 3, failures)])
    found = stats(tmp_path, seed=0, workers=1)
    assert (found["rows"], found["reasons_low_by_at_most"]) == (3 + MOST + 5, 1)
    assert (found["reasons"]["HTTP 404"], found["reasons"]["success"]) == (5, 3)
    assert sum(found["reasons"].values()) == found["rows"]
    assert "Each count may be low by at most 1." in (tmp_path / "stats.html").read_text()


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://www.Example.com:8080/a?b", "example.com"),
        ("http://me:pw@a.org?x", "a.org"),
        ("http://[2001:db8::1]:80/", "[2001:db8::1]"),
        ("nothing", "?"),
        ("http://\x1b[31m/", "\\x1b[31m"),
    ],
)
def test_host(url: str, host: str) -> None:
    assert host_in(url) == host


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "set"
    rows = planned(root)
    download(root, "00000", 0, rows[:4], [None, *FAILURES])
    metadata = str(tmp_path / "metadata.jsonl")
    words = ["stats", "--output", str(root), "--workers", "1"]
    assert main([*words, "--metadata", metadata]) == 0
    said = capsys.readouterr().out
    assert "4 rows, 25.0 % success" in said
    assert "There is no manifest yet" in said
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 4
    (tmp_path / "metadata.jsonl").write_text("{}\n")
    assert main([*words, "--metadata", metadata]) == 1
    assert "planned of other metadata" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["stats", "--output", str(root), "--workers", "0"])
