"""What is found in folders, what is left out and why, and how checkpoints are called."""

import json
from pathlib import Path
from typing import Any

import pytest
import results

from evaluate.errors import RefusedError
from evaluate.found import collect, subject_of, subjects
from evaluate.sections import retrieval, zero_shot


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_run(folder: Path, model: str = "m") -> Path:
    write(folder / "settings.json", {"model": model, "train_data": "d", "command": "c"})
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 5.0}\n')
    return folder


def test_runs_and_results_in_a_folder_and_in_those_directly_in_it(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write(tmp_path / "a" / "any name.json", results.zero_shot())
    write(tmp_path / "r.json", results.retrieval())
    write(tmp_path / "a" / "deeper" / "r.json", results.retrieval())
    write(tmp_path / "other.json", {"x": 1})
    write(tmp_path / "list.json", [1])
    found = collect([tmp_path, tmp_path / "a"])
    assert [run.path.name for run in found.runs] == ["a"], "each folder once"
    assert [r.path.name for r in found.results[zero_shot]] == ["any name.json"]
    assert [str(r.path.relative_to(tmp_path)) for r in found.results[retrieval]] == ["r.json", "a/deeper/r.json"]


def test_what_is_broken_or_later_is_named(tmp_path: Path) -> None:
    write(tmp_path / "good.json", results.zero_shot())
    write(tmp_path / "later.json", results.zero_shot(format=2))
    write(tmp_path / "strange.json", results.zero_shot(format="x"))
    write(tmp_path / "short.json", results.zero_shot(results={"a": {"top1": 1}}))
    (tmp_path / "cut.json").write_text('{"model": ')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.json").write_text("[" * 200_000)
    write_run(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("nothing")
    found = collect([tmp_path])
    assert [r.path.name for r in found.results[zero_shot]] == ["good.json"]
    said = "\n".join(found.left_out)
    assert "later.json is left out: its format is 2, and this version knows up to 1" in said
    assert "strange.json is left out: its format is x" in said
    assert "short.json is left out: not as `evaluate zero-shot` writes it (KeyError" in said
    for name in ("cut", "binary", "deep"):
        assert f"{name}.json is left out: it is not JSON" in said
    assert "A run is left out: " in said
    assert len(found.left_out) == 7


def test_nothing_usable_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    write(tmp_path / "other.json", {"x": 1})
    with pytest.raises(RefusedError, match=r"runs \(settings\.json with metrics\.jsonl\) .* zero-shot.*other\.json"):
        collect([tmp_path])
    write(tmp_path / "later.json", results.zero_shot(format=2))
    with pytest.raises(RefusedError, match=r"later\.json is left out"):
        collect([tmp_path])
    with pytest.raises(RefusedError, match="no such folder"):
        collect([tmp_path / "nothing"])
    with pytest.raises(RefusedError, match="a file"):
        collect([tmp_path / "other.json"])


def test_a_folder_with_nothing_beside_one_with_something_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a" / "r.json", results.zero_shot())
    (tmp_path / "b").mkdir()
    assert collect([tmp_path / "a", tmp_path / "b"]).left_out == [f"{tmp_path / 'b'}: nothing to show in it."]


def checkpoint(sha256: str) -> dict[str, str]:
    return {"path": "p", "sha256": sha256}


def test_a_checkpoint_has_one_name_and_colour_wherever_its_results_lie(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    own = {"model": "m", "checkpoint": checkpoint("1" * 64)}
    write(tmp_path / "run" / "z.json", results.zero_shot(**own))
    write(tmp_path / "z" / "z.json", results.zero_shot(**own))
    write(tmp_path / "z" / "r.json", results.retrieval(**own))
    found = collect([tmp_path / "run", tmp_path / "z"])
    names = subjects(found)
    assert set(names.values()) == {("m", "s0")}
    assert names[subject_of(found.runs[0], found)] == ("m", "s0")


def test_models_that_repeat_are_told_apart(tmp_path: Path) -> None:
    for folder, model in (("a", "m"), ("b", "m"), ("c", "n")):
        write_run(tmp_path / folder, model)
    for name, sha256 in (("x", "1"), ("y", "2")):
        write(tmp_path / "d" / f"{name}.json", results.zero_shot(model="m", checkpoint=checkpoint(sha256 * 64)))
    names = subjects(collect([tmp_path / name for name in "abcd"]))
    assert list(names.values()) == [
        ("m (a)", "s0"),
        ("m (b)", "s1"),
        ("n", "s2"),
        ("m (d, 11111111)", "s3"),
        ("m (d, 22222222)", "s4"),
    ]
