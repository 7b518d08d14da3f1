"""Whole vision towers: a training step's forward and backward pass beside OpenCLIP's own and without any attention.

The ceiling is the same tower whose attention gives back its values: projections stay, and nobody can be faster than
that. `share_of_gain` is how much of the time that removing attention would save a kind saves.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import open_clip
import torch
from torch import Tensor, nn

from evaluate.errors import RefusedError
from evaluate.models import model_config
from evaluate.speed.timing import interleaved
from open_clip_linear.attention import Attention


class _Values(nn.Module):
    """Attention without attention: both projections, and each token's own value."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.of = attention

    def forward(self, x_BNC: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        qkv = nn.functional.linear(x_BNC, self.of.in_proj_weight, self.of.in_proj_bias)
        return self.of.out_proj(qkv.chunk(3, dim=-1)[2].contiguous())


def vision_config(name: str, size: int) -> dict[str, Any]:
    """The `vision_cfg` of a registered model at an image size. Raises RefusedError where it makes no such tower."""
    vision = copy.deepcopy(model_config(name)["vision_cfg"])
    if not isinstance(vision.get("layers"), int) or "timm_model_name" in vision:
        raise RefusedError(f"--model {name}: its vision tower is no transformer of OpenCLIP's own.")
    patch = int(np.max(vision.get("patch_size", 16)))  # one side or both; the default is OpenCLIP's
    if size < patch:
        raise RefusedError(f"--image-size {size}: {name}'s patches are larger, {patch} px.")
    return vision | {"image_size": size}


def tower(name: str, size: int, block_type: str | None = None) -> nn.Module:
    """The vision tower of a registered model at an image size, its attention as configured or `block_type`."""
    vision = vision_config(name, size)
    if block_type is not None:
        vision["block_type"] = block_type
    config = model_config(name)
    return open_clip.CLIP(config["embed_dim"], vision, config["text_cfg"]).visual


def without_attention(visual: nn.Module) -> nn.Module:
    """The ceiling, in place."""
    for block in visual.transformer.resblocks:  # type: ignore[union-attr]
        block.attn = _Values(block.attn)
    return visual


def measure_towers(
    names: Sequence[str],
    sizes: Sequence[int],
    device: str,
    *,
    batch: int,
    budget: float,
    advance: Callable[[int], object],
) -> Iterator[dict[str, Any]]:
    """A row for each model and image size, in float32 on a CPU and under bf16 autocast on a GPU."""
    for name in names:
        for size in sizes:
            towers = {
                "model": tower(name, size),
                "softmax": tower(name, size, "default"),
                "ceiling": without_attention(tower(name, size, "softmax")),
            }
            images = torch.randn(batch, 3, size, size, device=device)
            steps = {which: _step(visual.to(device), images) for which, visual in towers.items()}
            times = interleaved(steps, device, budget)
            own, base, least = (times[which] for which in ("model", "softmax", "ceiling"))
            ratio, low, high = own.faster_than(base)
            ceiling = least.faster_than(base)[0]
            yield {
                "model": name,
                "image_size": size,
                "batch": batch,
                "device": device,
                "milliseconds": 1e3 * own.median,
                "ratio_to_softmax": ratio,
                "ratio_range": [low, high],
                "ceiling": ceiling,
                "share_of_gain": (1 - 1 / ratio) / (1 - 1 / ceiling) if ceiling > 1 else None,
            }
            advance(1)


def _step(visual: nn.Module, images: Tensor) -> Callable[[], object]:
    def step() -> None:
        visual.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=images.device.type == "cuda"):
            loss = visual(images).float().square().mean()
        loss.backward()

    return step
