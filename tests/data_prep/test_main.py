"""Tests of `python -m data_prep`: exit codes, one clear sentence, summaries for people and programs."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_prep import __main__ as cli
from data_prep.errors import DataError

STATS: dict[str, Any] = {
    "built": True,
    "sets": {"train": {"pictures": 9, "concepts": 3, "vendors": {"noto": 9}}},
    "failed": {"noto-1f600": "why"},
}


def run(monkeypatch: pytest.MonkeyPatch, outcome: Any, *words: str) -> int:
    """Run the command line with a build that gives or raises `outcome`."""

    def build(*arguments: Any) -> Any:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr("data_prep.emoji.build.build", build)
    return cli.main(["emoji", "--output", "out", *words])


def test_summary(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, STATS) == 0
    assert capsys.readouterr().out.splitlines() == [
        "out: built",
        "  train: 9 pictures of 3 concepts (noto 9)",
        "  left out: noto-1f600",
    ]
    assert run(monkeypatch, {**STATS, "built": False, "failed": {}}, "--json") == 0
    assert json.loads(capsys.readouterr().out)["built"] is False


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DataError("it is so; do that"), "error: it is so; do that\n"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "error: out: No space left on device; free some space and run",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            "error: /x: Permission denied; correct that and run",
        ),
    ],
)
def test_failure_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, words: str
) -> None:
    assert run(monkeypatch, error) == 1
    found = capsys.readouterr()
    assert found.err.startswith(words)
    assert found.err.count("\n") == 1
    assert found.out == ""


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, KeyboardInterrupt()) == 130
    assert "run the same command again" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["--heldout-vendor", "apple"], ["--image-size", "4"], ["--workers", "0"], ["--no-such-option"], ["--seed", "x"]],
)
def test_wrong_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, STATS, *words)
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--metadata", "x", "--output", "y", "--min-similarity", "nan"],
        ["verify", "x", "--max-flawed", "NaN"],
        ["download", "--output", "y", "--deadline", "nan"],
    ],
)
def test_nan_is_no_number(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    assert "must be a number, found nan" in capsys.readouterr().err


def test_a_reader_that_went_away_is_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("url,caption\nhttp://a.example/1,a caption\n")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "data_prep", "plan", "--metadata", "a.csv", "--output", "out", "--dry-run"]
    for unbuffered in ("", "1"):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": unbuffered},
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (1, b"")
    os.close(writer)


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["emoji", "--help"])
    assert caught.value.code == 0
    assert "python -m data_prep emoji --output data/emoji\n" in capsys.readouterr().out


def test_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "data_prep"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "usage: python -m data_prep" in done.stderr
