"""What a checkpoint holds, gathered from all processes and given back to them.

name, epoch, step, state_dict   OpenCLIP's form
optimizer, scaler, ema, guard   what the next step depends on
rng                             every generator's state, a list with one entry a process
data                            the position in the data to the sample (training/data/loader.py)
samples_seen, seconds, settings, versions
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from evaluate.result import versions
from training import rng
from training.checkpoint import CheckpointError
from training.data.loader import Loader
from training.distributed import World
from training.guard import Guard
from training.model import Ema
from training.settings import Settings, SettingsError, option

# A checkpoint continues only under the same of these: they decide what its tensors and positions mean.
FIXED = (
    "model",
    "force_image_size",
    "lock_image",
    "lock_image_unlocked_groups",
    "lock_text",
    "lock_text_unlocked_layers",
    "opt",
    "fsdp",
    "siglip",
)
OPTIMIZER_SETTINGS = ("weight_decay", "betas", "eps")  # the rest of a group may be state
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass
class Progress:
    """How far the run is."""

    step: int = 0
    samples_seen: int = 0
    seconds: float = 0.0
    loss: float = math.nan  # of the last step


@dataclass
class Parts:
    """What changes from step to step. `model` is the module itself, not a wrapper around it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    ema: Ema | None
    guard: Guard
    loader: Loader

    @property
    def logit_scale(self) -> nn.Parameter:
        """The logarithm of the temperature's inverse."""
        return self.model.get_parameter("logit_scale")


def capture(parts: Parts, progress: Progress, epoch: float, settings: Settings, world: World) -> dict[str, Any]:
    """The run's state. Every process must call it; the tensors in the first one's result are the run's own.

    `epoch` is how many there were so far.
    """
    everyone = world.gathered({"rng": rng.capture(world.device), "data": parts.loader.state()})
    model = whole_weights(parts.model, settings)
    if settings.fsdp:
        optimizer = get_optimizer_state_dict(parts.model, parts.optimizer, options=_WHOLE)
    else:
        optimizer = parts.optimizer.state_dict()
    ema = parts.ema.state_dict() if parts.ema else None
    if not world.is_first:
        return {}
    return {
        "name": settings.model,
        "epoch": epoch,
        "step": progress.step,
        "state_dict": model,
        "optimizer": optimizer,
        "scaler": parts.scaler.state_dict() if parts.scaler else None,
        "ema": ema,
        "guard": parts.guard.state_dict(),
        "rng": [each["rng"] for each in everyone],
        "data": parts.loader.merge([each["data"] for each in everyone]),
        "samples_seen": progress.samples_seen,
        "seconds": progress.seconds,
        "loss": progress.loss,
        "settings": asdict(settings),
        "versions": versions(),
    }


def whole_weights(model: nn.Module, settings: Settings) -> dict[str, Any]:
    """The model's state dict with whole tensors; under FSDP gathered, for the first process alone. On every process."""
    return get_model_state_dict(model, options=_WHOLE) if settings.fsdp else model.state_dict()


def restore_training(state: dict[str, Any], parts: Parts, progress: Progress, settings: Settings, world: World) -> None:
    """Put model, optimizer, scaler, EMA, guard and progress where the checkpoint has them. On every process.

    The optimizer's settings stay this run's; an average that the checkpoint has not begins at its weights.
    Raises CheckpointError where the checkpoint's tensors are of another model.
    """
    theirs, ours = len(state["optimizer"]["param_groups"]), len(parts.optimizer.param_groups)
    if theirs != ours:
        raise CheckpointError(
            f"the checkpoint of step {state['step']} has {theirs} groups of parameters in its optimizer and this run "
            f"{ours}: another version of this trainer wrote it. To start a new run from its weights use --init-from"
        )
    hyper = [{k: v for k, v in group.items() if k in OPTIMIZER_SETTINGS} for group in parts.optimizer.param_groups]
    try:
        if settings.fsdp:  # the optimizer first: setting its state takes a step of nothing with some optimizers
            set_optimizer_state_dict(parts.model, parts.optimizer, state["optimizer"], options=_WHOLE)
            set_model_state_dict(parts.model, state["state_dict"], options=_WHOLE)
        else:
            parts.model.load_state_dict(state["state_dict"])
            parts.optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint of step {state['step']} is of another model: {error}") from error
    for group, values in zip(parts.optimizer.param_groups, hyper, strict=True):
        group.update(values)
    if parts.scaler and state["scaler"]:
        parts.scaler.load_state_dict(state["scaler"])
    if parts.ema and state["ema"]:
        parts.ema.load_state_dict(state["ema"])
    elif parts.ema:
        parts.ema = Ema(parts.model, settings.ema)
    parts.guard.load_state_dict(state["guard"])
    saved = state["settings"]
    if saved["batch_size"] * saved["accum_freq"] * len(state["rng"]) != (
        settings.batch_size * settings.accum_freq * world.size
    ):
        parts.guard.forget()  # the loss of another global batch is another loss
    progress.step, progress.samples_seen = state["step"], state["samples_seen"]
    progress.seconds, progress.loss = state["seconds"], state["loss"]


def restore_generators(state: dict[str, Any], world: World) -> None:
    """Set this process's generators; with another number of processes each gets a stream of its own, from the seed."""
    if len(state["rng"]) == world.size:
        rng.restore(state["rng"][world.rank], world.device)
    else:
        rng.seed_all(state["settings"]["seed"] + state["step"] * 100_003 + world.rank + 1)


def differences(state: dict[str, Any], settings: Settings, world: World) -> list[str]:
    """What differs between a checkpoint's run and this one, a sentence each.

    Raises SettingsError for what must not differ.
    """
    saved, now = state["settings"], asdict(settings)
    for name in FIXED:
        if name in saved and saved[name] != now[name]:
            raise SettingsError(
                f"{option(name)} is {now[name]!r} and the checkpoint's run had {saved[name]!r}; to start a new run "
                "from its weights use --init-from"
            )
    unlike = [name for name in now if name in saved and saved[name] != now[name] and name not in ("resume", "output")]
    notes = [f"{name} was {saved[name]!r} and is {now[name]!r}" for name in unlike]
    if len(state["rng"]) != world.size:
        notes.append(
            f"the run had {len(state['rng'])} processes and has {world.size}: their random generators start anew, "
            "and the losses will not equal those of an unbroken run bit for bit"
        )
    return notes
