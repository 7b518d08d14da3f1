"""`--dry-run`: everything is built, ten steps are timed, and what the run would be is printed; nothing is written."""

import resource
import sys
import time
from typing import Any

import torch

from open_clip_linear.listing import pair_macs
from training.distributed import World
from training.settings import Settings
from training.setup import Setup, build_setup
from training.state import Progress
from training.train import update

TIMED_STEPS = 10


def dry_run(settings: Settings, world: World) -> dict[str, Any]:
    """Build the run, train ten steps on its real data, and say what the whole would be and take.

    Returns the figures, on every process. Raises what starting the run would raise.
    """
    setup = build_setup(settings, world, None)
    total = setup.steps(Progress())
    found, wanted = setup.parts.loader.samples, setup.epoch_samples
    if world.is_first and not found / 2 <= wanted <= 2 * found:
        print(
            f"warning: --train-num-samples says that an epoch has {wanted:,} samples, and the data has {found:,}; "
            "epochs here are of the former",
            file=sys.stderr,
        )
    setup.parts.model.train()
    seconds = []
    for _ in range(min(TIMED_STEPS, total)):
        began = time.monotonic()
        pairs, _ = setup.next_batches()
        setup.forward_backward(pairs).item()
        update(setup)
        setup.parts.optimizer.zero_grad()
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        seconds.append(time.monotonic() - began)
    setup.parts.loader.close()
    steady = sorted(seconds)[len(seconds) // 2]  # the median: the first steps warm up
    parameters = sum(p.numel() for p in setup.parts.model.parameters())
    macs = pair_macs(settings.model, settings.force_image_size)
    return {
        "model": settings.model,
        "parameters": parameters,
        "image_gmacs": macs["image"] / 1e9 if macs else None,
        "text_gmacs": macs["text"] / 1e9 if macs else None,
        "precision": setup.precision,
        "processes": world.size,
        "memory_gb": memory_gb(setup),
        "global_batch": setup.global_batch,
        "steps": total,
        "samples": total * setup.global_batch,
        "epoch_samples": setup.epoch_samples,
        "data_samples": setup.parts.loader.samples,
        "epochs": total * setup.global_batch / setup.epoch_samples,
        "step_seconds": steady,
        "images_per_s": setup.global_batch / steady,
        "hours": total * steady / 3600,
    }


def memory_gb(setup: Setup) -> float:
    """The most memory a process held in the ten steps: the device's on a GPU, the process's own on a CPU."""
    device = setup.world.device
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
