"""The run folder, and every reason to refuse it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluate.errors import RefusedError
from evaluate.runs import is_run, read_losses, read_run

FILES: dict[str, dict[str, Any]] = {
    "settings.json": {"model": "m", "train_data": "d", "command": "c"},
    "train.json": {"model": "m", "steps": 2, "train_minutes": 1.0, "images_per_s": 3.0, "samples_seen": 4},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 5.0}\n{"step": 2, "loss": 4.0}\n')
    return tmp_path


def test_reads_all(run: Path) -> None:
    read = read_run(run)
    assert (read.model, read.train["steps"], read.steps, read.losses, read.non_finite) == ("m", 2, [1, 2], [5, 4], 0)
    assert read.checkpoint == run / "checkpoint.pt"


def test_a_run_that_is_not_finished_is_one(run: Path) -> None:
    (run / "train.json").unlink()
    assert is_run(run)
    assert read_run(run).train == {}
    (run / "metrics.jsonl").unlink()
    assert not is_run(run)


@pytest.mark.parametrize("name", ["settings.json", "train.json"])
def test_a_broken_file_names_its_writer(run: Path, name: str) -> None:
    (run / name).write_text("{")
    with pytest.raises(RefusedError, match=r"is not JSON .*python -m training"):
        read_run(run)
    (run / name).write_text("[]")
    with pytest.raises(RefusedError, match=rf"{name} has no model, .*python -m training"):
        read_run(run)


def change(name: str, **values: Any) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        (run / name).write_text(json.dumps(FILES[name] | values))

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "settings.json").unlink(), r"settings\.json is missing. `python -m training` writes it"),
        (change("train.json", model="other"), "is of 'm', .* of 'other'"),
        (change("train.json", steps="2", samples_seen=None), r"train\.json: steps, samples_seen should be numbers"),
        (change("train.json", train_minutes=float("nan")), "train_minutes should be numbers"),
        (lambda run: (run / "metrics.jsonl").unlink(), r"metrics\.jsonl is missing"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "no row with a finite loss"),
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), "line 1: KeyError"),
        (lambda run: (run / "metrics.jsonl").write_text("x\n"), "line 1: JSONDecodeError"),
    ],
)
def test_refuses(run: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(run)
    with pytest.raises(RefusedError, match=message):
        read_run(run)


def test_losses_of_a_killed_and_resumed_run(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    rows = [(1, "5.0"), (2, "NaN"), (3, "3.5"), (4, "null"), (3, "3.0")]
    text = "".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in rows)
    file.write_text(text + '{"step": 5, "lo')
    assert read_losses(file) == ([1, 3], [5.0, 3.0], 2)
