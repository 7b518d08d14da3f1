"""Zero-shot evaluation beside OpenCLIP's own: building the classifier, and pictures from JPEG bytes to guesses.

    python -m benchmarks.zero_shot --json zero-shot.json

Both work on the same random weights, names and pictures in turn, round after round, in one process; a ratio is taken
within a round, so that what else the machine does falls on all alike. OpenCLIP's classifier is its
`build_zero_shot_classifier` on ImageNet's names and 80 templates, its pictures go through its transform and a data
loader with one worker, as many as our threads. Times are CPU time of this process and its workers; predictions are
compared. What the ratio depends on: the context length against the length of the prompts, the model (a small one leaves
more of the time to decoding), and the size of the pictures.
Cost: about a minute and a half a round with the defaults on one core, most of it OpenCLIP's classifier.
"""

import argparse
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import open_clip
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import open_clip_linear  # noqa: F401 -- registers the models
from benchmarks.data import count, environment, picture
from data_prep import atomic
from evaluate.classifier import class_weights
from evaluate.data.pictures import Pictures, Place
from evaluate.data.read import Readied
from evaluate.data.sets import get_dataset
from evaluate.decode import fast_transform
from evaluate.encode import full_float32
from evaluate.zero_shot import measure

CPU = torch.device("cpu")
SIDE, QUALITY = 400, 92  # of the pictures: about ImageNet's


class Files(Dataset[Tensor]):
    """Pictures as OpenCLIP's ImageFolder reads them."""

    def __init__(self, files: list[Path], transform: Callable[[Any], Tensor]) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Tensor:
        with open(self.files[number], "rb") as file:
            return self.transform(Image.open(file).convert("RGB"))


def write_pictures(folder: Path, number: int) -> list[Path]:
    """The same on every run."""
    rng, files = np.random.default_rng(0), []
    for index in range(number):
        buffer = io.BytesIO()
        picture(SIDE, rng).save(buffer, "JPEG", quality=QUALITY)
        files.append(folder / f"{index:05d}.jpg")
        files[-1].write_bytes(buffer.getvalue())
    return files


def timed(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """CPU seconds of this process and of the workers it ended, and what the work gave."""
    before = os.times()
    result = work()
    after = os.times()
    return sum(after[:4]) - sum(before[:4]), result


def classifier_round(model: nn.Module, tokenizer: Any, classes: int) -> dict[str, float]:
    """CPU seconds of both classifiers, and their largest difference."""
    names = open_clip.IMAGENET_CLASSNAMES[:classes]
    texts = get_dataset("imagenet1k").templates["full"].texts
    theirs_s, theirs = timed(
        lambda: open_clip.build_zero_shot_classifier(model, tokenizer, names, open_clip.OPENAI_IMAGENET_TEMPLATES)
    )
    ours_s, ours = timed(lambda: class_weights(model, tokenizer, names, texts, device=CPU))
    return {"theirs_s": theirs_s, "ours_s": ours_s, "difference": float((ours - theirs).abs().max())}


def pictures_round(
    model: nn.Module, transform: Any, files: list[Path], weights_DC: Tensor, threads: int, batch_size: int
) -> dict[str, float]:
    """CPU seconds of OpenCLIP's loop and of ours with either decoder, and how many first guesses differ from its."""

    def theirs() -> Tensor:
        loader = DataLoader(Files(files, transform), batch_size, num_workers=threads)
        return torch.cat([(100.0 * model.encode_image(x, normalize=True) @ weights_DC).argmax(1) for x in loader])  # type: ignore[operator]

    classes = weights_DC.shape[1]
    places = [Place(file, 0, file.stat().st_size) for file in files]
    pictures = Pictures("", [str(i) for i in range(classes)], places, [f.name for f in files], [0] * len(files))
    folder = Readied("", pictures, pictures.classes, {"set": list(range(classes))})

    def ours(fast: bool) -> Tensor:
        read = fast_transform(transform) if fast else transform
        options: dict[str, Any] = {"batch_size": batch_size, "device": CPU, "threads": threads, "fast": fast}
        return measure(model, read, folder, weights_DC, **options).sets["set"].best[:, 0]

    found: dict[str, float] = {}
    found["theirs_s"], expected = timed(theirs)
    for name, fast in (("ours", False), ("fast", True)):
        found[f"{name}_s"], guesses = timed(lambda fast=fast: ours(fast))  # type: ignore[misc]
        found[f"{name}_differ"] = int((guesses != expected).sum())
    return found


def ratio(rounds: list[dict[str, float]], name: str) -> str:
    """How many times OpenCLIP's speed, with the range over rounds."""
    ratios = [one["theirs_s"] / one[f"{name}_s"] for one in rounds]
    return f"{statistics.median(ratios):.2f} times OpenCLIP's ({min(ratios):.2f} to {max(ratios):.2f})"


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.zero_shot",
        description="Classifier construction and images per CPU-second beside OpenCLIP's own evaluator.",
        epilog="example: python -m benchmarks.zero_shot --model ViT-S-16-eq7 --rounds 3 --json zero-shot.json",
    )
    result.add_argument("--model", default="ViT-S-16-eq7mean", help="a registered model (default ViT-S-16-eq7mean)")
    result.add_argument("--rounds", type=count, default=3, help="rounds (default: 3)")
    result.add_argument("--classes", type=count, default=10, help="classes with 80 templates each (default: 10)")
    result.add_argument("--pictures", type=count, default=64, help="pictures (default: 64)")
    result.add_argument("--batch-size", type=count, default=32, help="pictures a forward pass (default: 32)")
    result.add_argument("--json", type=Path, metavar="FILE", help="also write the figures, round by round, to FILE")
    return result


def main() -> int:
    args = parser().parse_args()
    if args.json and not args.json.parent.is_dir():
        print(f"error: --json {args.json}: there is no folder {args.json.parent}; make it first", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, _, transform = open_clip.create_model_and_transforms(args.model)
    tokenizer = open_clip.get_tokenizer(args.model)
    started = time.perf_counter()
    classifiers, pictures = [], []
    with TemporaryDirectory() as folder, full_float32(model):
        files = write_pictures(Path(folder), args.pictures)
        names = open_clip.IMAGENET_CLASSNAMES[:200]
        weights_DC = class_weights(model, tokenizer, names, ["a photo of a {}."], device=CPU)
        for _ in range(args.rounds):
            classifiers.append(classifier_round(model, tokenizer, args.classes))
            pictures.append(pictures_round(model, transform, files, weights_DC, 1, args.batch_size))
    print(", ".join(f"{name} {value}" for name, value in environment().items()))
    print(f"{args.model}, 1 thread, {args.rounds} rounds, {time.perf_counter() - started:.0f} s in all")
    most = max(one["difference"] for one in classifiers)
    print(f"classifier, {args.classes} classes x 80: {ratio(classifiers, 'ours')}; largest difference {most:.1e}")
    for name, label in (("ours", "pictures"), ("fast", "pictures, --fast-decode")):
        differ = max(int(one[f"{name}_differ"]) for one in pictures)
        speed = args.pictures / statistics.median(one[f"{name}_s"] for one in pictures)
        print(f"{label}: {speed:.1f} a CPU-second, {ratio(pictures, name)}; {differ} of {args.pictures} guesses differ")
    if args.json:
        found = {"environment": environment(), "model": args.model, "classifier": classifiers, "pictures": pictures}
        atomic.write_text(args.json, json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
