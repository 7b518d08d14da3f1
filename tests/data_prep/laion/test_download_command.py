"""The options of the download, its line of progress, and what is refused before anything starts."""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from data_prep.__main__ import main
from data_prep.commands.download import size
from data_prep.errors import DataError
from data_prep.laion import download
from data_prep.laion.columns import parse_columns
from data_prep.laion.layout import read_parts
from data_prep.laion.plan import Shape, plan
from data_prep.laion.program import environment
from data_prep.laion.rules import Settings
from data_prep.laion.state import State
from data_prep.laion.tally import Tally, shares
from data_prep.manifest import ShardEntry, write_manifest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A plan of one row."""
    table = {"url": ["https://example.org/1.jpg"], "caption": ["a picture of something"]}
    parquet.write_table(pa.table(table), tmp_path / "metadata.parquet")
    plan([tmp_path / "metadata.parquet"], tmp_path / "laion", parse_columns("auto"), Settings(), Shape())
    return tmp_path / "laion"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500", 500), ("500M", 524_288_000), ("2.5g", 2_684_354_560), ("1T", 1 << 40), ("8 K", None)],
)
def test_sizes(text: str, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(argparse.ArgumentTypeError, match="such as 500M"):
            size(text)
    else:
        assert size(text) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stall", "60"], r"--stall 60.0 ends img2dataset .* give more than 80.0"),
        (["--processes", "0"], r"--processes must be greater than 0, found 0"),
        (["--min-success", "5"], r"--min-success is a share, 0 to 1, found 5.0"),
        (["--retries", "-1"], r"--retries must not be negative"),
        (["--part", "3/2"], r"expected I/N with I from 1 to N, found '3/2'"),
        (["--disk-floor", "much"], r"expected a size such as 500M or 2.5G, found 'much'"),
    ],
)
@pytest.mark.parametrize("command", ["download", "retry"])
def test_wrong_usage(
    output: Path, capsys: pytest.CaptureFixture[str], command: str, words: Sequence[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--output", str(output), *words])
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err)


def test_without_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["download", "--output", str(tmp_path)]) == 1
    assert "plan.json does not exist; run python -m data_prep plan" in capsys.readouterr().err


def test_without_img2dataset(output: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["download", "--output", str(output), "--img2dataset-python", str(tmp_path / "none")]) == 1
    assert "does not start (No such file or directory); name another by --img2dataset-python" in capsys.readouterr().err
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')  # a Python without packages
    bare.chmod(0o755)
    assert main(["download", "--output", str(output), "--img2dataset-python", str(bare)]) == 1
    assert "has no img2dataset; install it there" in capsys.readouterr().err


def test_proxies_of_the_environment_are_named_and_not_used(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class StoppedError(Exception):
        """Ends the download before anything is fetched."""

    def stop(output: Path) -> None:
        raise StoppedError

    monkeypatch.setattr(download, "check_program", lambda python: None)
    monkeypatch.setattr(download, "alone", stop)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with pytest.raises(StoppedError):
        download.download(output, download.Settings())
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("HTTPS_PROXY", "http://10.0.0.1:3128")
    monkeypatch.setenv("http_proxy", "http://10.0.0.1:3128")
    with pytest.raises(StoppedError):
        download.download(output, download.Settings())
    assert "http_proxy and https_proxy of the environment not used" in capsys.readouterr().err


def test_workers_of_spark_run_the_python_that_has_img2dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take "python3" of the path, unless its user names another."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert environment("python3.11")["PYSPARK_PYTHON"] == "python3.11"
    assert environment("venv/bin/python")["PYSPARK_PYTHON"] == str(Path("venv/bin/python").absolute())
    monkeypatch.setenv("PYSPARK_PYTHON", "/on/every/worker/python")
    assert environment("venv/bin/python")["PYSPARK_PYTHON"] == "/on/every/worker/python"


@pytest.mark.parametrize("name", ["shards", "parts", "quarantine", "parts/00000"])
def test_folders_on_another_disk_are_refused_before_anything_is_fetched(
    output: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Shards are renamed from one to the other."""
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == output.stat().st_dev:
        pytest.skip("there is no second disk")
    monkeypatch.setattr(download, "check_program", lambda python: None)
    with tempfile.TemporaryDirectory(dir=elsewhere) as other:
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).symlink_to(other)
        with pytest.raises(DataError, match=f"{output / name} is on another disk than {output}.*on one disk"):
            download.download(output, download.Settings())


def test_a_folder_is_no_collected_shard(output: Path) -> None:
    [part] = read_parts(output)
    state = State.read(output, 256)
    state.of(part)["00000"] = {"bytes": 10_240, "rows": 1, "reasons": {"success": 1}}
    part.collected(0).parent.mkdir()
    part.collected(0).write_bytes(bytes(10_240))
    assert download._missing(part, state, Tally(1, 1)) == []
    part.collected(0).unlink()
    part.collected(0).mkdir()
    assert download._missing(part, state, Tally(1, 1)) == [0]


@pytest.mark.parametrize("came", [{"success": 1}, {"HTTP 404": 1}])
@pytest.mark.parametrize("emptied", [False, True])
def test_collected_shards_of_which_only_the_manifest_tells_are_not_downloaded_again(
    output: Path, monkeypatch: pytest.MonkeyPatch, came: dict[str, int], emptied: bool
) -> None:
    """The part's folder, or what was in it, and download.json are both gone."""
    monkeypatch.setattr(download, "check_program", lambda python: None)
    [part] = read_parts(output)
    if emptied:
        part.folder.mkdir(parents=True)
    part.collected(0).parent.mkdir()
    part.collected(0).write_bytes(bytes(10_240))
    with pytest.raises(DataError, match=r"00000-00000.tar is there, but nothing says what came of its rows"):
        download.download(output, download.Settings())
    failures = {reason: count for reason, count in came.items() if reason != "success"}
    entry = ShardEntry(part.collected(0).name, 10_240, "0" * 64, came.get("success", 0), failures)
    write_manifest(output / "shards", [entry])
    for _ in range(2):
        assert download.download(output, download.Settings())["reasons"] == came
    assert not part.folder.exists()


def test_the_line_of_progress() -> None:
    tally = Tally(shards=4, rows=400)
    tally.add({"success": 80, "HTTP 404": 20}, earlier=True)
    tally.add({"success": 90, "timeout": 10})
    tally.running[3] = Counter({"success": 100})
    line = tally.line(tally._started + 10)
    assert line == (
        "download: 3/4 shards, 300/400 rows, 20 rows/s, 90.0 % success (HTTP 404 6.7 %, timeout 3.3 %), 5 s left"
    )


def test_shares_of_nothing() -> None:
    assert shares({}) == "– success"
    assert shares({"DNS": 3}) == "0.0 % success (DNS 100.0 %)"


@pytest.mark.parametrize("command", ["download", "retry", "stats"])
def test_other_metadata_than_the_plans_is_refused(
    output: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    other = output.parent / "other.jsonl"
    other.write_text("{}\n")
    assert main([command, "--metadata", str(other), "--output", str(output)]) == 1
    assert "was planned of other metadata" in capsys.readouterr().err
    assert not (output / "parts").exists()


def test_sigterm_interrupts_also_what_a_script_started_in_the_background() -> None:
    """Shells let such a process ignore Ctrl-C."""
    code = "import os, signal; from data_prep.commands.download import interrupt_on_term; interrupt_on_term()"
    script = f"{sys.executable} -c '{code}; os.kill(os.getpid(), signal.SIGTERM)' & wait $!"
    done = subprocess.run(["sh", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert "KeyboardInterrupt" in done.stderr
