"""The GPU's check, run on the CPU: what is right passes, what is not is named."""

import pytest
import torch

from benchmarks import gpu


def test_right_kernels_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SHAPES", ((1, 2, 77, 80),))
    assert gpu.check("cpu") == []


def test_wrong_kernels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu.packed
    monkeypatch.setattr(gpu, "SHAPES", ((1, 2, 77, 80),))
    monkeypatch.setattr(gpu, "packed", lambda *t, **form: right(*t, **form) * (1.2 if form["kind"] == "eq4" else 1))
    off = gpu.check("cpu")
    assert len(off) == 6
    assert all(sentence.startswith("eq4 ") for sentence in off)
    monkeypatch.setattr(gpu, "packed", lambda *t, **form: right(*t, **form) * torch.nan)
    assert len(gpu.check("cpu")) == 15


def test_bandwidth_is_said_of_every_kind() -> None:
    lines = gpu.bandwidth("cpu", 50, 2)
    assert [line.split()[0] for line in lines] == ["eq7", "eq4", "inline"]
    assert all("% of a copy's" in line for line in lines)
