"""In which numbers a run computes: float32, or matrix products in bfloat16 or float16 (autocast) on float32 weights.

float16 has bfloat16's speed and 3 bits more, but ends at 65504 and 6e-8: its losses are scaled (`scaler_of`) so that
small gradients are not lost, and a step that overflows is skipped.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from training.settings import Settings

_AUTOCAST = {"amp_bf16": torch.bfloat16, "amp": torch.float16}


def computes_in_bf16(device: torch.device) -> bool:
    """Whether bf16 matrix products are a hardware instruction there rather than an emulation."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capability = torch.backends.cpu.get_cpu_capability()
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()) and "AVX512" in capability


def precision_of(settings: Settings, device: torch.device) -> str:
    """The run's precision, with `auto` resolved for the device."""
    if settings.precision != "auto":
        return settings.precision
    return "amp_bf16" if computes_in_bf16(device) else "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The mixed-precision context of a run; `auto` is resolved by `precision_of` before."""
    dtype = _AUTOCAST.get(precision)
    return torch.autocast(device.type, dtype) if dtype else nullcontext()


def scaler_of(precision: str, device: torch.device) -> torch.amp.GradScaler | None:
    """The loss scaling that float16 needs, None for the others. It works on CPU and on FSDP2's sharded gradients."""
    return torch.amp.GradScaler(device.type) if precision == "amp" else None
