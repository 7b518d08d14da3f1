"""The Triton kernels without a GPU: in the interpreter against float64, compiled for two generations of GPUs, and what
is launched for which tensors.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from torch._subclasses import FakeTensorMode

from open_clip_linear.kernels import chunked, ops, triton_affine, triton_short, triton_split, triton_tiles
from open_clip_linear.kernels.form import form_of

HERE = Path(__file__).parent
LITTLE = 99 * 1024  # bytes of shared memory that a program may have on GPUs that have little, by NVIDIA's guide
SHORT = ["_forward", "_backward"]
SPLIT = ["_sum_tokens", "_read_state", "_read_queries", "_sum_tokens", "_read_keys"]


def script(name: str, kernels: str, **environment: str) -> Any:
    """What a script prints; in a process of its own, as the interpreter is chosen when kernels are defined."""
    done = subprocess.run(
        [sys.executable, str(HERE / name), kernels],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1])} | environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["split", "short"])
def test_interpreted_kernels_equal_float64_and_stay_in_bounds(kernels: str) -> None:
    found = script("triton_interpreted.py", kernels, TRITON_INTERPRET="1")
    assert len(found) == 5 * 6 * 2 + 6 + 1 + 1
    for row in found:
        bound = 2e-3 if "float16" in row["case"] else 5e-6
        if row["case"].startswith("(1, 1, 1, "):  # gradients of one token are sums of large terms that cancel
            bound *= 10
        assert row["error"] < bound, row
        assert row["overwritten"] == 0, row


@pytest.mark.slow
@pytest.mark.parametrize(("kernels", "cases"), [("split", 5 * 3 * 3 * 4 * 2), ("short", (5 * 3 - 3) * 3 * 2 * 2)])
def test_compiled_kernels_spill_no_registers_and_fit(kernels: str, cases: int) -> None:
    found = script("triton_compiled.py", kernels)
    assert len(found) == cases
    assert {case: spilled for case, (spilled, _) in found.items() if spilled} == {}
    small = ("D=32 ", "D=64 ")
    for case, (_, shared) in found.items():
        assert shared <= (LITTLE if any(head in case for head in small) else triton_affine.SHARED_MEMORY), case


def launches(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: torch.dtype
) -> list[tuple[str, tuple[int, ...]]]:
    """Names and grids of the kernels that forward and backward launch, in order; nothing is computed."""
    found = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *args, **constants: found.append((self.name, grid))

    for module, names in ((triton_split, set(SPLIT)), (triton_short, SHORT)):
        for name in names:
            monkeypatch.setattr(module, name, Kernel(name))
    q, k, v, do, o, dq, dk, dv = (torch.empty(shape, dtype=dtype, device="meta") for _ in range(8))
    form = form_of("eq4", "one", True, *shape[2:])
    S, rows = triton_affine.forward(q, k, v, None, o, form)
    triton_affine.backward(do, q, k, v, None, S, rows, dq, dk, dv, form)
    return found


@pytest.mark.parametrize(("room", "expected"), [(99 * 1024, [64]), (163 * 1024, [64, 80, 128])])
def test_large_heads_are_for_gpus_with_the_memory(
    monkeypatch: pytest.MonkeyPatch, room: int, expected: list[int]
) -> None:
    monkeypatch.setattr(triton_affine, "_room", lambda device: room)
    heads = [torch.empty(1, 1, 1, D, dtype=torch.bfloat16, device="meta") for D in (8, 64, 80, 128, 160)]
    assert [q.shape[-1] for q in heads if triton_affine.supported(q)] == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((11, 12, 1024, 64), torch.float32, SHORT),
        ((11, 12, 1, 128), torch.bfloat16, SHORT),
        ((132, 1, 197, 96), torch.float16, SHORT),
        ((11, 12, 197, 96), torch.float32, SPLIT),  # D x D matrices beyond shared memory
        ((11, 12, 1025, 64), torch.bfloat16, SPLIT),
        ((1, 131, 197, 64), torch.bfloat16, SPLIT),
    ],
)
def test_many_short_heads_take_one_launch_each_way(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: torch.dtype, expected: list[str]
) -> None:
    assert [name for name, _ in launches(monkeypatch, shape, dtype)] == expected


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 64), (1, 1, 4_000_000, 64), (1, 12, 65_537, 64), (8192, 12, 1025, 64), (8192, 12, 577, 128)]
)
def test_grids_cover_every_row_once_within_what_cuda_takes(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    B, H, N, _ = shape
    q = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    tiles = math.ceil(N / triton_tiles.tile_rows(q))
    for name, grid in launches(monkeypatch, shape, torch.bfloat16):
        assert grid[0] < 2**31
        if name == "_sum_tokens":
            heads, parts = grid
            span = triton_split.split(q)[1]
            assert heads == B * H
            assert parts <= 65_535
            assert (parts - 1) * span < N <= parts * span
            assert span % triton_tiles.tile_rows(q) == 0
        else:
            assert grid == ((B * H,) if name in SHORT else (B * H * tiles,))


def test_an_empty_batch_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_triton", lambda: triton_affine)
    monkeypatch.setattr(triton_affine, "_room", lambda device: LITTLE)
    with FakeTensorMode():
        empty, one = (torch.empty(B, 2, 5, 64, dtype=torch.bfloat16, device="cuda") for B in (0, 1))
        assert ops.kernels_for(empty) is chunked
        assert ops.kernels_for(one) is triton_affine
