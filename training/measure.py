"""What a step took and how far it moved: seconds, share of waiting for data, norms, memory, MFU where it is known."""

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from open_clip_linear.listing import pair_macs
from training.distributed import World
from training.settings import Settings

# Dense bf16/fp16 peak of one device in FLOP/s, from NVIDIA's data sheets (without sparsity). Where the device's name
# is not here, or the precision is another, no MFU is given.
PEAK_FLOPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
}


def number(value: Any) -> float:
    """A one-element tensor, sharded or not, as a float. Sharded: every process must ask."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return float(value)


def norm_of(tensors: list[Tensor]) -> float:
    """The Euclidean norm of all elements together."""
    return number(nn.utils.get_total_norm(tensors))


def peak_flops(device: torch.device, precision: str) -> float | None:
    """The device's peak in the run's precision; None where it is not known."""
    if device.type != "cuda" or precision == "fp32":
        return None
    return PEAK_FLOPS.get(torch.cuda.get_device_name(device))


class Meter:
    """Times steps of `samples` pairs over all processes; MFU where the device's peak and the model's cost are known."""

    def __init__(self, settings: Settings, model: nn.Module, world: World, samples: int, precision: str) -> None:
        self.world = world
        self.samples = samples
        self.peak = peak_flops(world.device, precision)
        macs = countable_macs(settings, model) if self.peak else 0
        self.flops = 3 * 2 * macs  # of a pair: the backward pass costs twice the forward one

    def start(self) -> None:
        """A step begins: waiting for its data."""
        self.began = time.monotonic()

    def data_is_there(self) -> None:
        self.data_wait = time.monotonic() - self.began

    def stop(self, waited: float) -> dict[str, float]:
        """The step is done: what it took, for metrics.jsonl.

        `waited`: seconds for data of the process that waited longest; `data_wait` is their share of the step.
        """
        seconds = time.monotonic() - self.began
        rate = self.samples / seconds
        row = {
            "images_per_s": rate,
            "images_per_s_per_device": rate / self.world.size,
            "data_wait": min(waited / seconds, 1.0),
            "step_seconds": seconds,
        }
        if self.world.device.type == "cuda":
            row["memory_gb"] = torch.cuda.max_memory_allocated(self.world.device) / 1e9
        if self.peak and self.flops:
            row["mfu"] = rate / self.world.size * self.flops / self.peak
        return row


def countable_macs(settings: Settings, model: nn.Module) -> int:
    """Multiply-adds of a pair's forward pass; 0 where they, or three times as many for a step, would not be true.

    Locked towers have no whole backward pass, and patch dropout leaves out tokens.
    """
    dropout = getattr(getattr(model.visual, "patch_dropout", None), "prob", 0.0)
    if settings.lock_image or settings.lock_text or dropout:
        return 0
    return sum(pair_macs(settings.model, settings.force_image_size).values())


def gradient_norm(model: nn.Module, most: float) -> float:
    """The gradients' norm; above `most` they are scaled down to it (0: they stay as they are)."""
    if most:
        return number(nn.utils.clip_grad_norm_(model.parameters(), most))
    return norm_of([p.grad for p in model.parameters() if p.grad is not None])


def is_finite(model: nn.Module) -> bool:
    """Whether all trained weights (this process's part of them) are numbers."""
    parts = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters() if p.requires_grad)
    return bool(torch.stack([part.detach().isfinite().all() for part in parts]).all())


def snapshot(model: nn.Module) -> list[Tensor]:
    """A copy of the trained parameters, to measure how far a step moves them."""
    return [p.detach().clone() for p in model.parameters() if p.requires_grad]


def distances(model: nn.Module, before: list[Tensor]) -> dict[str, float]:
    """Norm of the trained parameters, and of their change since `before`."""
    after = [p.detach() for p in model.parameters() if p.requires_grad]
    moved = [now - then for now, then in zip(after, before, strict=True)]
    return {"param_norm": norm_of(after), "update_norm": norm_of(moved)}
