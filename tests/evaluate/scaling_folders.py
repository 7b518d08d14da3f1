"""Run folders as `python -m training` leaves them, with losses from a law."""

import json
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"S": 22e6, "B": 86e6, "L": 304e6}  # what the made-up train.json say; the models' own do not matter
LAW = {"eq7mean": (14.0, 0.12), "softmax": (40.0, 0.18)}


def write_run(
    folder: Path,
    kind: str = "eq7mean",
    size: str = "B",
    *,
    seed: int = 0,
    steps: int = 200,
    settings: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    validation: float | None = None,
) -> Path:
    """A run whose loss falls to a·N^-α (times 1 % of the seed's luck) and is noisy in each step."""
    parameters = (train or {}).get("parameters", int(SIZES[size]))
    a, alpha = LAW[kind]
    random = np.random.default_rng([seed, *map(ord, kind + size)])
    final = a * parameters**-alpha * np.exp(0.01 * random.standard_normal())
    model = f"ViT-{size}-16-{kind}"
    folder.mkdir(parents=True)
    rows = [
        {"step": step, "loss": final * (1 + 3 * max(0.0, 1 - step / (0.8 * steps))) + 0.02 * random.standard_normal()}
        for step in range(1, steps + 1)
    ]
    if validation is not None:
        rows[-1] |= {"val_loss": validation}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = {"model": model, "batch_size": 64, "accum_freq": 2, "val_data": ""} | (settings or {})
    (folder / "settings.json").write_text(json.dumps(known))
    summary = {"model": model, "parameters": parameters, "samples_seen": 1000 * steps, "world_size": 4} | (train or {})
    (folder / "train.json").write_text(json.dumps(summary))
    return folder
