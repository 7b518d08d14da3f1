"""Tests of `python -m data_prep`: exit codes, one clear sentence, summaries for people and programs."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_prep import __main__ as cli
from data_prep.errors import DataError

ROOT = Path(__file__).parents[2]
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


def test_an_interrupt_while_the_options_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(parser: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("data_prep.commands.emoji.add_arguments", interrupted)
    assert cli.main(["emoji", "--output", "out"]) == 130
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


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--metadata", "a.csv", "--output", "out", "--dry-run"],
        ["plan", "--metadata", "a.csv", "--output", "out", "--dry-run", "--json"],
        ["plan", "--help"],
        ["verify", "bad", "--workers", "1", "--json"],
    ],
    ids=["text", "json", "help", "error"],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_went_away_is_told_nothing(tmp_path: Path, words: list[str], unbuffered: str) -> None:
    (tmp_path / "a.csv").write_text("url,caption\nhttp://a.example/1,a caption\n")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.tar").write_bytes(b"no tar")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "data_prep", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    # Some releases of Python have an argparse that passes over it.
    assert done.returncode in ((0, 1) if unbuffered and "--help" in words else (1,))
    assert re.sub("(verify|error): .*\n", "", done.stderr) == ""


@pytest.mark.parametrize(("words", "code"), [("--help", 0), ("check nothing", 1)])
def test_an_output_that_is_closed_is_no_error(words: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m data_prep {words} >&-', sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert re.match("(usage|error): ", done.stderr)  # argparse has its help go there then
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_modules_are_imported(tmp_path: Path, number: int) -> None:
    """The first of them that is imported late sends it."""
    (tmp_path / "argparse.py").write_text(f"import os\nos.kill(os.getpid(), {int(number)})\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "data_prep"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr == "interrupted; nothing half-built is left, run the same command again\n"


# Python runs it when it starts: the command's work is to send itself signals, and so is what is done at its exit.
SIGNALLED = """
import atexit, importlib.abc, os, sys

class Late(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "data_prep.laion.check":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Late())
atexit.register(lambda: [os.kill(os.getpid(), {number}) for _ in range({late})])
"""


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_it_works_and_one_while_it_ends(tmp_path: Path, number: int, late: int) -> None:
    (tmp_path / "sitecustomize.py").write_text(SIGNALLED.format(number=int(number), late=late))
    done = subprocess.run(
        [sys.executable, "-m", "data_prep", "check", "nothing"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == "interrupted; nothing half-built is left, run the same command again\n"
    assert done.returncode == 130


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["emoji", "--help"])
    assert caught.value.code == 0
    assert "python -m data_prep emoji --output data/emoji\n" in capsys.readouterr().out


def test_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "data_prep"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "usage: python -m data_prep" in done.stderr
