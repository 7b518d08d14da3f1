"""Images per CPU-second from a JPEG's bytes to a batch of 224 px crops: `--decode fast`, pil and OpenCLIP's pipeline.

    python -m benchmarks.data --json data.json

All pipelines take the same samples from memory with the same random state, in turn, round after round, in one process
of one thread, as a data-loading worker has; a ratio is taken within a round, so that what else the machine does falls
on all alike. OpenCLIP's pipeline is that of open_clip_train 3.3, stage by stage, from the decoding on: its reader of
tars does not run with webdataset 0.2.96 or later. Reading and tokenising, the same for all, are left out.
Normalisation, which fast leaves to the device, is done on this CPU in the last pipeline.
What the ratio depends on: the pictures (made here: smooth noise, edges and grain, about as large as photographs), the
CPU's vector units (torch resizes bytes with AVX2) and the JPEG library in Pillow and torchvision.
Cost: half a minute.
"""

import argparse
import io
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
import webdataset as wds
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image, ImageDraw, features
from torch import Tensor

from data_prep import atomic
from training.data.decode import Decode, Normalise
from training.settings import Settings

SETS = ((256, 95), (512, 90))  # side in pixels and JPEG quality
BASELINE = "OpenCLIP"
Sample = dict[str, Any]
Pipeline = Callable[[list[Sample]], Tensor]


def picture(size: int, rng: np.random.Generator) -> Image.Image:
    """Photo-like: smooth noise of falling amplitude over six octaves, some shapes with sharp edges, a little grain."""
    canvas = np.zeros((size, size, 3))
    for cells in (3, 6, 12, 24, 48, 96):
        noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        canvas += np.asarray(noise.resize((size, size), Image.Resampling.BICUBIC), dtype=float) / cells
    canvas = (canvas - canvas.min()) / np.ptp(canvas) * 255
    image = Image.fromarray(canvas.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for shape in (draw.ellipse, draw.rectangle) * 4:
        x, y = (int(v) for v in rng.integers(0, size, 2))
        width, height = (int(v) for v in rng.integers(size // 16, size // 4, 2))
        shape((x, y, x + width, y + height), fill=tuple(int(v) for v in rng.integers(0, 256, 3)))
    grain = rng.normal(0, 6, (size, size, 1))
    return Image.fromarray((np.asarray(image) + grain).clip(0, 255).astype(np.uint8))


def samples(size: int, quality: int, number: int) -> list[Sample]:
    """As a tar reader gives them; the same on every run."""
    rng = np.random.default_rng(size)
    result = []
    for index in range(number):
        buffer = io.BytesIO()
        picture(size, rng).save(buffer, "JPEG", quality=quality)
        result.append({"__key__": f"{index:05d}", "jpg": buffer.getvalue(), "txt": b"a photo of noise"})
    return result


def ours(decode: str, cfg: Mapping[str, Any]) -> Pipeline:
    decoder = Decode(Settings(decode=decode), cfg)
    return lambda samples: torch.stack([decoder(sample)[0] for sample in samples])


def normalised(pipeline: Pipeline, cfg: Mapping[str, Any]) -> Pipeline:
    normalise = Normalise(cfg)
    return lambda samples: normalise(pipeline(samples))


def open_clip_pipeline(cfg: Mapping[str, Any]) -> Pipeline:
    """The stages of open_clip_train.data.get_wds_dataset after the shuffle, without the tokenizer."""
    transform = image_transform_v2(PreprocessCfg(**cfg), is_train=True)

    def run(samples: list[Sample]) -> Tensor:
        stages = wds.DataPipeline(
            lambda: map(dict, samples),
            wds.select(lambda sample: "txt" in sample and any(s in sample for s in ("png", "jpg", "jpeg", "webp"))),
            wds.decode("pilrgb"),
            wds.rename(image="jpg;png;jpeg;webp", text="txt"),
            wds.map_dict(image=transform),
            wds.to_tuple("image", "text"),
            wds.batched(len(samples)),
        )
        images: Tensor = next(iter(stages))[0]
        return images

    return run


def measure(pipelines: Mapping[str, Pipeline], samples: list[Sample], rounds: int) -> dict[str, list[float]]:
    """Images per CPU-second of each pipeline in each round; a first round warms up and is dropped."""
    speeds: dict[str, list[float]] = {name: [] for name in pipelines}
    for number in range(rounds + 1):
        order = list(pipelines)[:: 1 if number % 2 else -1]  # no pipeline always follows the same one
        for name in order:
            torch.manual_seed(number)  # the same crops for all
            random.seed(number)
            started = time.process_time()
            pipelines[name](samples)
            speeds[name].append(len(samples) / (time.process_time() - started))
    return {name: found[1:] for name, found in speeds.items()}


def summary(speeds: Mapping[str, list[float]]) -> dict[str, Any]:
    """Median images per CPU-second by pipeline, and the ratio to OpenCLIP's in the same round with its spread."""
    result = {}
    for name, found in speeds.items():
        ratios = [mine / base for mine, base in zip(found, speeds[BASELINE], strict=True)]
        result[name] = {
            "images_per_cpu_s": statistics.median(found),
            "ratio": statistics.median(ratios),
            "ratio_least": min(ratios),
            "ratio_most": max(ratios),
        }
    return result


def environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "pillow": Image.__version__,
        "libjpeg_turbo_of_pillow": str(features.version("libjpeg_turbo")),
        "webdataset": version("webdataset"),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"at least 1, found {value}")
    return value


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.data",
        description="Images per CPU-second from JPEG bytes to 224 px crops: ours beside OpenCLIP's own pipeline.",
        epilog="example: python -m benchmarks.data --rounds 9 --json data.json",
    )
    result.add_argument("--rounds", type=count, default=9, help="rounds over all pipelines (default: 9)")
    result.add_argument("--pictures", type=count, default=64, help="pictures of each size (default: 64)")
    result.add_argument("--json", type=Path, metavar="FILE", help="also write the figures, round by round, to FILE")
    return result


def main() -> int:
    args = parser().parse_args()
    if args.json and not args.json.parent.is_dir():
        print(f"error: --json {args.json}: there is no folder {args.json.parent}; make it first", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    cfg = asdict(PreprocessCfg(size=224))
    fast = ours("fast", cfg)
    pipelines = {
        BASELINE: open_clip_pipeline(cfg),
        "--decode pil": ours("pil", cfg),
        "--decode fast": fast,
        "fast, normalised here": normalised(fast, cfg),
    }
    print(", ".join(f"{name} {value}" for name, value in environment().items()))
    results = []
    for size, quality in SETS:
        data = samples(size, quality, args.pictures)
        kilobytes = statistics.mean(len(sample["jpg"]) for sample in data) / 1000
        speeds = measure(pipelines, data, args.rounds)
        found = summary(speeds)
        print(f"\n{size} x {size} px, quality {quality}, {args.pictures} pictures of {kilobytes:.0f} kB, 1 thread")
        print(f"{'':24}images per CPU-s   times OpenCLIP's (least to most of {args.rounds} rounds)")
        for name, row in found.items():
            spread = f"({row['ratio_least']:.2f} to {row['ratio_most']:.2f})"
            print(f"{name:24}{row['images_per_cpu_s']:16.0f}   {row['ratio']:.2f} {spread}", flush=True)
        about = {"size": size, "quality": quality, "pictures": args.pictures, "kilobytes": kilobytes}
        results.append({**about, "pipelines": found, "rounds": speeds})
    if args.json:
        atomic.write_text(args.json, json.dumps({"environment": environment(), "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
