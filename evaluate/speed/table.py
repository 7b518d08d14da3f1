"""The table of `evaluate speed`: for each kind, length, dtype and pass how it compares with softmax.

    rows = list(measure(kinds, lengths, dtypes, device, heads=12, budget=2.0, advance=bar))
    summary = summarise(rows)

Softmax is measured in the same rounds up to `longest` tokens; beyond, its time is that of the longest measured length
grown as N², and the row says so. The compiled composed form is measured where it is asked for, up to LONGEST_COMPILED.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from evaluate.speed.errors import error_of
from evaluate.speed.memory import memory_units
from evaluate.speed.operators import LONGEST_COMPILED, PASSES, Case, attend, compiled, inputs, sdpa_backend, work
from evaluate.speed.timing import Times, interleaved

LONG, LONGER = 16_385, 1_000_000  # tokens from which half the heads, and one head, are measured


def heads_at(n: int, heads: int) -> int:
    """How many heads are measured: fewer of long sequences, which would take minutes with all."""
    return heads if n < LONG else max(1, heads // 2) if n < LONGER else 1


def measure(
    kinds: Sequence[str],
    lengths: Sequence[int],
    dtypes: Sequence[str],
    device: str,
    *,
    heads: int,
    longest: int,
    with_compiled: bool,
    budget: float,
    advance: Callable[[int], object],
) -> Iterator[dict[str, Any]]:
    """The rows, a kind's after one another at each length.

    Args:
        longest: tokens up to which softmax is measured.
        with_compiled: whether each kind is measured beside its composed form under torch.compile.
        budget: seconds for the rounds of one length, dtype and pass.
        advance: told of each length, dtype and pass that is done.
    """
    lengths = sorted(lengths)
    settings = [(dtype, step, n) for dtype in dtypes for step in PASSES for n in lengths]
    measured = {s: [Case(kind, s[2], s[0], device, heads_at(s[2], heads)) for kind in kinds] for s in settings}
    pairs = [(case, step) for (_, step, _), cases in measured.items() for case in cases]
    units = dict(zip(pairs, memory_units(pairs), strict=True))
    before: tuple[int, float] | None = None  # the longest measured length of softmax, and its seconds a head
    for (dtype, step, n), cases in measured.items():
        base = replace(cases[0], kind="softmax", dtype=dtype)
        times = _times([base, *cases] if n <= longest else cases, step, with_compiled, budget)
        if n == lengths[0]:
            before = None
        if n <= longest:
            before = n, times["softmax"].median / base.heads
        for case in cases:
            yield _row(case, step, times, before, units[case, step])
        advance(1)


def _times(cases: Sequence[Case], step: str, with_compiled: bool, budget: float) -> dict[str, Times]:
    tensors = inputs(cases[0], grad=step != "forward")
    cotangent = None if step == "forward" else torch.randn_like(tensors[0])
    works = {case.kind: work(attend(case.kind, case.n), tensors, cotangent) for case in cases}
    if with_compiled and cases[0].n <= LONGEST_COMPILED:
        torch.compiler.reset()  # else the graphs of each length add up to more than torch.compile makes of one code
        for case in cases:
            if case.kind != "softmax":
                works[f"{case.kind} compiled"] = work(compiled(case.kind, case.n), tensors, cotangent)
    return interleaved(works, cases[0].device, budget)


def _row(
    case: Case, step: str, times: dict[str, Times], before: tuple[int, float] | None, units: float
) -> dict[str, Any]:
    own = times[case.kind]
    ratio = low = high = source = None
    if "softmax" in times:
        (ratio, low, high), source = own.faster_than(times["softmax"]), "measured"
    elif before is not None:
        n, seconds = before
        ratio = seconds * (case.n / n) ** 2 * case.heads / own.median
        source = f"extrapolated as N² from {n} tokens"
    composed = times.get(f"{case.kind} compiled")
    beside = None if composed is None else own.faster_than(composed)
    return {
        "kind": case.kind,
        "n": case.n,
        "dtype": case.dtype,
        "device": case.device,
        "pass": step,
        "heads": case.heads,
        "ratio_to_sdpa": ratio,
        "ratio_range": None if low is None else [low, high],
        "ratio_to_compiled": None if beside is None else beside[0],
        "compiled_range": None if beside is None else list(beside[1:]),
        "sdpa": source,
        "sdpa_backend": sdpa_backend(case),
        "milliseconds": 1e3 * own.median,
        "microseconds_per_token_and_head": 1e6 * own.median / (case.n * case.heads),
        "memory_units": units,
        "error": error_of(case, step),
        "sdpa_error": error_of(replace(case, kind="softmax"), step),
    }


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each kind, dtype and pass: from how many tokens it is faster, and the exponent of its time in N."""
    found = []
    for key in dict.fromkeys((row["kind"], row["dtype"], row["pass"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["dtype"], row["pass"]) == key]
        found.append(dict(zip(("kind", "dtype", "pass"), key, strict=True)) | _fitted(own))
    return found


def _fitted(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    n = np.log([row["n"] for row in rows])
    per_head = np.log([row["milliseconds"] / row["heads"] for row in rows])
    exponent = float(np.polyfit(n, per_head, 1)[0]) if len(rows) > 1 else None
    ratios = [(row["n"], row["ratio_to_sdpa"]) for row in rows if row["ratio_to_sdpa"] is not None]
    return {"exponent": exponent, "faster_from": crossover(ratios)}


def crossover(ratios: Sequence[tuple[int, float]]) -> float | None:
    """The length from which the ratio stays above 1, between the measured ones by a line in logs.

    It is the shortest measured length where the ratio is above 1 already there, None where it is not at the longest.
    """
    if not ratios or ratios[-1][1] < 1:
        return None
    below = [place for place, (_, ratio) in enumerate(ratios) if ratio < 1]
    if not below:
        return float(ratios[0][0])
    (n0, r0), (n1, r1) = ratios[below[-1]], ratios[below[-1] + 1]
    share = -np.log(r0) / (np.log(r1) - np.log(r0))
    return float(n0 * (n1 / n0) ** share)
