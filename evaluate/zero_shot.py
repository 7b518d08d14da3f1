"""Zero-shot classification, OpenCLIP's protocol: class names through templates, pictures through the eval transform.

Per class every template is encoded, normalised, averaged and normalised again (OpenCLIP's own
``build_zero_shot_classifier`` does it); a picture's scores are 100 times its cosine with each class. Everything is
float32 outside autocast, TF32 off: bf16 scores alone flip 0.1 % (1k classes) to 0.4 % (21k) of the predictions.

Each folder is read and encoded once however many sets use it; a set without flags is a choice of rows and columns.
Cost: one forward pass a picture and a prompt. The whole classifier is held in memory (width x classes float32).

Legend: N pictures, C classes, D embedding width, K guesses a picture.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from open_clip import build_zero_shot_classifier
from torch import Tensor, nn

from data_prep.errors import DataError
from data_prep.shards import decode_image
from evaluate import metrics
from evaluate.data.emoji import Folder, Sample, read_folder
from evaluate.data.sets import Dataset, EvalSet, Templates
from evaluate.encode import MOST_BAD, BadImage, Preprocess, full_float32
from evaluate.errors import RefusedError
from evaluate.progress import progress
from evaluate.texts import Tokenizer

TOP_K = 5


@dataclass(frozen=True)
class Encoded:
    """A folder after the towers. Features are float32 of unit length, on the CPU."""

    folder: Folder
    samples: list[Sample]  # the readable ones, length N
    images: Tensor  # (N, D)
    classifier: Tensor  # (D, C), a column a class in the order of ``folder.classes``
    bad: list[BadImage]
    seconds: float  # reading, transforming and encoding the pictures

    @property
    def labels(self) -> Tensor:
        """Index of each picture's class in ``folder.classes``: int64 (N,)."""
        return torch.tensor([s.label for s in self.samples], dtype=torch.int64)


def refuse_non_finite(features: Tensor, what: str) -> None:
    """Raise RefusedError where a feature is NaN or infinite: such a model has no predictions."""
    finite = torch.isfinite(features)
    if not finite.all():
        raise RefusedError(
            f"{int((~finite).sum())} of {features.numel()} {what} are NaN or infinite. The checkpoint is damaged or "
            "the run diverged: look at the end of its metrics.jsonl and evaluate an earlier checkpoint."
        )


def build_classifier(
    model: nn.Module, tokenizer: Tokenizer, names: Sequence[str], templates: Templates, device: torch.device
) -> Tensor:
    """Class weights, one unit column a name: float32 (D, C) on the CPU. Raises RefusedError for NaN or infinity."""
    weights_DC = build_zero_shot_classifier(model, tokenizer, list(names), list(templates.texts), device=device)
    refuse_non_finite(weights_DC, "numbers of the text features")
    return weights_DC.float().cpu()


def readable_batches(
    samples: Sequence[Sample], preprocess: Preprocess, batch_size: int, bad: list[BadImage]
) -> Iterator[tuple[list[Sample], Tensor]]:
    """Batches of pictures as the model wants them, float32 (B, 3, H, W); unreadable ones are appended to ``bad``.

    Raises RefusedError as soon as more than ``MOST_BAD`` of all samples are unreadable.
    """

    def readable() -> Iterator[tuple[Sample, Tensor]]:
        for sample in samples:
            try:
                picture = decode_image(sample.image)
            except DataError as error:
                bad.append(BadImage(sample.shard, sample.key, str(error)))
                if len(bad) > MOST_BAD * len(samples):
                    named = ", ".join(f"{b.shard}:{b.key}" for b in bad[:5])
                    raise RefusedError(
                        f"{len(bad)} of {len(samples)} pictures cannot be decoded, more than {MOST_BAD:.0%} "
                        f"({named}; {bad[-1].reason}). Build the data set again."
                    ) from error
            else:
                yield sample, preprocess(picture)

    stream = readable()
    while batch := list(islice(stream, batch_size)):
        yield [sample for sample, _ in batch], torch.stack([pixels for _, pixels in batch])


def encode_images(
    model: nn.Module,
    preprocess: Preprocess,
    samples: Sequence[Sample],
    *,
    batch_size: int,
    device: torch.device,
    label: str,
) -> tuple[Tensor, list[Sample], list[BadImage]]:
    """Unit image features float32 (N, D) on the CPU, the samples they belong to, and the unreadable ones.

    Raises RefusedError for non-finite features and for too many unreadable pictures.
    """
    bad: list[BadImage] = []
    kept: list[Sample] = []
    features = []
    with progress(len(samples), label) as advance:
        for batch, pixels_BCHW in readable_batches(samples, preprocess, batch_size, bad):
            features_BD = model.encode_image(pixels_BCHW.to(device), normalize=True)  # type: ignore[operator]
            refuse_non_finite(features_BD, "numbers of the image features")
            features.append(features_BD.float().cpu())
            kept += batch
            advance(len(batch))
    return torch.cat(features), kept, bad


def encode_folder(
    model: nn.Module,
    tokenizer: Tokenizer,
    preprocess: Preprocess,
    folder: Folder,
    templates: Templates,
    *,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> Encoded:
    """Both towers over one folder: its class names and its pictures. Leaves the model's train/eval mode as it was."""
    device = torch.device(device)
    with full_float32(model):
        classifier_DC = build_classifier(model, tokenizer, [c.name for c in folder.classes], templates, device)
        started = time.perf_counter()
        images_ND, kept, bad = encode_images(
            model, preprocess, folder.samples, batch_size=batch_size, device=device, label=folder.path.name
        )
        seconds = time.perf_counter() - started
    return Encoded(folder, kept, images_ND, classifier_DC, bad, seconds)


def restrict(encoded: Encoded, flags: bool) -> tuple[Tensor, Tensor, Tensor, list[Sample]]:
    """Features (N, D), classifier (D, C) and labels (N,) of a set; without flags, renumbered to the classes left."""
    if flags:
        return encoded.images, encoded.classifier, encoded.labels, encoded.samples
    classes = [i for i, entry in enumerate(encoded.folder.classes) if not entry.flag]
    renumbered = {old: new for new, old in enumerate(classes)}
    rows = [i for i, sample in enumerate(encoded.samples) if sample.label in renumbered]
    samples = [encoded.samples[i] for i in rows]
    labels_N = torch.tensor([renumbered[s.label] for s in samples], dtype=torch.int64)
    return encoded.images[rows], encoded.classifier[:, classes], labels_N, samples


def score(logits_NC: Tensor, labels_N: Tensor) -> dict[str, Any]:
    """The figures of one set (percent) from its scores; ``interval`` is Wilson's 95 % of top-1."""
    classes = logits_NC.shape[1]
    guesses_NK = metrics.top_k(logits_NC, TOP_K)
    first_N, five_N = metrics.hits(guesses_NK, labels_N, 1), metrics.hits(guesses_NK, labels_N, TOP_K)
    return {
        "top1": metrics.percent(first_N),
        "top5": metrics.percent(five_N),
        "mean_per_class": metrics.mean_per_class(first_N, labels_N),
        "n": len(labels_N),
        "classes": classes,
        "chance": 100.0 / classes,
        "interval": list(metrics.wilson_interval(int(first_N.sum()), len(labels_N))),
        "ties": int(metrics.tied_at_top(logits_NC, labels_N).sum()),
    }


def score_set(encoded: Encoded, eval_set: EvalSet) -> dict[str, Any]:
    """Figures of one set of an encoded folder, with a row a vendor where its pictures come from several."""
    images_ND, classifier_DC, labels_N, samples = restrict(encoded, eval_set.flags)
    logits_NC = 100.0 * images_ND @ classifier_DC
    figures = score(logits_NC, labels_N)
    vendors = sorted({s.vendor for s in samples})
    if len(vendors) > 1:
        figures["per_vendor"] = {}
        for vendor in vendors:
            rows = [i for i, s in enumerate(samples) if s.vendor == vendor]
            row = score(logits_NC[rows], labels_N[rows])
            figures["per_vendor"][vendor] = {k: row[k] for k in ("top1", "top5", "mean_per_class", "n", "interval")}
    return figures


def read_folders(dataset: Dataset, root: Path) -> dict[str, Folder]:
    """Every folder of a data set, read and checked. Raises RefusedError, see ``emoji.read_folder``."""
    return {name: read_folder(root, name) for name in dataset.folders}


def evaluate_folders(
    model: nn.Module,
    tokenizer: Tokenizer,
    preprocess: Preprocess,
    dataset: Dataset,
    folders: Mapping[str, Folder],
    *,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> tuple[dict[str, dict[str, Any]], dict[str, Encoded]]:
    """Every set of a data set: its figures by set name, and the encoded folders by folder name."""
    encoded = {
        name: encode_folder(
            model, tokenizer, preprocess, folders[name], dataset.templates, batch_size=batch_size, device=device
        )
        for name in dataset.folders
    }
    return {s.name: score_set(encoded[s.folder], s) for s in dataset.sets}, encoded
