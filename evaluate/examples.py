"""The pictures of an emoji folder and its names through a run's model: what the report's gallery is chosen from.

The examples are those that the run's figures are of: the data and the checkpoint are compared with its result first.

Legend: N pictures, C classes, D embedding width, B of a batch.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data_prep.progress import progress
from data_prep.shards import decode_image
from evaluate.classifier import class_weights
from evaluate.commands.options import MOST_THREADS
from evaluate.data.emoji import Folder, Sample, read_folder
from evaluate.data.sets import get_dataset
from evaluate.encode import full_float32, picture_rows
from evaluate.errors import RefusedError
from evaluate.models import load_model
from evaluate.runs import Run
from open_clip_linear import add_model_configs

EXAMPLES_FROM = "heldout-vendor"


@dataclass(frozen=True)
class Examples:
    """A folder after the towers. Features are float32 of unit length, on the CPU."""

    folder: Folder
    samples: list[Sample]  # the readable ones, length N
    images: Tensor  # (N, D)
    classifier: Tensor  # (D, C), a column a class in the order of ``folder.classes``
    logit_scale: float = 1.0  # the model's own, after exp

    @property
    def labels(self) -> Tensor:
        """Index of each picture's class in ``folder.classes``: int64 (N,)."""
        return torch.tensor([s.label for s in self.samples], dtype=torch.int64)

    @property
    def credits(self) -> list[str]:
        """Whose pictures they are, and on which terms."""
        return sorted({s.credit for s in self.samples})


def encode_examples(
    run: Run, result: Mapping[str, Any], root: Path, *, batch_size: int, device: torch.device | str
) -> Examples:
    """The held-out vendor's pictures and names through the run's model.

    Args:
        result: the run's zero-shot result on emoji.
        root: the emoji set's folder.

    Raises:
        RefusedError: the data or the checkpoint is not what the result is of.
    """
    folder = read_folder(root, EXAMPLES_FROM)
    if result["manifests"].get(EXAMPLES_FROM) != folder.manifest_sha256:
        raise RefusedError(
            f"{folder.path} is not the data that the zero-shot result of {run.path} is of (the manifests differ). "
            "Give that data as --root, or evaluate the run again on this."
        )
    if own := run.settings.get("model_configs"):
        try:
            add_model_configs(Path(own))
        except ValueError as error:
            raise RefusedError(f"{run.path} was trained with --model-configs {own}: {error}.") from error
    loaded = load_model(run.model, run.checkpoint, device=device, image_size=result.get("forced_image_size"))
    if loaded.sha256 != result["checkpoint"]["sha256"]:
        raise RefusedError(
            f"{run.checkpoint} is not the checkpoint that the zero-shot result of {run.path} is of (its sha256 "
            f"differs). Evaluate it again: {result['command']}"
        )
    model, device = loaded.model, torch.device(device)

    def rows_of(batch: range, pixels_BCHW: Tensor) -> Tensor:
        return model.encode_image(pixels_BCHW.to(device), normalize=True)  # type: ignore[operator]

    with full_float32(model), progress(len(folder.samples), "examples") as advance:
        names = [c.name for c in folder.classes]
        texts = get_dataset("emoji").templates["full"].texts
        classifier_DC = class_weights(model, loaded.tokenizer, names, texts, device=device)
        images_ND, _, readable = picture_rows(
            lambda number: decode_image(folder.samples[number].image),
            [(sample.shard, sample.key) for sample in folder.samples],
            loaded.preprocess,
            rows_of,
            batch_size=batch_size,
            threads=min(os.cpu_count() or 1, MOST_THREADS),
            advance=advance,
        )
    return Examples(
        folder,
        [folder.samples[number] for number in readable],
        images_ND[readable].float().cpu(),
        classifier_DC.float().cpu(),
        float(model.logit_scale.detach().exp()),  # type: ignore[operator]
    )
