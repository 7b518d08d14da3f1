"""The model under test: any registered name with any checkpoint file, ours or OpenCLIP's.

Importing this file registers the project's models. Weights are read with ``weights_only``, so a checkpoint cannot run
code. Tags that would be downloaded are not taken: a result names the hash of a file.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
from safetensors import safe_open
from torch import nn

import open_clip_linear  # noqa: F401 -- registers the models on import
from data_prep.manifest import sha256_file
from evaluate.encode import Preprocess
from evaluate.errors import RefusedError
from evaluate.texts import Tokenizer
from open_clip_linear.listing import attention_kind, count_parameters
from open_clip_linear.spec import nearest
from open_clip_linear.towers.vit import specs_of

POSITIONS = "visual.positional_embedding"


@dataclass(frozen=True)
class LoadedModel:
    """A model with its own eval transform and tokenizer, in float32."""

    name: str
    model: nn.Module
    preprocess: Preprocess
    tokenizer: Tokenizer
    config: dict[str, Any]  # the JSON config it was built from
    checkpoint: Path
    sha256: str
    stored_tokens: int | None = None  # of a picture, by the checkpoint's learned positions; None where it has none

    @property
    def image_size(self) -> int | list[int]:
        """Side of the pictures it takes, in pixels; [height, width] when not square."""
        size = self.model.visual.image_size  # type: ignore[union-attr]
        if isinstance(size, int):
            return size
        height, width = size  # type: ignore[misc]
        return int(height) if height == width else [int(height), int(width)]

    @property
    def parameters(self) -> dict[str, int]:
        """Number of parameters: all, the vision tower's, and the rest but the two logit scalars (text)."""
        return count_parameters(self.model)


def model_config(name: str) -> dict[str, Any]:
    """The JSON config of a registered model. Raises RefusedError that names the nearest known ones."""
    config = open_clip.get_model_config(name) if ":" not in name else None
    if config is None:
        raise RefusedError(f"--model {name!r} is not a registered model{nearest(name, open_clip.list_models())}.")
    return config


def check_checkpoint(checkpoint: Path) -> None:
    """Raise RefusedError unless the file is there."""
    if not checkpoint.is_file():
        found = "a folder" if checkpoint.is_dir() else "nothing"
        raise RefusedError(
            f"--pretrained {checkpoint}: found {found}. Give a checkpoint file, for example RUN/checkpoint.pt."
        )


def check_image_size(config: dict[str, Any], image_size: int | tuple[int, int] | None) -> None:
    """Raise RefusedError where the pictures would be smaller than a patch."""
    patch = config["vision_cfg"].get("patch_size")
    sides = (image_size,) if isinstance(image_size, int) else image_size or ()
    if isinstance(patch, int) and any(side < patch for side in sides):
        raise RefusedError(f"--image-size {min(sides)} is less than one patch of the model, {patch} pixels. Give more.")


def load_model(
    name: str,
    checkpoint: Path,
    *,
    device: torch.device | str = "cpu",
    image_size: int | tuple[int, int] | None = None,
) -> LoadedModel:
    """Build ``name`` and load ``checkpoint`` into it, strictly.

    Args:
        image_size: a side, or height and width, in pixels, if not the config's.

    Raises:
        RefusedError: an unknown model, a missing file, a file that is no checkpoint, or another model's weights.
    """
    config = model_config(name)
    check_checkpoint(checkpoint)
    try:
        # The absolute path can never be taken for one of OpenCLIP's download tags.
        model, _, preprocess = open_clip.create_model_and_transforms(
            name, pretrained=str(checkpoint.resolve()), precision="fp32", device=device, force_image_size=image_size
        )
    except Exception as error:  # OpenCLIP, torch and safetensors raise every kind for files that do not fit
        raise RefusedError(
            f"{checkpoint} cannot be loaded into {name}: {_reason(checkpoint, error)} "
            "Check that the file is a whole checkpoint and that --model is the model it was trained as."
        ) from error
    return LoadedModel(
        name,
        model,
        preprocess,
        open_clip.get_tokenizer(name),
        config,
        checkpoint,
        sha256_file(checkpoint),
        stored_tokens(checkpoint),
    )


def _reason(checkpoint: Path, error: Exception) -> str:
    """Why a file could not be loaded, as a sentence; OpenCLIP goes by the suffix, and torch's advice is to trust it."""
    with open(checkpoint, "rb") as file:
        head = file.read(9)
    if head[8:] == b"{" and checkpoint.suffix != ".safetensors":
        return "it is in the safetensors format; rename it to end in .safetensors."
    if not isinstance(error, (RuntimeError, ValueError)) or "weights_only" in str(error):
        return f"it is no checkpoint of tensors alone ({type(error).__name__})."
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return f"{type(error).__name__}: {' '.join(plain.split())[:600]}."


def stored_tokens(checkpoint: Path) -> int | None:
    """Tokens of a picture that the file's learned positions are for: OpenCLIP fits them to another image size."""
    if checkpoint.suffix == ".safetensors":
        with safe_open(checkpoint, "pt") as file:
            return file.get_slice(POSITIONS).get_shape()[0] if POSITIONS in file.keys() else None  # noqa: SIM118
    try:  # shapes alone, without reading the weights
        stored = torch.load(checkpoint, map_location="meta", mmap=True, weights_only=True)
    except (RuntimeError, ValueError):  # an older form of file, which cannot be mapped
        stored = torch.load(checkpoint, map_location="meta", weights_only=True)
    weights = stored.get("state_dict", stored)
    found = weights.get(POSITIONS, weights.get(f"module.{POSITIONS}"))
    return None if found is None else int(found.shape[0])


def unread_warning(loaded: LoadedModel) -> str | None:
    """A sentence where a side is no whole number of patches: the tower does not read what is left over."""
    patch = loaded.config["vision_cfg"].get("patch_size")
    size = loaded.image_size
    over = [side for side in ([size] if isinstance(size, int) else size) if isinstance(patch, int) and side % patch]
    if not over:
        return None
    return (
        f"{over[0]} pixels are {over[0] // patch} patches of {patch} and {over[0] % patch} more, which the tower does "
        "not read."
    )


def size_warning(loaded: LoadedModel) -> str | None:
    """A sentence where the model sees pictures of another size than its weights, and its kind's gain depends on it.

    That is so for kinds whose weights do not sum to a constant: literal Eq. 7, and Eq. 4 with gain N/2.
    """
    visual = loaded.model.visual
    specs = specs_of(getattr(visual, "transformer", visual))  # type: ignore[arg-type]
    here = getattr(visual, "positional_embedding", None)
    if specs is None or here is None or loaded.stored_tokens in (None, len(here)):
        return None
    trained, seen = int(loaded.stored_tokens or 0), len(here)
    grown = [spec.weight_sum(seen) / spec.weight_sum(trained) for spec in specs]
    if all(factor == 1 for factor in grown):
        return None
    most = max(grown, key=lambda factor: abs(math.log(factor)))
    return (
        f"The weights were trained on {trained} tokens a picture and see {seen} here: the attention of "
        f"{attention_kind(loaded.config['vision_cfg'])} grows with them, and is {most:.3g} times as large "
        "beside the rest of the tower as in training."
    )
