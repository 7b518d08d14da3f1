"""The model under test: any registered name with any checkpoint file, ours or OpenCLIP's.

Importing this file registers the project's models. Weights are read with ``weights_only``, so a checkpoint cannot run
code. Tags that would be downloaded are not taken: a result names the hash of a file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import nn

import open_clip_linear  # noqa: F401 -- registers the models on import
from data_prep.manifest import sha256_file
from evaluate.errors import RefusedError
from evaluate.zero_shot import Preprocess, Tokenizer
from open_clip_linear.listing import count_parameters
from open_clip_linear.spec import nearest


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


def load_model(
    name: str, checkpoint: Path, *, device: torch.device | str = "cpu", image_size: int | None = None
) -> LoadedModel:
    """Build ``name`` and load ``checkpoint`` into it, strictly; ``image_size`` overrides the config's.

    Raises RefusedError for an unknown model, a missing file, a file that is no checkpoint, or another model's weights.
    """
    config = model_config(name)
    check_checkpoint(checkpoint)
    try:
        # The absolute path can never be taken for one of OpenCLIP's download tags.
        model, _, preprocess = open_clip.create_model_and_transforms(
            name, pretrained=str(checkpoint.resolve()), precision="fp32", device=device, force_image_size=image_size
        )
    except Exception as error:  # OpenCLIP, torch and safetensors raise every kind for files that do not fit
        first_lines = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}."
        raise RefusedError(
            f"{checkpoint} cannot be loaded into {name}: {first_lines} "
            "Check that the file is a whole checkpoint and that --model is the model it was trained as."
        ) from error
    return LoadedModel(
        name, model, preprocess, open_clip.get_tokenizer(name), config, checkpoint, sha256_file(checkpoint)
    )
