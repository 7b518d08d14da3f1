"""The state of every random generator of this process, in a form that a checkpoint can hold."""

import random
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators (every device's)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture(device: torch.device) -> dict[str, Any]:
    """The generators' states as tensors, numbers and lists. CUDA's: that of `device` alone."""
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": [version, torch.tensor(words), gauss],
        "numpy": [kind, torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, cached],
    }


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Set the generators as `capture` found them; a state without CUDA's leaves that one as it is."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
