"""Evaluation inside a run: ImageNet zero-shot and retrieval on held-out pairs, shared by all ranks.

    evaluation = Evaluation(settings, model, tokenizer, world)      # every refusal comes here, before training starts
    if evaluation.due(step, steps_per_epoch, last=step == steps):
        row |= evaluation.run(model)                                # on every rank at once

A run with evaluation equals the run without, bit for bit: no random number is drawn, and modes and precision are put
back. What an evaluation refuses is logged and leaves its figures out; the run goes on. Figures are in
percent, computed in float32 outside autocast, and do not depend on the number of ranks (`evaluate/ranks.py`).

Cost: `evaluate/classifier.py`, `zero_shot.py` and `retrieval.py` say it; pictures are decoded by `--workers` threads a
rank.
"""

import logging
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from torch import nn
from torch.distributed.fsdp import FSDPModule

from evaluate import metrics
from evaluate.classifier import class_weights
from evaluate.data.pairs import read_pairs
from evaluate.data.read import Readied, read_dataset
from evaluate.data.sets import Dataset, get_dataset
from evaluate.encode import MOST_BAD, BadImage, Preprocess, full_float32
from evaluate.errors import RefusedError
from evaluate.retrieval import evaluate_pairs
from evaluate.texts import Tokenizer
from evaluate.zero_shot import measure
from training.distributed import World
from training.settings import Settings

BATCH = 64  # training and its optimizer hold most of the device's memory
NAMED = 5  # unreadable pictures that are named in the log
LOG = logging.getLogger(__name__)

Measure = Callable[[nn.Module], tuple[dict[str, float], list[BadImage]]]


class Evaluation:
    """What a run is measured on, and when.

    Args:
        settings: `zeroshot_frequency`, `imagenet_val`, `val_data`, `siglip`, `workers`.
        model: the model itself, not its DDP wrapper, sharded by FSDP or not. Its eval transform is used.
        tokenizer: list of texts → (B, L) int64.
        world: this process; rank 0 alone reads the folders, and all get the lists.

    Raises:
        RefusedError: `--imagenet-val` is no folder of ImageNet's 1000 classes.
        DataError: `--val-data` is no whole set of pairs.
    """

    def __init__(self, settings: Settings, model: nn.Module, tokenizer: Tokenizer, world: World) -> None:
        self.frequency = Fraction(str(settings.zeroshot_frequency))  # exact, so that no boundary is missed
        self.world = world
        self.measures: dict[str, Measure] = {}
        if not self.frequency:
            return
        batch_size, threads = BATCH, max(settings.workers, 1)
        preprocess = image_transform_v2(PreprocessCfg(**model.visual.preprocess_cfg), is_train=False)  # type: ignore
        if settings.imagenet_val:
            dataset, folder = world.from_first(lambda: read_imagenet(settings.imagenet_val))
            self.measures["imagenet"] = lambda model: imagenet_figures(
                model, tokenizer, preprocess, dataset, folder, device=world.device, threads=threads
            )
        if settings.val_data:
            pairs = world.from_first(lambda: read_pairs(Path(settings.val_data)))
            self.measures["val"] = lambda model: evaluate_pairs(
                model,
                tokenizer,
                preprocess,
                pairs,
                sigmoid=settings.siglip,
                batch_size=batch_size,
                device=world.device,
                threads=threads,
            )

    def due(self, step: int, steps_per_epoch: int, *, last: bool = False) -> bool:
        """Whether to evaluate after `step` (counted from 1): a multiple of the frequency was reached, or the end."""
        if not self.measures:
            return False
        interval = self.frequency * steps_per_epoch
        return last or step // interval > (step - 1) // interval

    def run(self, model: nn.Module) -> dict[str, float]:
        """Measure `model`, the one given at the start or another of its kind.

        Returns:
            `imagenet_top1`, `imagenet_top5`, `imagenet_images`, `imagenet_bad_images`, `val_image_to_text_r1` (r5,
            r10), `val_text_to_image_r1` (r5, r10), `val_loss`, `val_pairs`, `val_bad_images`, as far as their data
            were given; the same on every rank. A measure that was refused (the model's features are not finite, or
            too many pictures unreadable) is missing, and the log says why.
        """
        device = self.world.device
        result: dict[str, float] = {}
        with torch.random.fork_rng([device] if device.type == "cuda" else []), full_float32(model):
            for name, measure in self.measures.items():
                try:
                    figures, bad = measure(model)
                except RefusedError as error:  # raised on every rank alike, so none waits
                    self._warn(f"evaluation left out: {error}")
                    continue
                if bad:
                    named = ", ".join(f"{b.shard}: {b.key} ({b.reason})" for b in bad[:NAMED])
                    self._warn(f"{name}: {len(bad)} unreadable pictures were left out: {named}")
                result |= {f"{name}_{key}": value for key, value in figures.items()}
        if isinstance(model, FSDPModule):
            model.reshard()  # the root keeps its gathered parameters after a pass; the optimizer's are the sharded ones
        return result

    def _warn(self, message: str) -> None:
        if self.world.is_first:
            LOG.warning(message)


def read_imagenet(root: str) -> tuple[Dataset, Readied]:
    """ImageNet's validation pictures in `root`. Raises RefusedError where they are not exactly its 1000 classes."""
    try:
        dataset, (folder,) = read_dataset(get_dataset("imagenet1k"), root, limit=None, per_class=None, seed=0)
    except RefusedError as error:
        raise RefusedError(f"--imagenet-val: {error}") from error
    return dataset, folder


def imagenet_figures(
    model: nn.Module,
    tokenizer: Tokenizer,
    preprocess: Preprocess,
    dataset: Dataset,
    folder: Readied,
    *,
    device: torch.device,
    threads: int,
) -> tuple[dict[str, float], list[BadImage]]:
    """`top1` and `top5` in percent, `images` that were scored, `bad_images` that could not be read and who they are.

    Raises:
        RefusedError: features that are not finite, or too many unreadable pictures; on every rank.
    """
    texts = dataset.templates["full"].texts
    weights_DC = class_weights(model, tokenizer, folder.class_names, texts, device=device)
    measured = measure(
        model,
        preprocess,
        folder,
        weights_DC,
        batch_size=BATCH,
        device=device,
        threads=threads,
        most_bad=MOST_BAD,
    )
    guesses = measured.sets[dataset.sets[0].name]
    figures = {f"top{k}": metrics.percent(metrics.hits(guesses.best, guesses.labels, k)) for k in (1, 5)}
    return figures | {"images": len(guesses.labels), "bad_images": len(measured.bad)}, measured.bad
