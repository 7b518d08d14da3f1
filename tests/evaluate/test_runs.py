"""The run folder, and every reason to refuse it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluate.errors import RefusedError
from evaluate.runs import read_losses, read_run

SETS = ("heldout_vendor",)
FILES: dict[str, dict[str, Any]] = {
    "settings.json": {"model": "m", "train_data": "d", "command": "c"},
    "train.json": {"model": "m", "steps": 2, "train_minutes": 1.0, "images_per_s": 3.0, "samples_seen": 4},
    "zero-shot.json": {
        "model": "m",
        "kind": "eq7",
        "dataset": "emoji",
        "results": {"heldout_vendor": {"classes": 3}},
        "manifests": {},
        "checkpoint": {},
        "parameters": {},
        "image_size": 64,
        "command": "e",
    },
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 5.0}\n{"step": 2, "loss": 4.0}\n')
    return tmp_path


def test_reads_all(run: Path) -> None:
    read = read_run(run, SETS)
    assert (read.model, read.name, read.steps, read.losses, read.non_finite) == ("m", run.name, [1, 2], [5, 4], 0)
    assert read.checkpoint == run / "checkpoint.pt"


@pytest.mark.parametrize(
    ("name", "writer"),
    [("settings.json", "training"), ("train.json", "training"), ("zero-shot.json", "evaluate zero-shot")],
)
def test_a_missing_or_broken_file_names_its_writer(run: Path, name: str, writer: str) -> None:
    (run / name).write_text("{")
    with pytest.raises(RefusedError, match=f"is not JSON .*python -m {writer}"):
        read_run(run, SETS)
    (run / name).write_text("[]")
    with pytest.raises(RefusedError, match=f"{name} has no model, .*python -m {writer}"):
        read_run(run, SETS)
    (run / name).unlink()
    with pytest.raises(RefusedError, match=f"{name} is missing. `python -m {writer}` writes it"):
        read_run(run, SETS)


def change(name: str, **values: Any) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        (run / name).write_text(json.dumps(FILES[name] | values))

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change("train.json", model="other"), "its files are of different models"),
        (change("zero-shot.json", results={}), "no figures for heldout_vendor"),
        (lambda run: (run / "metrics.jsonl").unlink(), r"metrics\.jsonl is missing"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "no row with a finite loss"),
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), "line 1: KeyError"),
        (lambda run: (run / "metrics.jsonl").write_text("x\n"), "line 1: JSONDecodeError"),
    ],
)
def test_refuses(run: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(run)
    with pytest.raises(RefusedError, match=message):
        read_run(run, SETS)


def test_a_missing_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no such folder"):
        read_run(tmp_path / "nothing", SETS)


def test_losses_of_a_killed_and_resumed_run(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    rows = [(1, "5.0"), (2, "NaN"), (3, "3.5"), (4, "null"), (3, "3.0")]
    text = "".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in rows)
    file.write_text(text + '{"step": 5, "lo')
    assert read_losses(file) == ([1, 3], [5.0, 3.0], 2)
