"""Peak memory of one call beyond its inputs, in units of N·D·H numbers of its dtype, each in a process of its own.

On a CPU a fresh process forks a child for each case, whose peak resident memory the kernel counts; heads are so many
that a unit is 64 MiB, against which allocators and libraries do not count. On a GPU it is the allocator's own peak.
"""

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection

import torch

from evaluate.errors import RefusedError
from evaluate.speed.operators import DTYPES, HEAD_DIM, Case, attend, inputs, work

LEAST_UNIT = 64 << 20  # bytes


def memory_units(cases: Sequence[tuple[Case, str]]) -> list[float]:
    """Of each case and pass."""
    if not cases or cases[0][0].device != "cpu":
        return [_on_gpu(case, step) for case, step in cases]
    given = json.dumps([[asdict(case), step] for case, step in cases])
    found = subprocess.run(
        [sys.executable, "-m", "evaluate.speed.memory"], input=given, capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise RefusedError(f"memory could not be measured: {found.stderr.strip() or found.returncode}")
    return [float(units) for units in json.loads(found.stdout)]


def _on_gpu(case: Case, step: str) -> float:
    function = _prepared(case, step)
    torch.cuda.reset_peak_memory_stats(case.device)
    before = torch.cuda.memory_allocated(case.device)
    kept = function()
    peak = torch.cuda.max_memory_allocated(case.device)
    del kept
    return (peak - before) / _unit(case)


def _prepared(case: Case, step: str) -> Callable[[], object]:
    tensors = inputs(case, grad=step != "forward")
    cotangent = None if step == "forward" else torch.ones((), dtype=tensors[0].dtype, device=case.device)
    return work(attend(case.kind, case.n), tensors, None if cotangent is None else cotangent.expand_as(tensors[0]))


def _unit(case: Case) -> int:
    return case.heads * case.n * HEAD_DIM * DTYPES[case.dtype].itemsize


def _in_child(case: Case, step: str) -> float:
    case = replace(case, heads=max(1, LEAST_UNIT * case.heads // _unit(case)))
    small = _prepared(replace(case, heads=1, n=197), step)  # libraries take what they need once
    small()
    function = _prepared(case, step)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is now what is resident
    before = _status("VmRSS")
    kept = function()
    peak = _status("VmHWM")
    del kept
    return (peak - before) / _unit(case)


def _status(name: str) -> int:
    """Bytes, from the kernel's figures of this process."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


def _send(case: Case, step: str, pipe: Connection) -> None:
    pipe.send(_in_child(case, step))


def _main() -> None:
    torch.set_num_threads(1)
    found = []
    context = multiprocessing.get_context("fork")
    for case, step in json.load(sys.stdin):
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=_send, args=(Case(**case), step, send))
        child.start()
        send.close()
        try:
            found.append(receive.recv())
        except EOFError:
            child.join()
            sys.exit(
                f"{case['kind']}, {step}, at {case['n']} tokens: its process ended with code {child.exitcode}, "
                "perhaps for want of memory. Give fewer tokens (--n) or heads (--heads)."
            )
        child.join()
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
