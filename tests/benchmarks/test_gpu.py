"""The GPU's check, run on the CPU: what is right passes, what is not is named."""

import pytest
import torch

from benchmarks import gpu
from open_clip_linear.kernels import chunked


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


def test_forms_are_timed_side_by_side() -> None:
    lines = gpu.fused_beside_split("cpu", {"fused": chunked, "split": chunked}, 37, 1)
    assert [line.split()[0] for line in lines] == ["eq7", "eq4", "inline"]
    for line in lines:
        assert line.count(" times as fast as split") == 2
        assert "N=37 B=1 H=12 bf16: forward fused " in line


def test_right_windows_pass_and_wrong_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.wrong_windows("cpu", 3) == []
    right = gpu.softmax_attention
    monkeypatch.setitem(gpu.WINDOW_KERNELS, "SDPA", lambda *t, valid_BN: right(*t, valid_BN=valid_BN) * 1.2)
    off = gpu.wrong_windows("cpu", 3)
    assert len(off) == 3
    assert all(sentence.startswith("sema window=3 SDPA ") for sentence in off)


def test_the_command_can_be_tried_without_a_gpu() -> None:
    assert len(gpu.measure("cpu")) == 9


def test_windows_are_timed_in_every_dtype() -> None:
    lines = gpu.ways_through_windows("cpu", 2, 4, 1)
    assert [line.split()[5].rstrip(":") for line in lines] == ["float32", "float16", "bfloat16"]
    assert all(" µs: SDPA " in line and " times as fast as matmul" in line for line in lines)
    assert all(", SDPA window by window " in line for line in lines)
