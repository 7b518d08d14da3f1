"""The plan: its files, its counts, the same bytes again, and every refusal."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.__main__ import main
from data_prep.errors import DataError
from data_prep.laion import plan as module
from data_prep.laion.columns import parse_columns
from data_prep.laion.plan import Shape, check_metadata, dry_run, plan, read_plan
from data_prep.laion.rules import Settings

AUTO = parse_columns("auto")
SHAPE = Shape(shard_size=4, shards_per_part=2)


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    """Two LAION-400M files of 20 rows, of which one in four is unsure and the last of each file has no http URL."""
    folder = tmp_path / "metadata"
    folder.mkdir()
    for file in range(2):
        numbers = list(range(20 * file, 20 * file + 20))
        urls = [f"http://a.example/{number}.jpg" for number in numbers[:-1]] + ["ftp://a.example/"]
        table = {
            "SAMPLE_ID": [float(number) for number in numbers],
            "URL": urls,
            "TEXT": [f"caption {number}" for number in numbers],
            "HEIGHT": pa.array([100] * 20, pa.int32()),
            "WIDTH": pa.array([120] * 20, pa.int32()),
            "LICENSE": ["?"] * 20,
            "NSFW": ["UNSURE" if number % 4 == 0 else "UNLIKELY" for number in numbers],
            "similarity": [0.31] * 20,
        }
        pq.write_table(pa.table(table), folder / f"part-{file:05d}.parquet")
    return folder


def made(metadata: Path, output: Path, settings: Settings | None = None, shape: Shape = SHAPE) -> dict[str, Any]:
    return plan([metadata], output, AUTO, settings or Settings(), shape)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_what_a_plan_is(tmp_path: Path, metadata: Path) -> None:
    output = tmp_path / "out"
    found = made(metadata, output)
    expected = [number for number in range(40) if number % 4 and number not in (19, 39)]
    assert found.pop("planned")
    assert json.loads((output / "plan" / "plan.json").read_text()) == found == read_plan(output)
    assert found["counts"]["rows_read"] == 40
    assert {name: count for name, count in found["counts"].items() if count} == {"rows_read": 40, "nsfw": 10, "url": 2}
    assert found["rows"] == len(expected) == 28
    assert found["off"] == {}
    assert [part["rows"] for part in found["parts"]] == [8, 8, 8, 4]
    files = [output / "plan" / part["file"] for part in found["parts"]]
    assert [hashlib.sha256(file.read_bytes()).hexdigest() for file in files] == [p["sha256"] for p in found["parts"]]
    tables = [pq.read_table(file) for file in files]
    rows = pa.concat_tables(tables).to_pylist()
    assert rows[0] == {
        "url": "http://a.example/1.jpg",
        "caption": "caption 1",
        "similarity": 0.31,
        "width": 120,
        "height": 100,
        "nsfw": "UNLIKELY",
        "license": "?",
        "id": "1",
    }
    assert [row["caption"] for row in rows] == [f"caption {number}" for number in expected]
    assert [pq.ParquetFile(file).num_row_groups for file in files] == [2, 2, 2, 1]
    for entry in found["inputs"]:
        data = (metadata / entry["path"]).read_bytes()
        assert (entry["bytes"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


def test_the_same_bytes_again(tmp_path: Path, metadata: Path) -> None:
    made(metadata, tmp_path / "one")
    os.rename(metadata, tmp_path / "elsewhere")
    made(tmp_path / "elsewhere", tmp_path / "two")
    assert contents(tmp_path / "one" / "plan") == contents(tmp_path / "two" / "plan")


def test_run_again_it_does_nothing(tmp_path: Path, metadata: Path) -> None:
    made(metadata, tmp_path / "out")
    before = contents(tmp_path / "out" / "plan")
    assert not made(metadata, tmp_path / "out")["planned"]
    assert contents(tmp_path / "out" / "plan") == before


def test_other_rules_metadata_or_shape_are_refused(tmp_path: Path, metadata: Path) -> None:
    output = tmp_path / "out"
    made(metadata, output)
    with pytest.raises(DataError, match=r"planned otherwise: min_side was 64 and is 65; give the same again"):
        made(metadata, output, Settings(min_side=65))
    with pytest.raises(DataError, match="shard_size was 4 and is 5"):
        made(metadata, output, shape=Shape(5, 2))
    check_metadata([metadata], output)
    with open(metadata / "part-00001.parquet", "ab") as file:
        file.write((metadata / "part-00000.parquet").read_bytes())
    with pytest.raises(DataError, match=r"planned otherwise: metadata part-00001\.parquet;"):
        made(metadata, output)
    with pytest.raises(DataError, match=r"planned of other metadata \(part-00001\.parquet differs\)"):
        check_metadata([metadata], output)


def test_an_opt_out_list_is_known_by_its_content(tmp_path: Path, metadata: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("b.example\n")
    made(metadata, tmp_path / "out", Settings(opt_out=listed))
    os.rename(listed, tmp_path / "other.txt")
    assert not made(metadata, tmp_path / "out", Settings(opt_out=tmp_path / "other.txt"))["planned"]
    listed.write_text("c.example\n")
    with pytest.raises(DataError, match="opt_out was"):
        made(metadata, tmp_path / "out", Settings(opt_out=listed))


def test_nothing_that_passes(tmp_path: Path, metadata: Path) -> None:
    with pytest.raises(DataError, match=r"of 40 rows none passes the rules \(similarity 40\)"):
        made(metadata, tmp_path / "out", Settings(min_similarity=0.5))
    assert not (tmp_path / "out" / "plan").exists()


def test_metadata_that_changes_under_the_reader(
    tmp_path: Path, metadata: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = module.Funnel.passing

    def passing(self: Any, sources: Any, advance: Any) -> Any:
        yield from reads(self, sources, advance)
        os.utime(metadata / "part-00000.parquet", ns=(1, 1))

    monkeypatch.setattr(module.Funnel, "passing", passing)
    with pytest.raises(DataError, match="changed while it was read"):
        made(metadata, tmp_path / "out")
    assert not (tmp_path / "out" / "plan").exists()


def test_damage_late_in_the_metadata_leaves_no_plan(tmp_path: Path, metadata: Path) -> None:
    path = metadata / "part-00001.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:8] + bytes(600) + data[608:])
    with pytest.raises(DataError, match=r"part-00001\.parquet is damaged"):
        made(metadata, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_plan_is_told(tmp_path: Path, metadata: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(DataError, match="does not exist; run python -m data_prep plan"):
        read_plan(output)
    made(metadata, output)
    folder = output / "plan"
    (folder / "00001.parquet").unlink()
    with pytest.raises(DataError, match=r"00001\.parquet is missing"):
        read_plan(output)
    for text in ("", "[]", "{}", '{"format": 1, "parts": 7}', '{"format": 1, "parts": []}', '{"format": 2}', "\0"):
        (folder / "plan.json").write_text(text)
        with pytest.raises(DataError, match=r"plan again|another folder"):
            read_plan(output)


def test_values_that_no_parquet_column_takes(tmp_path: Path) -> None:
    rows = [{"width": 1e300, "height": 1e300}, {"width": 100, "height": 100, "id": ["\ud800", 10**30]}]
    lines = [json.dumps({"url": f"http://{n}.example/", "caption": "a cat", **row}) for n, row in enumerate(rows)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = made(tmp_path / "a.jsonl", tmp_path / "out")
    [part] = [tmp_path / "out" / "plan" / part["file"] for part in found["parts"]]
    table = pq.read_table(part).to_pydict()
    assert table["width"] == [None, 100]
    assert table["id"] == [None, "['\\ud800', 1000000000000000000000000000000]"]


def test_interrupted_it_leaves_nothing(tmp_path: Path, metadata: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Any, sources: Any, advance: Any) -> Any:
        yield from ()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.Funnel, "passing", interrupted)
        assert main(["plan", "--metadata", str(metadata), "--output", str(tmp_path / "out")]) == 130
    assert list((tmp_path / "out").iterdir()) == []
    assert made(metadata, tmp_path / "out")["planned"]


def test_dry_run_writes_nothing(tmp_path: Path, metadata: Path) -> None:
    found = dry_run([metadata], AUTO, Settings())
    assert (found["rows"], found["counts"]["nsfw"]) == (28, 10)
    assert found["examples"]["url"] == ["ftp://a.example/"] * 2
    assert list(tmp_path.iterdir()) == [metadata]


def test_command_line(tmp_path: Path, metadata: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--metadata", str(metadata), "--output", str(tmp_path / "out"), "--shard-size", "4"]
    assert main([*command, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "40 rows read, 28 taken (70.0%)" in out
    assert "no http(s) URL, or one with credentials\n    ftp://a.example/" in out
    assert not (tmp_path / "out").exists()
    assert main(command) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'out'}: planned\n  1 part, shards of 4\n")
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["planned"] is False
    assert main([*command, "--min-side", "70"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    for words in (["--sample", "2"], ["--columns", "url"], ["--shard-size", "0"], ["--shards-per-part", "10001"]):
        with pytest.raises(SystemExit) as caught:
            main([*command, *words])
        assert caught.value.code == 2
        assert words[0] in capsys.readouterr().err


def test_names_of_any_bytes(tmp_path: Path, metadata: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = metadata.rename(tmp_path / "meta\udcff")
    (folder / "part-00001.parquet").rename(folder / "part-\udce9.parquet")
    (folder / "\udce9.json").touch()
    (folder / "z\udce9.csv").write_text("SAMPLE_ID,URL,TEXT,HEIGHT,WIDTH,LICENSE,NSFW,similarity\n")
    command = ["plan", "--metadata", str(folder), "--output"]
    for words in (["--dry-run"], [], ["--json"]):
        assert main([*command, str(tmp_path / "out"), *words]) == 0
    found = read_plan(tmp_path / "out")
    assert (found["rows"], found["inputs"][1]["path"]) == (28, "part-\udce9.parquet")
    check_metadata([folder], tmp_path / "out")
    (folder / "part-\udce9.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="is damaged or no parquet file"):
        made(folder, tmp_path / "out")
    with pytest.raises(SystemExit):
        main([*command, str(tmp_path / "out\udcff")])
    assert "--output must be a name in UTF-8" in capsys.readouterr().err


GENERATE = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
rows, group = 1_000_000, 250_000
with pq.ParquetWriter(sys.argv[1], pa.schema([("url", pa.string()), ("caption", pa.string())])) as file:
    for start in range(0, rows, group):
        numbers = range(start, start + group)
        urls = [f"https://host{n % 9973}.example/media/catalog/{n:x}/picture-{n}.jpg?width=640" for n in numbers]
        captions = [f"a photo of thing number {n} in a shop" for n in numbers]
        file.write_table(pa.table({"url": urls, "caption": captions}))
"""

MEASURE = """
import resource, sys
from data_prep.__main__ import main
assert main(["plan", "--metadata", sys.argv[1], "--output", sys.argv[2]]) == 0
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """10 M rows need less than 1.5 GB: what a tenth of them needs beyond a start, ten times, with the start."""

    def run(*command: str) -> str:
        root = Path(__file__).parents[3]
        return subprocess.run(
            [sys.executable, "-c", *command], cwd=root, capture_output=True, text=True, timeout=900, check=True
        ).stdout

    run(GENERATE, str(tmp_path / "large.parquet"))
    pq.write_table(pq.ParquetFile(tmp_path / "large.parquet").read_row_group(0)[:1000], tmp_path / "small.parquet")
    peaks = {}
    for name in ("small", "large"):
        out = run(MEASURE, str(tmp_path / f"{name}.parquet"), str(tmp_path / name))
        peaks[name] = int(out.split("peak ")[1]) * 1024
    assert read_plan(tmp_path / "large")["rows"] == 1_000_000
    assert peaks["small"] + 10 * (peaks["large"] - peaks["small"]) < 1.5e9
