"""The Triton kernels without a GPU: in the interpreter against float64, and compiled for two generations of GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent


def script(name: str, **environment: str) -> Any:
    """What a script prints; in a process of its own, as the interpreter is chosen when kernels are defined."""
    done = subprocess.run(
        [sys.executable, str(HERE / name)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1])} | environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_interpreted_kernels_equal_float64_and_stay_in_bounds() -> None:
    found = script("triton_interpreted.py", TRITON_INTERPRET="1")
    assert len(found) == 5 * 5 * 2
    for row in found:
        assert row["error"] < (2e-3 if "float16" in row["case"] else 5e-6), row
        assert row["overwritten"] == 0, row


@pytest.mark.slow
def test_compiled_kernels_spill_no_registers() -> None:
    found = script("triton_compiled.py")
    assert len(found) == 5 * 3 * 2 * 4 * 3
    assert {case: spilled for case, spilled in found.items() if spilled} == {}
