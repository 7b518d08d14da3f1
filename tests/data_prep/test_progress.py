"""Plain lines where there is no terminal."""

import pytest

from data_prep import progress as module
from data_prep.progress import progress


def test_lines_are_few_and_the_last_says_all(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(5, "folder") as advance:
        for _ in range(5):
            advance(1)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(",")[0] for line in err.splitlines()] == ["folder: 5/5 images"]


def test_a_line_comes_when_time_has_passed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
    with progress(4, "folder") as advance:
        advance(1)
        advance(1)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_slow_work_has_a_rate_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 40.0))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    with progress(5, "kernels", unit="setting") as advance:
        advance(1)
    assert capsys.readouterr().err == "kernels: 1/5 settings, 0.025/s, 160 s left\n"


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress(2, "folder") as advance:
        advance(2)
    assert "\rfolder:   0%|" in capsys.readouterr().err
