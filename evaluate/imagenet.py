"""ImageNet's validation pictures in class folders, and zero-shot accuracy on them by OpenCLIP's protocol.

    images = read_imagenet(Path("imagenet/val"))          # refused here, before anything is encoded
    with full_float32(model):
        figures, bad = zero_shot(model, tokenizer, preprocess, images, batch_size=64, device=device, threads=4)

OpenCLIP's 1000 class names and 80 templates, ten classes a forward pass, pictures opened as torchvision's ImageFolder
does: figures equal OpenCLIP's to the last picture. Prompts and pictures are shared by the ranks (`ranks.py`).

Cost: 80,000 prompts and 50,000 pictures, one forward pass each in float32, over the number of ranks.
Two pairs of class names are the same ("missile", "sunglasses"): top-1 cannot tell them apart, here or elsewhere.

Legend: N pictures, B of a batch, C classes, D embedding width.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import timm.data
import torch
from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES, build_zero_shot_classifier
from torch import Tensor, nn
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader

from evaluate import metrics
from evaluate.encode import picture_rows
from evaluate.errors import RefusedError
from evaluate.ranks import shared_rows
from evaluate.zero_shot import BadImage, Preprocess, Tokenizer

CLASSES_A_PASS = 10  # OpenCLIP's own, with all their templates


@dataclass(frozen=True)
class Labelled:
    """Pictures as paths, each with its class index: the rank of the class's sorted wnid."""

    root: Path
    pictures: list[tuple[str, int]]


def wnids() -> list[str]:
    """The 1000 WordNet identifiers in class-index order, as timm lists them."""
    return list(timm.data.ImageNetInfo("imagenet-1k").label_names())


def read_imagenet(root: Path) -> Labelled:
    """List the pictures of ROOT/WNID/*.JPEG; nothing is opened. Fewer pictures than the official 50,000 are accepted.

    Raises:
        RefusedError: no such folder, its class folders are not exactly the 1000 wnids, or one has no picture.
    """
    if not root.is_dir():
        found = "a file" if root.exists() else "no such folder"
        raise RefusedError(f"--imagenet-val {root}: {found}. Give the folder that holds the 1000 class folders.")
    refuse_other_classes(root, class_folders(root))
    pictures = ImageFolder(str(root), allow_empty=True).samples
    filled = {label for _, label in pictures}
    empty = [name for label, name in enumerate(wnids()) if label not in filled]
    if empty:
        named = ", ".join(empty[:3]) + (", …" if len(empty) > 3 else "")
        raise RefusedError(
            f"--imagenet-val {root}: {len(empty)} class folders hold no picture ({named}); copy it again"
        )
    return Labelled(root, pictures)


def class_folders(root: Path) -> set[str]:
    """Names of the folders in `root`."""
    with os.scandir(root) as entries:
        return {entry.name for entry in entries if entry.is_dir()}


def refuse_other_classes(root: Path, found: set[str]) -> None:
    """Raise RefusedError unless `found` are the 1000 wnids: one folder more or less would move every class index."""
    expected = set(wnids())
    if found == expected:
        return
    inner = next((name for name in sorted(found) if class_folders(root / name) == expected), None)
    if inner is not None:
        raise RefusedError(f"--imagenet-val {root} does not hold the class folders. Probably meant: {root / inner}")
    if found and all(name.isdecimal() for name in found):
        raise RefusedError(
            f"--imagenet-val {root}: {len(found)} class folders with numbers for names (as ImageNet-V2 has), "
            "expected ImageNet's 1000 wnids such as n01440764."
        )
    said = [
        f"{len(names)} {what} ({', '.join(sorted(names)[:3])}{', …' if len(names) > 3 else ''})"
        for what, names in (("missing", expected - found), ("not ImageNet's", found - expected))
        if names
    ]
    raise RefusedError(
        f"--imagenet-val {root}: class folders must be exactly ImageNet's 1000 wnids such as n01440764; found "
        f"{len(found)} folders, {' and '.join(said)}."
    )


def shared_classifier(model: nn.Module, tokenizer: Tokenizer, device: torch.device) -> Tensor:
    """Class weights (D, C), each batch of classes computed by one of the ranks by OpenCLIP's own builder.

    Raises:
        RefusedError: weights that are not finite.
    """

    def compute(batches: Iterator[range]) -> Iterator[Tensor]:
        for batch in batches:
            names = IMAGENET_CLASSNAMES[batch.start : batch.stop]
            yield build_zero_shot_classifier(
                model, tokenizer, names, OPENAI_IMAGENET_TEMPLATES, num_classes_per_batch=None, device=device
            ).T

    weights_CD = shared_rows(len(IMAGENET_CLASSNAMES), CLASSES_A_PASS, compute)
    if not weights_CD.isfinite().all():
        raise RefusedError("ImageNet: text features are NaN or infinite; the run has diverged")
    return weights_CD.T


def zero_shot(
    model: nn.Module,
    tokenizer: Tokenizer,
    preprocess: Preprocess,
    images: Labelled,
    *,
    batch_size: int,
    device: torch.device,
    threads: int,
) -> tuple[dict[str, float], list[BadImage]]:
    """`top1` and `top5` in percent, `images` that were scored, `bad_images` that could not be read and who they are.

    Call it on every rank at once, inside `zero_shot.full_float32`; the result is the same on every rank.

    Raises:
        RefusedError: features that are not finite, or too many unreadable pictures; on every rank.
    """
    weights_DC = shared_classifier(model, tokenizer, device)
    labels_N = torch.tensor([label for _, label in images.pictures], device=device)

    def rows_of(batch: range, pixels_BCHW: Tensor) -> Tensor:
        """(B, 3): whether the first guess is right, whether one of five is, whether the features are finite."""
        features_BD = model.encode_image(pixels_BCHW.to(device), normalize=True)  # type: ignore[operator]
        guesses_BK = (100.0 * features_BD @ weights_DC).topk(5, dim=1).indices
        labels_B = labels_N[batch.start : batch.stop]
        hits = [metrics.hits(guesses_BK, labels_B, k) for k in (1, 5)]
        return torch.stack([*hits, features_BD.isfinite().all(dim=1)], dim=1).float()

    names = [(str(Path(path).parent), Path(path).name) for path, _ in images.pictures]
    rows_N3, bad, readable = picture_rows(
        lambda number: pil_loader(images.pictures[number][0]),
        names,
        preprocess,
        rows_of,
        batch_size=batch_size,
        threads=threads,
    )
    first_N, five_N, finite_N = rows_N3[readable].bool().unbind(dim=1)
    if not finite_N.all():
        raise RefusedError("ImageNet: image features are NaN or infinite; the run has diverged")
    figures = {
        "top1": metrics.percent(first_N),
        "top5": metrics.percent(five_N),
        "images": len(readable),
        "bad_images": len(bad),
    }
    return figures, bad
