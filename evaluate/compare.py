"""Two zero-shot results on the same pictures: how far apart they are, and whether that may be chance.

    rows = compare(read_result(Path("a.json")), read_result(Path("b.json")))

Of each picture a result keeps whether it was a hit (`result.packed_hits`), so the test is a paired one: McNemar's,
exact, on the pictures that one of the two got right and the other wrong. Under "no difference" each of those falls to
either side by a fair coin. Source: Q. McNemar, "Note on the sampling error of the difference between correlated
proportions", Psychometrika 12 (1947). Pictures that either result could not read are left out of both.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluate import metrics
from evaluate.errors import RefusedError
from evaluate.result import FORMAT, checked_hits

NEEDED = ("hits", "lists", "classes", "results", "model")
PROTOCOL = ("templates", "decoder", "image_size", "precision")  # of a result, and what else its figures depend on


def read_result(path: Path) -> dict[str, Any]:
    """A zero-shot result with what is needed to compare it.

    Raises:
        RefusedError: no such file, or not one that this version's `evaluate zero-shot` writes.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RefusedError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{path} is not JSON ({error}). Give a result of `evaluate zero-shot`.") from error
    missing = [name for name in NEEDED if not isinstance(found, dict) or name not in found]
    if missing:
        raise RefusedError(
            f"{path} has no {', '.join(missing)}: it is no zero-shot result, or one of an older version."
        )
    if found.get("format") != FORMAT:
        raise RefusedError(f"{path} has format {found.get('format')}, this version reads {FORMAT}.")
    if not all(isinstance(found[name], dict) for name in NEEDED if name != "model"):
        raise RefusedError(f"{path} is not as `evaluate zero-shot` writes it. Evaluate the checkpoint again.")
    try:
        found["hits"] = checked_hits(found)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RefusedError(f"{path} is damaged or was edited ({error}). Evaluate the checkpoint again.") from error
    return found | {"path": str(path)}


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """What was not done alike, a sentence each: then more than the checkpoints differs."""
    return [
        f"{name.replace('_', ' ')}: {_how_differing(a.get(name), b.get(name))}."
        for name in PROTOCOL
        if a.get(name) != b.get(name)
    ]


def _how_differing(a: Any, b: Any) -> str:
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return f"{a} in a and {b} in b"
    ours, theirs = a.get("texts") or [], b.get("texts") or []
    only = [text for text in ours if text not in theirs] or [text for text in theirs if text not in ours]
    said = f"{a.get('name')} ({len(ours)} texts) in a and {b.get('name')} ({len(theirs)}) in b"
    return f"{said}, one of them has {only[0]!r}" if only else said


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The sets that both results have, each with `n`, and for `top1` and `top5`: both figures in percent, `difference`
    (b - a in points), how many pictures only one of them got right, and McNemar's `p`; `mean_per_class` without a test.

    Raises:
        RefusedError: other pictures or other classes, or no set in common.
    """
    if a["lists"] != b["lists"]:
        differing = [name or "the list" for name in a["lists"] if a["lists"][name] != b["lists"].get(name)]
        how = " and ".join(f"{one.get('root')} (--limit {one.get('limit')})" for one in (a, b))
        raise RefusedError(
            f"{a['path']} and {b['path']} are about other pictures (the hashes of "
            f"{', '.join(differing) or 'the lists'} differ): {how}. Evaluate both on the same."
        )
    if a["classes"] != b["classes"]:
        raise RefusedError(f"{a['path']} and {b['path']} guess among other classes: {a['classes']} and {b['classes']}.")
    common = [name for name in a["hits"] if name in b["hits"]]
    if not common:
        raise RefusedError(
            f"{a['path']} and {b['path']} have no set in common: {list(a['hits'])} and {list(b['hits'])}."
        )
    return {name: _compare_set(a["hits"][name], b["hits"][name]) for name in common}


def _compare_set(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """One set, on the pictures that both could read."""
    if not np.array_equal(a["labels"], b["labels"]):
        raise RefusedError("the results give the same pictures other classes. Evaluate both again.")
    kept = a["readable"] & b["readable"]
    if not kept.any():
        raise RefusedError("no picture was readable in both results")
    labels_N = torch.from_numpy(a["labels"][kept].astype(np.int64))
    found: dict[str, Any] = {"n": int(kept.sum())}
    for name in ("top1", "top5"):
        ours_N, theirs_N = torch.from_numpy(a[name][kept]), torch.from_numpy(b[name][kept])
        only_a, only_b = int((ours_N & ~theirs_N).sum()), int((theirs_N & ~ours_N).sum())
        found[name] = _pair(metrics.percent(ours_N), metrics.percent(theirs_N)) | {
            "only_a": only_a,
            "only_b": only_b,
            "p": mcnemar(only_a, only_b),
        }
    found["mean_per_class"] = _pair(
        *(metrics.mean_per_class(torch.from_numpy(one["top1"][kept]), labels_N) for one in (a, b))
    )
    return found


def _pair(a: float, b: float) -> dict[str, float]:
    return {"a": a, "b": b, "difference": b - a}


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p of McNemar's test: 1 where the two differ on no picture. Raises RefusedError without SciPy."""
    try:
        from scipy.stats import binomtest
    except ImportError as error:
        raise RefusedError("compare needs SciPy, which is not installed: pip install scipy") from error
    return float(binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


def table(found: Mapping[str, Mapping[str, Any]], a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """The comparison for a terminal."""
    lines = [f"a: {a['path']} ({a['model']})", f"b: {b['path']} ({b['model']})"]
    lines.append(
        f"{'set':<24}{'figure':<16}{'a %':>8}{'b %':>8}{'b - a':>8}{'only a':>8}{'only b':>8}{'McNemar p':>12}"
    )
    for name, row in found.items():
        for figure in ("top1", "top5", "mean_per_class"):
            pair = row[figure]
            line = f"{name:<24}{figure:<16}{pair['a']:>8.2f}{pair['b']:>8.2f}{pair['difference']:>+8.2f}"
            if "p" in pair:
                line += f"{pair['only_a']:>8}{pair['only_b']:>8}{pair['p']:>12.3g}"
            lines.append(line)
        lines.append(f"{'':<24}on {row['n']:,} pictures")
    return "\n".join([*lines, *differences(a, b)])
