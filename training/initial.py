"""Weights to start from (`--init-from`): a checkpoint of the same kind, at any image size and context length.

Position embeddings are resized to the model's grid as OpenCLIP does, but between grids of any shape. A state dict
holds their number and not their grid: 196 patches are 14×14 or 7×28. The grid is taken from the settings that this
trainer's checkpoints record, else from the model config where its image size fits the number, else it is the square;
weights that fit none of these are refused. Fixed sin-cos positions are not resized but computed for the new grid.
"""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from open_clip.transformer import Transformer, VisionTransformer, to_2tuple
from torch import Tensor, nn

from open_clip_linear.checkpoint import MARK, KindMismatchError, check_kind
from open_clip_linear.convert.state_dict import (
    ConversionError,
    ConversionReport,
    as_openclip_reads,
    refuse_misfit,
    resize_positions,
)
from open_clip_linear.convert.weights import WeightsError, load_weights
from open_clip_linear.towers.vit import specs_of
from training.settings import Settings, SettingsError

_POSITIONS = "visual.positional_embedding"
_DEFAULT_IMAGE_SIZE = 224  # of OpenCLIP's CLIPVisionCfg

Grid = tuple[int, int]  # rows and columns of patches


def load_initial(model: nn.Module, settings: Settings) -> None:
    """Load the weights of `settings.init_from` into the model `settings.model`.

    Args:
        model: freshly built, at its image size, nothing locked yet.
        settings: `init_from` is an OpenCLIP training checkpoint (also of DistributedDataParallel), a plain state dict
            or safetensors; nothing in it is executed.

    Raises:
        SettingsError: no such file, damaged, of another attention kind or model, or of a grid that nothing tells.
    """
    path = Path(settings.init_from)
    try:
        state, _ = as_openclip_reads(load_weights(path), model)
        own = model.state_dict()
        for name, module in model.named_modules():
            if isinstance(module, Transformer):
                check_kind(specs_of(module), state, f"{name}.")
                if f"{name}.{MARK}" in own:  # an averaged mark says the same in another dtype
                    state[f"{name}.{MARK}"] = own[f"{name}.{MARK}"]
        refuse_misfit(state, own)
        if isinstance(model.visual, VisionTransformer):
            state[_POSITIONS] = _positions(state[_POSITIONS], model.visual, _known_sizes(path, settings))
        resize_positions(state, model, ConversionReport(raw=False))  # the text tower's, by now
        model.load_state_dict(state)
    except WeightsError as error:  # it names the file
        raise SettingsError(f"--init-from {error}") from error
    except (ConversionError, KindMismatchError) as error:
        raise SettingsError(f"--init-from {path}: {error}") from error


def _positions(found: Tensor, visual: VisionTransformer, sizes: list[Any]) -> Tensor:
    """The position embeddings (1 + patches, C) of a file as the tower has them.

    Raises ConversionError where the grid of the patches is not known.
    """
    if not visual.positional_embedding.requires_grad:  # sin-cos: a function of the grid, already computed
        return visual.positional_embedding.detach()
    source = source_grid(len(found) - 1, [_grid(size, visual.patch_size) for size in sizes])
    return resized(found, source, to_2tuple(visual.grid_size))


def source_grid(patches: int, known: list[Grid]) -> Grid:
    """The grid of so many patches: the first known one that has as many, else the square.

    Raises ConversionError where there is none.
    """
    side = math.isqrt(patches)
    for rows, columns in [*known, (side, side)]:
        if rows * columns == patches > 0:
            return rows, columns
    raise ConversionError(
        f"the weights have positions for {patches} patches, which make no square, and nothing says how many rows and "
        "columns they are. Name a model config (--model-configs) whose image_size is theirs, and give the new size as "
        "--force-image-size"
    )


def resized(positions: Tensor, source: Grid, target: Grid) -> Tensor:
    """Positions (1 + rows·columns, C), the class token's first, from one grid to another, as OpenCLIP resizes them."""
    if source == target:
        return positions
    prefix, patches = positions[:1], positions[1:]
    image = patches.to(torch.promote_types(patches.dtype, torch.float32)).T.reshape(1, -1, *source)
    image = F.interpolate(image, size=target, mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([prefix.to(image.dtype), image.flatten(2)[0].T])


def _known_sizes(path: Path, settings: Settings) -> list[Any]:
    """Image sizes that the weights may have: the one their checkpoint records, then that of the model's config."""
    recorded = _recorded_settings(path)
    sizes = [recorded["force_image_size"]] if recorded.get("force_image_size") else []
    names = [settings.model] if sizes else [recorded.get("model"), settings.model]
    configs = [open_clip.get_model_config(name) for name in names if name in open_clip.list_models()]
    return sizes + [config["vision_cfg"].get("image_size", _DEFAULT_IMAGE_SIZE) for config in configs]


def _recorded_settings(path: Path) -> Mapping[str, Any]:
    """What a checkpoint of this trainer says of its run; empty for other files."""
    if path.suffix == ".safetensors":
        return {}
    # The file was read before, so it is sound; mapped, because only the settings are looked at.
    checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    found = checkpoint.get("settings", {})
    return found if isinstance(found, Mapping) else {}


def _grid(size: Any, patch_size: Any) -> Grid:
    """Rows and columns of patches of a picture: `size` is a side, [side] or [height, width]."""
    if isinstance(size, list) and len(size) == 1:
        size = size[0]
    (height, width), (patch_height, patch_width) = to_2tuple(size), to_2tuple(patch_size)
    return height // patch_height, width // patch_width
