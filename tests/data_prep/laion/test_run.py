"""Tests of `python -m data_prep run`: the steps in order, a shard that is damaged once or for ever, what it says.

The download stands in for img2dataset, which test_download.py runs for real.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from shard_files import downloaded, encoded, meta, write_record, write_tar

from data_prep.__main__ import main
from data_prep.commands import run
from data_prep.errors import DataError
from data_prep.laion.layout import read_parts
from data_prep.laion.retry import plan_retry
from data_prep.manifest import read_manifest

ROWS = 10


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    lines = [{"url": f"http://a.com/{n}.jpg", "caption": f"picture {n}", "similarity": n / 10} for n in range(ROWS + 3)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shape = ["--shard-size", "5", "--shards-per-part", "1", "--workers", "1"]
    return ["run", "--metadata", str(tmp_path / "m.jsonl"), "--output", str(tmp_path / "set"), *shape]


def stand_in(monkeypatch: pytest.MonkeyPatch, damaged: int, which: tuple[int, ...] = (1,)) -> list[Path]:
    """Download shards of 4 pictures and a failure each; those of `which` are cut the first `damaged` times.

    Returns:
        What was made, in order.
    """
    made: list[Path] = []

    def download(output: Path, settings: Any) -> None:
        for number, part in enumerate(read_parts(output)):
            if part.collected(0).is_file():
                continue
            shard = downloaded(part.folder, number)
            shard.rename(part.file_of(0, ".tar"))
            table = shard.with_suffix(".parquet")
            add_columns(table, part.file_of(0, ".parquet"))
            shard.with_name(f"{shard.stem}_stats.json").rename(part.file_of(0, "_stats.json"))
            made.append(part.file_of(0, ".tar"))
            if number in which and made.count(made[-1]) <= damaged:
                made[-1].write_bytes(made[-1].read_bytes()[:3000])

    monkeypatch.setattr(run, "download", download)
    return made


def add_columns(table: Path, target: Path) -> None:
    """The columns that img2dataset has and `write_record` leaves out."""
    from pyarrow import array as column
    from pyarrow import parquet, string

    found = parquet.read_table(table)
    for name in ("url", "caption"):
        found = found.append_column(name, column(["http://a.com/x"] * len(found), string()))
    table.unlink()
    parquet.write_table(found, target)


def test_a_shard_that_was_damaged_is_downloaded_again(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stand_in(monkeypatch, damaged=1)
    assert main(words) == 0
    said = capsys.readouterr()
    assert "13 rows of metadata, 10 taken; by rule similarity 3" in said.out
    assert "10 rows downloaded, 80.0 % success (HTTP Error 404: Not Found 20.0 %)" in said.out
    assert "8 samples in 2 verified shards" in said.out
    assert "put aside and downloaded again: 1 shard" in said.err
    shards = tmp_path / "set" / "shards"
    assert [(entry.shard, entry.samples) for entry in read_manifest(shards)] == [
        ("00000-00000.tar", 4),
        ("00001-00000.tar", 4),
    ]
    assert (tmp_path / "set" / "quarantine" / "parts-00001-00000.json").exists()
    before = (shards / "manifest.jsonl").read_bytes()
    assert main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["rows"], record["rows_to_come"], record["samples"]) == (10, 0, 8)
    assert (shards / "manifest.jsonl").read_bytes() == before
    assert len(made) == 3


@pytest.mark.parametrize("times", [1, 2])
def test_where_all_are_damaged_all_are_downloaded_again(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], times: int
) -> None:
    made = stand_in(monkeypatch, times, which=(0, 1))
    assert main(words) == times - 1
    said = capsys.readouterr()
    assert "put aside and downloaded again: 2 shards" in said.err
    assert len(made) == 4
    if times == 1:
        assert "8 samples in 2 verified shards" in said.out
    else:
        assert "0 samples in 0 verified shards" in said.out
        assert "Not downloaded yet, or their shard was put aside: 10 rows of the plan" in said.out
        assert "error: 2 shards unsound again" in said.err
        assert not (tmp_path / "set/shards/manifest.jsonl").exists()
    assert main(words) == 0


def test_a_shard_that_stays_damaged_is_an_error(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, damaged=2)
    assert main(words) == 1
    said = capsys.readouterr()
    assert "Not downloaded yet, or their shard was put aside: 5 rows of the plan" in said.out
    assert "error: 1 shard unsound again" in said.err
    assert len(read_manifest(tmp_path / "set" / "shards")) == 1
    assert main(words) == 0


@pytest.mark.parametrize("record", [".parquet", "_stats.json"])
@pytest.mark.parametrize("content", [None, b"bad"])
def test_a_collected_shard_whose_record_is_lost_is_downloaded_again(
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record: str,
    content: bytes | None,
) -> None:
    made = stand_in(monkeypatch, damaged=0)
    assert main(words) == 0
    part = read_parts(tmp_path / "set")[1]
    part.file_of(0, record).unlink()
    if content:
        part.file_of(0, record).write_bytes(content)
    if record == ".parquet":
        with pytest.raises(DataError, match=r"00000.parquet is not readable.*data_prep run puts this shard aside"):
            plan_retry(tmp_path / "set")
    capsys.readouterr()
    assert main(words) == 0
    said = capsys.readouterr()
    assert "put aside and downloaded again: 1 shard" in said.err
    assert "10 rows downloaded, 80.0 % success" in said.out
    assert "8 samples in 2 verified shards" in said.out
    assert made[2:] == [part.file_of(0, ".tar")]
    assert (tmp_path / "set/quarantine/shards-00001-00000.tar").exists()


def test_statistics_that_count_otherwise_than_the_table_are_made_again(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stand_in(monkeypatch, damaged=0)
    assert main(words) == 0
    part = read_parts(tmp_path / "set")[1]
    record = json.loads(part.file_of(0, "_stats.json").read_text())
    record["status_dict"] = {"success": 4, "timeout": 1}
    part.file_of(0, "_stats.json").write_text(json.dumps(record))
    assert main(["verify", str(tmp_path / "set"), "--workers", "1"]) == 1
    assert "00000_stats.json has other counts of reasons than the table" in capsys.readouterr().out
    assert main(words) == 0
    assert made[2:] == [part.file_of(0, ".tar")]


def test_a_whole_part_whose_tables_are_lost(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its shards stay sound; what is said of it, and does what `retry` advises help?"""
    made = stand_in(monkeypatch, damaged=0)
    assert main(words) == 0
    part = read_parts(tmp_path / "set")[1]
    shutil.rmtree(part.folder)
    capsys.readouterr()
    manifest = (tmp_path / "set/shards/manifest.jsonl").read_bytes()
    assert main(words) == 0
    assert (tmp_path / "set/shards/manifest.jsonl").read_bytes() == manifest  # with its failures
    said = capsys.readouterr()
    assert "5 rows downloaded, as far as tables tell (gone are those of 5 rows), 80.0 % success" in said.out
    assert "The download's tables are gone for 5 rows whose shards are there" in said.out
    with pytest.raises(
        DataError, match=r"parts/00001 is gone.*remove \S+shards/00001-\*\.tar too, and python -m"
    ) as caught:
        plan_retry(tmp_path / "set")
    shutil.rmtree(tmp_path / "set/parts/00000")
    assert main(words) == 0
    assert "0 rows downloaded, as far as tables tell (gone are those of 10 rows), – success" in capsys.readouterr().out
    pattern = str(caught.value).split("remove ")[1].split()[0]
    for tar in Path(pattern).parent.glob(Path(pattern).name):
        tar.unlink()
    (tmp_path / "set/shards/00000-00000.tar").unlink()
    assert main(words) == 0
    assert "10 rows downloaded, 80.0 % success" in capsys.readouterr().out
    assert len(made) == 4
    assert plan_retry(tmp_path / "set") == 0


def test_a_folder_in_the_place_of_a_collected_shard_is_put_aside(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stand_in(monkeypatch, damaged=0)
    assert main(words) == 0
    manifest = (tmp_path / "set/shards/manifest.jsonl").read_bytes()
    shard = tmp_path / "set/shards/00001-00000.tar"
    shard.unlink()
    shard.mkdir()
    assert main(words) == 0
    assert "8 samples in 2 verified shards" in capsys.readouterr().out
    assert len(made) == 3
    assert (tmp_path / "set/shards/manifest.jsonl").read_bytes() == manifest
    assert (tmp_path / "set/quarantine/shards-00001-00000.tar").is_dir()


def test_a_shard_whose_part_comes_back_without_its_table_is_made_again(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stand_in(monkeypatch, damaged=0)
    assert main(words) == 0
    part = read_parts(tmp_path / "set")[1]
    shutil.rmtree(part.folder)
    assert main(words) == 0  # it is known as sound now
    part.folder.mkdir()
    capsys.readouterr()
    assert main(words) == 0
    assert "put aside and downloaded again: 1 shard" in capsys.readouterr().err
    assert made[2:] == [part.file_of(0, ".tar")]


@pytest.mark.parametrize("name", ["zzz.tar", "00007-00000.tar", "00000-00001.tar", "a/00000-00000.tar"])
def test_a_copy_among_the_collected_shards_is_named(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    stand_in(monkeypatch, damaged=0)
    assert main(words) == 0
    shards = tmp_path / "set/shards"
    before = (shards / "manifest.jsonl").read_bytes()
    (shards / name).parent.mkdir(exist_ok=True)
    shutil.copy(shards / "00000-00000.tar", shards / name)
    assert main(words) == 1
    assert f"error: {shards / name} is no shard of this plan" in capsys.readouterr().err
    assert (shards / "manifest.jsonl").read_bytes() == before
    (shards / name).unlink()
    assert main(words) == 0


@pytest.mark.parametrize("name", ["00055/00000", "00001/00077", "00000-retry1/00000"])
def test_a_copy_among_the_downloaded_shards_is_named(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """As when parts/ of several machines, or of another plan, are copied together."""
    stand_in(monkeypatch, damaged=0)
    assert main(words) == 0
    root = tmp_path / "set"
    before = (root / "shards/manifest.jsonl").read_bytes()
    (root / "parts" / name).parent.mkdir(exist_ok=True)
    shutil.copy(root / "shards/00000-00000.tar", root / "parts" / f"{name}.tar")
    for suffix in (".parquet", "_stats.json"):
        shutil.copy(root / f"parts/00000/00000{suffix}", root / "parts" / f"{name}{suffix}")
    assert main(words) == 1
    said = capsys.readouterr().err
    assert f"error: {root}/parts/{name}.tar is no shard of this plan" in said
    assert f"move it out of {root}/parts and run" in said
    assert (root / "shards/manifest.jsonl").read_bytes() == before
    (root / "parts" / f"{name}.tar").unlink()
    assert main(words) == 0


@pytest.mark.parametrize("everywhere", [False, True])
def test_flaws_of_the_web_put_no_shard_aside(
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    everywhere: bool,
) -> None:
    """One picture of one colour in each shard, or nothing else, the same one at every address."""

    def download(output: Path, settings: Any) -> None:
        for number, part in enumerate(read_parts(output)):
            if part.collected(0).exists():
                continue
            keys = [f"{number}{n}" for n in range(3)]
            members = []
            for place, key in enumerate(keys):
                image = Image.effect_mandelbrot((32, 24), (-2, -1, 1, 1), 20 + place + 5 * number)
                if everywhere or place == 0:
                    image = Image.new("L", (32, 24), 250 if everywhere else 50 * number)
                members += [(f"{key}.jpg", encoded(image)), (f"{key}.txt", b"x"), (f"{key}.json", meta(key, "x"))]
            tar = write_tar(part.file_of(0, ".tar"), members)
            write_record(tar, keys, ["a", "b"])
            table = part.file_of(0, ".parquet")
            add_columns(table, table)

    monkeypatch.setattr(run, "download", download)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "6 samples in 2 verified shards" in said
    assert f"{6 if everywhere else 2} x picture of one colour" in said
    folder = tmp_path / "set"
    assert not (folder / "quarantine").exists()
    for options in ([], ["--again"]):
        assert main(["verify", str(folder), "--workers", "1", *options]) == 0
    assert main(["verify", str(folder / "shards"), "--workers", "1", "--state", str(tmp_path / "state")]) == 0
    assert main(["verify", str(folder), "--workers", "1", "--max-flawed", "0.01"]) == 1
    with open(folder / "shards/00001-00000.tar", "ab") as tar:
        tar.write(bytes(512))
    capsys.readouterr()
    assert main(["verify", str(folder), "--workers", "1"]) == 1
    said = capsys.readouterr().out
    assert "shards/00001-00000.tar: other bytes than the manifest has" in said
    assert "shards/00001-00000.tar: picture of one colour" in said  # which it was not taken in with


@pytest.mark.parametrize("content", [b"hello\n", b"", b"\xff", b"[1]\n"])
def test_a_damaged_manifest_is_made_again_once_it_is_removed(
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
) -> None:
    made = stand_in(monkeypatch, damaged=0)
    assert main(words) == 0
    manifest = tmp_path / "set/shards/manifest.jsonl"
    before = manifest.read_bytes()
    manifest.write_bytes(content)
    assert main(words) == 1
    assert f"error: {manifest} is damaged (" in (said := capsys.readouterr().err)
    assert "remove it: then python -m data_prep run writes it anew" in said
    manifest.unlink()
    assert main(words) == 0
    assert manifest.read_bytes() == before
    assert len(made) == 2


@pytest.mark.parametrize("name", ["stats.json", "stats.html"])
def test_a_page_of_others_is_refused_before_anything_is_done(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    made = stand_in(monkeypatch, damaged=0)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_text("someone's own")
    assert main(words) == 1
    assert f"{name} was not written by data_prep and would be replaced" in capsys.readouterr().err
    assert made == []
    assert [path.name for path in (tmp_path / "set").iterdir()] == [name]
