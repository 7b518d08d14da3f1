"""Zero-shot classification, OpenCLIP's protocol: class names through templates, pictures through the eval transform.

    dataset, folders = read_dataset(get_dataset("imagenet1k"), root, limit=None, per_class=None, seed=0)
    with full_float32(model):
        weights_DC = class_weights(model, tokenizer, folders[0].class_names, texts, device=device)
        measured = measure(model, preprocess, folders[0], weights_DC, batch_size=64, device=device, threads=4)
    figures = figures_of(measured, dataset.sets[0].name)

A picture's scores are 100 times its cosine with each class weight (`classifier.py`). Everything is float32 outside
autocast, TF32 off: bf16 scores alone flip 0.1 % (1k classes) to 0.4 % (21k) of the predictions. Of each picture only
its guesses are kept, and pictures are shared by the ranks (`ranks.py`), whose number changes nothing.

Each folder is encoded once however many sets use it; a set of fewer classes is a choice of columns.
Cost: one forward pass a picture, and B x C scores beside the class weights.

Legend: N pictures, B of a batch, C classes of the folder, S of a set, D embedding width, K guesses a picture.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evaluate import metrics
from evaluate.data.read import Readied
from evaluate.decode import Reader
from evaluate.encode import MOST_BAD, BadImage, Preprocess, picture_rows
from evaluate.errors import RefusedError
from evaluate.ranks import union

TOP_K = 5
CLASSES_SHOWN = 10  # worst and best


@dataclass(frozen=True)
class Guesses:
    """What the model says of the readable pictures of one set, in the folder's order. On the CPU."""

    numbers: Tensor  # (N,) int64: which of the folder's pictures they are
    labels: Tensor  # (N,) int64: class index in the folder
    best: Tensor  # (N, K) int64: class indices in the folder, best first
    scores: Tensor  # (N, K) float32: 100 times the cosine
    tied: Tensor  # (N,) bool, see metrics.tied_at_top


@dataclass(frozen=True)
class Measured:
    """A folder's guesses, by set, and what happened on the way."""

    folder: Readied
    sets: dict[str, Guesses]
    bad: list[BadImage]
    otherwise: dict[int, str]  # pictures that OpenCLIP would read otherwise, by number: what they have
    seconds: float  # reading, transforming and encoding the pictures


def measure(
    model: nn.Module,
    preprocess: Preprocess,
    folder: Readied,
    weights_DC: Tensor,
    *,
    batch_size: int,
    device: torch.device,
    threads: int,
    most_bad: float = MOST_BAD,
    fast: bool = False,
    advance: Callable[[int], object] = lambda count: None,
) -> Measured:
    """The guesses for every picture of a folder.

    Call it on every rank at once, inside `encode.full_float32`; the result is the same on every rank.

    Args:
        preprocess: of what `decode.Reader` gives.
        weights_DC: on `device`, a column a class of the folder.
        threads: how many decode pictures.
        most_bad: share of unreadable pictures above which there is no result.
        fast: whether JPEG is decoded by torchvision.
        advance: told how many pictures were encoded by this rank.

    Raises:
        RefusedError: features that are not finite, or too many unreadable pictures; on every rank.
    """
    columns = {
        name: None if len(chosen) == len(folder.class_names) else torch.tensor(chosen, device=device)
        for name, chosen in folder.columns.items()
    }
    places = {name: _places(chosen, len(folder.class_names)) for name, chosen in folder.columns.items()}
    labels = torch.tensor(folder.pictures.labels, dtype=torch.int64)

    def rows_of(batch: range, pixels_BCHW: Tensor) -> Tensor:
        """A column for usable features, then for each set K guesses, their K scores, and whether there is a tie."""
        features_BD = model.encode_image(pixels_BCHW.to(device), normalize=True).float()  # type: ignore[operator]
        scores_BC = 100.0 * features_BD @ weights_DC
        parts = [(features_BD.isfinite().all(dim=1) & features_BD.any(dim=1))[:, None]]
        for name, chosen_S in columns.items():
            scores_BS = scores_BC if chosen_S is None else scores_BC[:, chosen_S]
            best = scores_BS.topk(min(TOP_K, scores_BS.shape[1]), dim=1)
            guesses_BK = best.indices if chosen_S is None else chosen_S[best.indices]
            own_B = places[name][labels[batch.start : batch.stop]].to(device)
            tied_B = metrics.tied_at_top(scores_BS, own_B.clamp(min=0))
            parts += [guesses_BK, best.values, tied_B[:, None]]
        return torch.cat([part.double() for part in parts], dim=1)

    reader = Reader(folder.pictures.places, fast=fast)
    started = time.perf_counter()
    rows, bad, readable = picture_rows(
        reader,
        [split_name(name) for name in folder.pictures.names],
        preprocess,
        rows_of,
        batch_size=batch_size,
        threads=threads,
        most_bad=most_bad,
        advance=advance,
    )
    seconds = time.perf_counter() - started
    rows, numbers_N = rows.cpu(), torch.tensor(readable)
    if not rows[numbers_N, 0].all():
        raise RefusedError(
            "image features are NaN, infinite or all zero. The checkpoint is damaged or the run diverged: look at the "
            "end of its metrics.jsonl and evaluate an earlier checkpoint."
        )
    sets, at = {}, 1
    for name, chosen in folder.columns.items():
        k = min(TOP_K, len(chosen))
        own_N = numbers_N[places[name][labels[numbers_N]] >= 0]
        if not len(own_N):
            raise RefusedError(f"{name}: none of its pictures is among those left; take more, or copy the data again.")
        guesses, scores, tied = rows[own_N, at : at + 2 * k + 1].split([k, k, 1], dim=1)
        sets[name] = Guesses(own_N, labels[own_N], guesses.long(), scores.float(), tied[:, 0].bool())
        at += 2 * k + 1
    return Measured(folder, sets, bad, union(reader.otherwise), seconds)


def _places(chosen: list[int], classes: int) -> Tensor:
    """Of each class of a folder its place among the chosen ones, or -1: int64 (C,)."""
    places_C = torch.full((classes,), -1)
    places_C[torch.tensor(chosen)] = torch.arange(len(chosen))
    return places_C


def split_name(name: str) -> tuple[str, str]:
    """A picture's name as folder or shard, and key: `0.tar:s01` and `n01440764/x.JPEG`."""
    shard, colon, key = name.partition(".tar:")
    if colon:
        return f"{shard}.tar", key
    folder, _, file = name.rpartition("/")
    return folder, file


def figures_of(measured: Measured, name: str) -> dict[str, Any]:
    """The figures of one set, in percent, with a row a group (`per_vendor`) where its pictures come from several.

    Intervals are of 95 %: Wilson's of top-1 (`interval`) and top-5, the bootstrap's of the mean per class. Where
    classes share a name, `merged_top1` counts them as one class.
    """
    folder, guesses = measured.folder, measured.sets[name]
    chosen = folder.columns[name]
    figures = score(guesses) | {"classes": len(chosen), "chance": 100.0 / len(chosen)}
    figures["ties"] = int(guesses.tied.sum())
    names = [folder.class_names[index] for index in chosen]
    if len(set(names)) < len(names):
        figures["merged_top1"] = metrics.percent(merged_hits(guesses, folder.class_names))
    figures |= extreme_classes(guesses, folder, chosen)
    groups = [] if folder.groups is None else [folder.groups[number] for number in guesses.numbers.tolist()]
    if len(set(groups)) > 1:
        figures["per_vendor"] = {}
        for group in sorted(set(groups)):
            rows = torch.tensor([n for n, own in enumerate(groups) if own == group])
            figures["per_vendor"][group] = score(Guesses(*(column[rows] for column in vars(guesses).values())))
    return figures


def score(guesses: Guesses) -> dict[str, Any]:
    """Top-1, top-5, mean per class and their intervals."""
    first_N, five_N = (metrics.hits(guesses.best, guesses.labels, k) for k in (1, TOP_K))
    return {
        "top1": metrics.percent(first_N),
        "top5": metrics.percent(five_N),
        "mean_per_class": metrics.mean_per_class(first_N, guesses.labels),
        "n": len(first_N),
        "interval": list(metrics.wilson_interval(int(first_N.sum()), len(first_N))),
        "interval_top5": list(metrics.wilson_interval(int(five_N.sum()), len(five_N))),
        "interval_mean_per_class": list(metrics.mean_per_class_interval(first_N, guesses.labels)),
    }


def merged_hits(guesses: Guesses, class_names: list[str]) -> Tensor:
    """Whether the first guess has the right name, if not the right class: bool (N,)."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(class_names))}
    names_C = torch.tensor([numbers[name] for name in class_names])
    return names_C[guesses.best[:, 0]] == names_C[guesses.labels]


def extreme_classes(guesses: Guesses, folder: Readied, chosen: list[int]) -> dict[str, list[dict[str, Any]]]:
    """`worst_classes` and `best_classes` by top-1; of equal ones those with more pictures come first."""
    first_N = metrics.hits(guesses.best, guesses.labels, 1)
    right, total = (counts.tolist() for counts in metrics.per_class(first_N, guesses.labels, len(folder.class_names)))
    seen = [index for index in chosen if total[index]]
    shown = min(CLASSES_SHOWN, len(seen) // 2)

    def first(best: bool) -> list[dict[str, Any]]:
        sign = -1 if best else 1
        order = sorted(seen, key=lambda index: (sign * right[index] / total[index], -total[index], index))
        return [
            {
                "class": folder.pictures.classes[index],
                "name": folder.class_names[index],
                "n": total[index],
                "top1": 100.0 * right[index] / total[index],
            }
            for index in order[:shown]
        ]

    return {"worst_classes": first(best=False), "best_classes": first(best=True)}
