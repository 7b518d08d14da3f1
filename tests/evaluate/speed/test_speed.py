"""The command on short lengths, and what is made of times, with times made up by hand. No time is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from evaluate.__main__ import main
from evaluate.errors import RefusedError
from evaluate.speed.errors import error_of
from evaluate.speed.memory import memory_units
from evaluate.speed.operators import Case, attend, check_compiler, exact, inputs
from evaluate.speed.plot import draw
from evaluate.speed.table import crossover, heads_at, summarise
from evaluate.speed.timing import Times, interleaved
from evaluate.speed.towers import tower, without_attention

KEYS = {"kind", "n", "dtype", "device", "pass", "ratio_to_sdpa", "memory_units", "error", "sdpa_error"}


def test_the_command_writes_rows_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--n", "17", "50", "--heads", "1", "--quick", "--longest-softmax", "17", "--device", "cpu"]
    words += ["--dtype", "float32", "bfloat16", "--kinds", "eq7"]
    assert main(["speed", "--output", str(tmp_path / "s.json"), *words]) == 0
    result = json.loads((tmp_path / "s.json").read_text())
    rows = result["rows"]
    assert len(rows) == 2 * 2 * 2
    assert all(row.keys() >= KEYS for row in rows)
    assert {row["sdpa"] for row in rows if row["n"] == 17} == {"measured"}
    assert {row["sdpa"] for row in rows if row["n"] == 50} == {"extrapolated as N² from 17 tokens"}
    assert all(row["ratio_to_sdpa"] > 0 for row in rows)
    assert all(0 < row["error"] < (1e-6 if row["dtype"] == "float32" else 2e-2) for row in rows)
    assert {(row["device"], row["sdpa_backend"]) for row in rows} == {("cpu", "flash")}
    table = capsys.readouterr().out
    assert "* softmax was not measured at this length" in table
    assert "eq7 float32 forward: " in table
    assert (tmp_path / "s.svg").read_text().startswith("<svg")


def test_towers_beside_softmax_and_beside_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--n", "17", "--heads", "1", "--quick", "--kinds", "eq7", "--device", "cpu"]
    words += ["--model", "tiny-emoji-eq7mean", "--image-size", "48"]
    assert main(["speed", "--output", str(tmp_path / "s.json"), *words]) == 0
    (row,) = json.loads((tmp_path / "s.json").read_text())["towers"]
    assert (row["model"], row["image_size"]) == ("tiny-emoji-eq7mean", 48)
    assert "tiny-emoji-eq7mean at 48 px" in capsys.readouterr().out


@pytest.mark.slow
def test_the_compiled_form_is_measured_beside_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to its longest length, in one graph for each kind, length and pass."""
    words = ["--n", "17", "16386", "--heads", "1", "--quick", "--longest-softmax", "17", "--device", "cpu"]
    counters.clear()
    output = ["--output", str(tmp_path / "s.json")]
    assert main(["speed", *output, *words, "--kinds", "eq7", "inline", "--compiled"]) == 0
    assert counters["stats"]["unique_graphs"] == 1 + 2 * 2  # the check's, then two kinds' in two passes
    for row in json.loads((tmp_path / "s.json").read_text())["rows"]:
        if row["n"] == 17:
            low, high = row["compiled_range"]
            assert 0 < low <= row["ratio_to_compiled"] <= high
        else:
            assert row["ratio_to_compiled"] is row["compiled_range"] is None
    table = capsys.readouterr().out
    assert table.splitlines()[0].endswith("  compiled")
    assert "compiled: time of the same kind in plain PyTorch under torch.compile over the kind's" in table


def test_the_compiled_form_wants_a_compiler(tmp_path: Path) -> None:
    """In a process of its own: PyTorch looks for the compiler once."""
    words = ["--n", "17", "--kinds", "eq7", "--device", "cpu", "--compiled", "--output", str(tmp_path / "s.json")]
    done = subprocess.run(
        [sys.executable, "-m", "evaluate", "speed", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"CXX": "/nonexistent"},
    )
    assert done.returncode == 1
    assert "--compiled: torch.compile does not work here" in done.stderr
    assert "/nonexistent" in done.stderr
    assert "install g++ or name one in CXX" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_figure_of_uncompiled_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    with pytest.raises(RefusedError, match="it is switched off"):
        check_compiler("cpu")


def test_what_cannot_be_measured_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--kinds", "eq5"], "--kinds 'eq5' is not known. Known: eq7, eq4, inline, sema"),
        (["--dtype", "int8"], "--dtype 'int8' is not known"),
        (["--n", "100"], "for example 82 or 101 tokens"),
        (["--n", "50", "--longest-softmax", "17"], "Give at least the shortest, 50"),
        (["--n", "16642", "--longest-softmax", "16642", "--compiled"], "up to 16385 tokens, and --n begins at 16642"),
        (["--model", "ViT-B-17"], "not a registered model"),
        (["--model", "RN50"], "no transformer of OpenCLIP's own"),
        (["--model", "ViT-B-16", "--image-size", "224", "4"], "--image-size 4: ViT-B-16's patches are larger, 16 px"),
    ):
        assert main(["speed", "--output", str(tmp_path / "s.json"), "--device", "cpu", *words]) == 1
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_crossover_is_between_lengths_by_a_line_in_logs() -> None:
    assert crossover([(100, 0.5), (400, 2.0)]) == pytest.approx(200)
    assert crossover([(100, 1.5), (400, 0.9), (1600, 3.0)]) == pytest.approx(400 * 4 ** (0.10536 / 1.20397), rel=1e-3)
    assert crossover([(100, 1.5), (400, 2.0)]) == 100
    assert crossover([(100, 1.5), (400, 0.9)]) is None
    assert crossover([]) is None


def test_the_exponent_is_of_the_time_of_a_head() -> None:
    rows = [
        {"kind": "eq7", "dtype": "float32", "pass": "forward", "n": n, "heads": heads, "milliseconds": ms * heads}
        | {"ratio_to_sdpa": ratio}
        for n, heads, ms, ratio in ((100, 12, 1.0, 0.5), (1000, 12, 10.0, 5.0), (10_000, 6, 100.0, None))
    ]
    (found,) = summarise(rows)
    assert found["exponent"] == pytest.approx(1.0)
    assert found["faster_from"] == pytest.approx(100 * 10 ** (0.30103 / 1.0))
    assert [heads_at(n, 12) for n in (197, 16_385, 4_000_000)] == [12, 6, 1]


def test_ratios_are_of_the_same_round() -> None:
    assert Times([1.0, 2.0, 4.0]).faster_than(Times([2.0, 4.0, 4.0])) == (2.0, 1.0, 2.0)


def test_every_function_runs_as_often_as_the_others() -> None:
    calls: list[str] = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, "cpu", budget=0.0)
    assert calls[:2] == ["a", "b"]  # to warm up
    assert {tuple(calls[i : i + 2]) for i in (2, 4, 6)} == {("a", "b"), ("b", "a")}
    assert {len(t.seconds) for t in times.values()} == {3}


@pytest.mark.parametrize("kind", ["eq7", "eq4", "inline", "sema", "softmax"])
def test_errors_are_of_the_narrow_dtype(kind: str) -> None:
    for step in ("forward", "forward_backward"):
        fine = error_of(Case(kind, 50, "float32", "cpu", 2), step)
        coarse = error_of(Case(kind, 50, "bfloat16", "cpu", 2), step)
        assert fine is not None
        assert coarse is not None
        assert 1e-9 < fine < 1e-6 < 1e-4 < coarse < 3e-2
    q, k, v = inputs(Case(kind, 50, "float32", "cpu", 2), grad=False)
    assert torch.allclose(attend(kind, 50)(q, k, v), exact(kind, 50)(q, k, v), atol=1e-5)


def test_softmax_without_end_has_no_error() -> None:
    assert error_of(Case("softmax", 65_537, "float32", "cpu", 1), "forward") is None
    assert error_of(Case("eq7", 4_000_000, "float16", "cpu", 1), "forward") is None


def test_memory_is_the_outputs_and_little_more() -> None:
    """o, or o and three gradients, and for softmax on a CPU no N x N matrix either."""
    cases = [(Case("eq7", 4097, "float32", "cpu", 2), step) for step in ("forward", "forward_backward")]
    forward, both = memory_units(cases)
    assert 0.95 < forward < 1.4
    assert 3.9 < both < 4.6


def test_the_ceiling_has_every_weight_and_no_attention() -> None:
    visual = tower("tiny-emoji-softmax", 48)
    shapes = {name: p.shape for name, p in visual.named_parameters()}
    images = torch.randn(2, 3, 48, 48)
    bare = without_attention(tower("tiny-emoji-softmax", 48))
    assert sum(p.numel() for p in bare.parameters()) == sum(s.numel() for s in shapes.values())
    tokens = {}
    bare.transformer.resblocks[-1].register_forward_hook(lambda *a: tokens.update(out=a[-1]))  # type: ignore[union-attr]
    with torch.no_grad():
        bare(images)
        first = tokens["out"].clone()
        images[:, :, :8, :8] += 1
        bare(images)
    assert torch.equal(first[:, -1], tokens["out"][:, -1]), "no token sees another"


def test_lengths_sema_cannot_have() -> None:
    with pytest.raises(RefusedError, match="sema takes a square"):
        attend("sema", 1)


def test_no_drawing_of_someone_else_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--n", "17", "--heads", "1", "--quick", "--kinds", "eq7", "--device", "cpu"]
    (tmp_path / "s.svg").write_text("<svg>mine</svg>")
    assert main(["speed", "--output", str(tmp_path / "s.json"), *words]) == 1
    assert "s.svg is there and was not written by `evaluate`" in capsys.readouterr().err
    assert (tmp_path / "s.svg").read_text() == "<svg>mine</svg>"
    assert main(["speed", "--output", str(tmp_path / "s.svg"), *words]) == 1
    row = {"kind": "eq7", "dtype": "float32", "pass": "forward_backward", "n": 17, "ratio_to_sdpa": 2.0}
    (tmp_path / "s.svg").write_text(draw([row]))
    assert main(["speed", "--output", str(tmp_path / "s.json"), *words]) == 0


def test_a_process_that_ends_while_memory_is_measured_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluate.speed.memory.sys.executable", "false")
    with pytest.raises(RefusedError, match="memory could not be measured: 1"):
        memory_units([(Case("eq7", 17, "float32", "cpu", 1), "forward")])
