"""``python -m evaluate dispersion``: how the weight of one key falls as keys become more, for ten kinds of attention.

For N = 2⁶…2¹⁸ keys: the largest and the median share |w|/Σ|w| of one key, the entropy of the shares, and the largest
weight itself. A slope in log N is fitted to the upper half of the sizes for each seed (ordinary least squares); its
interval is Student's over the seeds. Shares that fall as N^-1 disperse as the theorem says (see ``kinds.py``).

Features: drawn ones from a compact set and from a Gaussian, and with a checkpoint its own. There N grows by pooling:
the tokens of all pictures in one layer and head, in random order, are the keys, and the first of them the queries. So
every q and k is one the model made at its own image size, at the price that a row sees more than one picture. In all
three the order of keys means nothing, so the window is the first 49 of them.
Cost: about a minute of one core's time, 1.5 GB of memory; with a checkpoint half as much again at most, and its forward
passes.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from data_prep.atomic import write_text
from evaluate.errors import RefusedError
from evaluate.looking.dispersion_chart import draw
from evaluate.looking.kinds import KINDS
from evaluate.looking.shares import entropy_of, shares_of
from evaluate.looking.tower import attention_layers, record
from evaluate.result import command_line, versions

FORMAT = 1  # raised when a name changes its meaning
SMALLEST, LARGEST = 6, 18  # powers of two
LEAST_LARGEST = 9  # of a checkpoint's tokens: 2^9 gives four sizes
SEEDS = 8
QUERIES = 4
HEAD_DIM = 64
STUDENT = 2.364624  # the 0.975 quantile of Student's t with SEEDS - 1 degrees of freedom
QUANTITIES = ("largest_share", "median_share", "entropy", "largest_weight")
NOT_COVERED = (
    "Features that are not bounded are outside the theorem, but for eq4 and eq7, which make them unit vectors: the "
    "largest of N products grows with N, and softmax's largest share falls more slowly than 1/N at the sizes that can "
    "be reached."
)

Features = Callable[[int], tuple[Tensor, Tensor]]  # seed → q (QUERIES, D), k (2^LARGEST, D), float64


@dataclass(frozen=True)
class Source:
    """Where q and k come from."""

    name: str
    about: str
    head_dim: int
    sizes: tuple[int, ...]
    features: Features


def sizes_up_to(power: int) -> tuple[int, ...]:
    """The powers of two from the smallest."""
    return tuple(2**p for p in range(SMALLEST, power + 1))


def drawn(compact: bool) -> Source:
    """Independent features: uniform on the unit sphere, or Gaussian."""

    def features(seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        q, k = (
            torch.randn(count, HEAD_DIM, generator=generator, dtype=torch.float64) for count in (QUERIES, 2**LARGEST)
        )
        return (F.normalize(q, dim=-1), F.normalize(k, dim=-1)) if compact else (q, k)

    if compact:
        about = (
            f"q and k uniform on the unit sphere in {HEAD_DIM} dimensions: a compact set, which is what the theorem is "
            "about. The largest of N products still grows a little at these N, by which an exponent falls short of -1."
        )
        return Source("compact", about, HEAD_DIM, sizes_up_to(LARGEST), features)
    return Source(
        "gaussian", f"q and k of independent N(0, 1). {NOT_COVERED}", HEAD_DIM, sizes_up_to(LARGEST), features
    )


def trained(model: nn.Module, batches: Iterable[Tensor]) -> Source:
    """A checkpoint's own q and k on pictures, pooled; each seed is another head, spread evenly over all of them.

    Args:
        batches: pixels (B, 3, H, W) float32; no more are taken than needed.

    Raises RefusedError: too few tokens, a head dimension that rotations cannot split, or a tower that is not read.
    """
    layers = attention_layers(model)
    heads = [(layer, head) for layer, module in enumerate(layers) for head in range(module.num_heads)]  # type: ignore[arg-type]
    chosen = [heads[seed * len(heads) // SEEDS] for seed in range(SEEDS)]
    parts: list[list[Tensor]] = [[] for _ in chosen]
    tokens = 0
    for pixels in batches:
        recorded = record(model, pixels)
        for part, (layer, head) in zip(parts, chosen, strict=True):
            qk = torch.stack([recorded[layer].q[:, head], recorded[layer].k[:, head]])
            part.append(qk.flatten(1, 2).float().cpu())
        tokens += parts[0][-1].shape[1]
        if tokens >= 2**LARGEST:
            break
    if tokens < 2**LEAST_LARGEST:
        raise RefusedError(f"--images: {tokens} tokens in all; a slope takes at least {2**LEAST_LARGEST}. Give more.")
    head_dim = parts[0][0].shape[-1]
    if head_dim % 4:
        raise RefusedError(f"the heads have {head_dim} channels; mila's rotations take a multiple of 4.")
    pooled = [torch.cat(part, dim=1) for part in parts]

    def features(seed: int) -> tuple[Tensor, Tensor]:
        order = torch.randperm(tokens, generator=torch.Generator().manual_seed(seed))[: 2**LARGEST]
        q, k = pooled[seed][:, order].double()
        return q[:QUERIES], k

    named = ", ".join(f"({layer + 1}, {head + 1})" for layer, head in chosen)
    about = (
        f"the checkpoint's own q and k: {tokens:,} tokens of all pictures pooled in random order, a head a seed: "
        f"(layer, head) {named}. A finite set is bounded, but how "
        "far its largest product lies from the others decides from which N on a slope is -1."
    )
    return Source("trained", about, head_dim, sizes_up_to(min(LARGEST, tokens.bit_length() - 1)), features)


def measure(weights_RN: Tensor) -> list[float]:
    """`QUANTITIES` of some rows, means over the rows: logarithms of the shares and weights, and nats."""
    shares = shares_of(weights_RN)
    rows = (
        shares.amax(-1).log(),
        shares.median(-1).values.log(),
        entropy_of(shares),
        weights_RN.abs().amax(-1).log(),
    )
    return [float(row.mean()) for row in rows]


def slopes_of(sizes: Sequence[int], values_SN: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least-squares slopes over log N of the upper half of the sizes, one a seed."""
    upper = len(sizes) // 2
    x = np.log(np.asarray(sizes[upper:], dtype=np.float64))
    x -= x.mean()
    return values_SN[:, upper:] @ x / (x @ x)


def described(name: str, sizes: Sequence[int], values_SN: NDArray[np.float64]) -> dict[str, Any]:
    """A quantity's mean at each size, its exponent and the exponent's 95 % interval; none where a share is zero."""
    mean = values_SN.mean(axis=0)
    shown = mean if name == "entropy" else np.exp(mean)
    if not np.isfinite(values_SN).all():
        return {"values": shown.tolist(), "exponent": None, "interval": None}
    slopes = slopes_of(sizes, values_SN)
    half = STUDENT * float(slopes.std(ddof=1)) / len(slopes) ** 0.5
    middle = float(slopes.mean())
    return {"values": shown.tolist(), "exponent": middle, "interval": (middle - half, middle + half)}


def disperse(source: Source, advance: Callable[[int], object]) -> dict[str, Any]:
    """All kinds on one source of features, as JSON values. `advance` is told of each seed."""
    values = np.empty((len(KINDS), len(QUANTITIES), SEEDS, len(source.sizes)))
    for seed in range(SEEDS):
        q, k = source.features(seed)
        for at, size in enumerate(source.sizes):
            for number, kind in enumerate(KINDS):
                values[number, :, seed, at] = measure(kind.weights(q, k[:size]))
        advance(1)
    return {
        "about": source.about,
        "head_dim": source.head_dim,
        "sizes": list(source.sizes),
        "kinds": {
            kind.name: {name: described(name, source.sizes, of_kind[at]) for at, name in enumerate(QUANTITIES)}
            for kind, of_kind in zip(KINDS, values, strict=True)
        },
    }


def write_dispersion(
    output: Path,
    sources: Sequence[Source],
    advance: Callable[[int], object],
    checkpoint: dict[str, Any] | None = None,
    argv: Sequence[str] = (),
) -> str:
    """Measure, write dispersion.json and dispersion.svg into `output`, and return the table."""
    features = {source.name: disperse(source, advance) for source in sources}
    found = {
        "format": FORMAT,
        "theorem": "On a compact set a continuous positive kernel divided by its sum gives one of n keys a coefficient "
        "of Theta(1/n); attention in a fixed window does not disperse (arXiv 2506.08297).",
        "exponents": "d log(value) / d log N, for the entropy d nats / d log N, over the upper half of the sizes",
        "seeds": SEEDS,
        "queries": QUERIES,
        "kinds": {kind.name: {"source": kind.source, "covered": kind.covered, "note": kind.note} for kind in KINDS},
        "features": features,
        "checkpoint": checkpoint,
        "versions": versions(),
        "command": command_line(argv),
    }
    write_text(output / "dispersion.json", json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(output / "dispersion.svg", draw(features))
    return table(features)


def table(features: dict[str, Any]) -> str:
    """The exponents for a terminal, and what they are of."""
    lines = []
    for name, of_source in features.items():
        largest = of_source["sizes"][-1]
        lines.append(f"{name}: exponents in N up to {largest:,}")
        lines.append(f"{'':<14}{'largest share':>26}{'median share':>15}{'largest weight':>16}{'effective keys':>16}")
        for kind in KINDS:
            row = of_source["kinds"][kind.name]
            low, high = row["largest_share"]["interval"]
            star = "" if kind.covered else " *"
            keys = np.exp(row["entropy"]["values"][-1])
            lines.append(
                f"{kind.name + star:<14}{row['largest_share']['exponent']:>z8.3f} [{low:>z7.3f}, {high:>z7.3f}]"
                + "".join(
                    f"{'-':>{width}}"
                    if row[quantity]["exponent"] is None
                    else f"{row[quantity]['exponent']:>z{width}.3f}"
                    for quantity, width in (("median_share", 15), ("largest_weight", 16))
                )
                + f"{keys:>16,.0f}"
            )
        lines.append("")
    lines += [f"{kind.name}: {kind.note}." for kind in KINDS if kind.note != "covered"]
    lines.append("* the theorem does not speak of this kind.")
    lines.append(f"- the median share is zero. {NOT_COVERED}")
    return "\n".join(lines)
