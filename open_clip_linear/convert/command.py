"""`python -m open_clip_linear convert`: a checkpoint of one attention kind as one of another.

The conversion itself is `state_dict`; this is the command around it: what it refuses before any work,
the comparison of the features before and after, the file, and what is said.
"""

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import groupby
from math import isqrt
from pathlib import Path
from typing import Any

import open_clip
from PIL import Image
from torch import Tensor, nn

from open_clip_linear.convert.features import (
    CAPTIONS,
    MOST_PICTURES,
    ComparisonError,
    FeatureShift,
    drawn_pictures,
    feature_shift,
    image_features,
    read_pictures,
    text_features,
)
from open_clip_linear.convert.state_dict import (
    ConversionError,
    ConversionReport,
    LayerChange,
    TowerChange,
    as_openclip_reads,
    convert_named,
)
from open_clip_linear.convert.weights import (
    SUFFIXES,
    WeightsError,
    check_input,
    check_output,
    load_weights,
    save_weights,
)
from open_clip_linear.registry import add_model_configs
from open_clip_linear.spec import nearest

CONFIGS = {"vision": "vision_cfg", "text": "text_cfg", "decoder": "multimodal_cfg"}
EXAMPLE = """example:
  python -m open_clip_linear convert --from stock.pt --to-model ViT-B-16-eq7 --output ViT-B-16-eq7.pt
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(
        prog="python -m open_clip_linear convert",
        description="Turn a checkpoint of any attention kind into one of another. Each layer's output projection is "
        "multiplied so that the attention keeps its size; between kinds that differ in more than scale, the result is "
        "where training starts, and how far its features moved is measured and printed.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--from", dest="source", required=True, type=Path, metavar="FILE", help=f"weights: {', '.join(SUFFIXES)}"
    )
    command.add_argument("--to-model", required=True, metavar="MODEL", help="a registered model's name")
    command.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="where the weights go; the suffix says in which form"
    )
    command.add_argument("--raw", action="store_true", help="change no weight, whatever that does to the attention")
    command.add_argument("--model-configs", type=Path, metavar="DIR", help="folder of further model-config JSON files")
    command.add_argument(
        "--images", nargs="+", action="extend", type=Path, default=[], metavar="PATH",
        help="pictures or folders of them to compare features on (default: pictures that are drawn)",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="print one JSON document")
    return command


@dataclass(frozen=True)
class Comparison:
    """Features before and after; `missing` says what was not compared and why."""

    images: FeatureShift
    texts: FeatureShift | None
    missing: tuple[str, ...]

    @property
    def needs_training(self) -> bool:
        return not (self.images.same and (self.texts is None or self.texts.same) and not self.missing)


def progress(text: str) -> None:
    """Say on stderr what is being done, because it may take a while."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def random_weights_expected() -> Iterator[None]:
    """OpenCLIP warns of models without weights on the root logger; here the weights come afterwards."""

    def keep(record: logging.LogRecord) -> bool:
        return "initialized randomly" not in record.getMessage()

    logging.getLogger().addFilter(keep)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(keep)


def model_config(name: str) -> dict[str, Any]:
    """The JSON config of a registered model. Raises ConversionError that names the nearest known ones."""
    config = open_clip.get_model_config(name) if ":" not in name else None
    if config is None:
        raise ConversionError(f"--to-model {name!r} is not a registered model{nearest(name, open_clip.list_models())}")
    return config


def build(name: str, **towers: Any) -> nn.Module:
    """A model in eval mode and float32, with other tower configs than its own where given."""
    try:
        with random_weights_expected():
            return open_clip.create_model(
                name, precision="fp32", load_weights=False, pretrained_text=False, **towers
            ).eval()
    except (ValueError, TypeError, RuntimeError, OSError, AssertionError) as error:
        raise ConversionError(f"the model {name} cannot be created: {' '.join(str(error).split())[:600]}") from error


def build_source(name: str, report: ConversionReport, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model the weights came from: the target's config with the weights' kinds, image size and context length."""
    config, towers = model_config(name), {}
    for tower in report.towers:
        cfg = dict(config[CONFIGS[tower.name]])
        if tower.source != tower.target:
            cfg["block_type"] = tower.source
            if tower.name == "vision":
                cfg["patch_dropout"] = 0.0  # of training only, and not every kind allows it
        if tower.source_tokens != tower.target_tokens:
            if tower.name == "vision":
                side, patch = isqrt(tower.source_tokens - 1), cfg["patch_size"]
                cfg["image_size"] = [side * p for p in patch] if isinstance(patch, list | tuple) else side * patch
            else:
                cfg["context_length"] = cfg.get("context_length", 77) + tower.source_tokens - tower.target_tokens
        if cfg != config[CONFIGS[tower.name]]:
            towers[CONFIGS[tower.name]] = cfg
    model = build(name, **towers)
    model.load_state_dict(weights)
    return model


def tokenize(name: str, model: nn.Module) -> Tensor:
    """The captions as the model reads them. Raises ComparisonError where its tokenizer is not to be had."""
    text: Any = getattr(model, "text", model)
    try:
        tokenizer = open_clip.get_tokenizer(name, context_length=text.context_length)
        tokens = tokenizer(list(CAPTIONS), context_length=text.context_length)
    except Exception as error:  # a tokenizer from a hub raises every kind
        raise ComparisonError(f"its tokenizer cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    if int(tokens.max()) >= text.vocab_size:
        raise ComparisonError(f"its vocabulary of {text.vocab_size} is smaller than the tokenizer's")
    return tokens


def compare(
    name: str,
    report: ConversionReport,
    weights: Mapping[str, Tensor],
    converted: nn.Module,
    pictures: Mapping[str, Image.Image],
) -> Comparison:
    """Image features before and after, and text features where the text tower changed."""
    source = build_source(name, report, weights)
    images = feature_shift(
        list(pictures), image_features(source, pictures.values()), image_features(converted, pictures.values())
    )
    texts, missing = None, []
    changed = {tower.name for tower in report.towers if changes(tower)}
    if "text" in changed:
        try:
            before, after = (text_features(model, tokenize(name, model)) for model in (source, converted))
            texts = feature_shift(CAPTIONS, before, after)
        except ComparisonError as error:
            missing.append(f"text features were not compared: {error}")
    if "decoder" in changed:
        missing.append("the decoder's captions were not compared")
    return Comparison(images, texts, tuple(missing))


def changes(tower: TowerChange) -> bool:
    """Whether a tower computes something else than before."""
    return (tower.source, tower.source_tokens) != (tower.target, tower.target_tokens)


# --- what is said -----------------------------------------------------------------------------------------------


def spell_factor(value: float) -> str:
    """A factor in four digits, with the fraction it is where it is one: `0.01015 (2/197)`."""
    fraction = Fraction(value).limit_denominator(100_000)
    rounded = f"{value:.4g}"
    if float(rounded) == value or abs(float(fraction) / value - 1) > 1e-12:
        return rounded
    return f"{rounded} ({fraction})"


def describe_layers(layers: Sequence[LayerChange], raw: bool) -> str:
    """What was done to layers that were all treated alike."""
    first = layers[0]
    factors = sorted({factor for layer in layers for factor in layer.factors})
    if first.source == first.target:
        return "unchanged"
    if raw or not factors:
        return "weights as they were (--raw)" if raw else "no weights"
    number = spell_factor(factors[0]) if len(factors) == 1 else f"{factors[0]:.4g} to {factors[-1]:.4g}"
    if first.into == "learned gain":
        return f"learned gains set to {number}"
    if factors == [1.0]:
        return "weights as they were, which keeps the attention's size"
    return f"output projections × {number}" + (", each head by its learned gain" if len(first.factors) > 1 else "")


def describe_tower(tower: TowerChange, raw: bool) -> list[str]:
    """A tower in one line, and one line more for each run of layers where they were treated differently."""
    kinds = tower.source if tower.source == tower.target else f"{tower.source} → {tower.target}"
    head = f"{tower.name}: {kinds}, {len(tower.layers)} layers"

    def treated(layer: LayerChange) -> tuple[Any, ...]:
        return layer.source, layer.target, layer.into, layer.factors if len(layer.factors) == 1 else len(layer.factors)

    runs = [list(run) for _, run in groupby(tower.layers, treated)]
    if len(runs) == 1:
        return [f"{head}, {describe_layers(runs[0], raw)}"]
    lines, start = [head], 1
    for run in runs:
        end, first = start + len(run) - 1, run[0]
        which = f"layer {start}" if start == end else f"layers {start}-{end}"
        kinds = first.source if first.source == first.target else f"{first.source} → {first.target}"
        lines.append(f"  {which}: {kinds}, {describe_layers(run, raw)}")
        start = end + 1
    return lines


def describe_shift(what: str, shift: FeatureShift) -> str:
    """Features before and after in one line."""
    line = (
        f"{what}: cosine {shift.cosine_mean:.4f} in the mean and {shift.cosine_min:.4f} at least, "
        f"norm {round(100 * shift.norm_change, 1) + 0.0:+.1f} %"
    )
    if shift.between_samples is not None:
        line += f" (two different ones had cosine {shift.between_samples:.4f} before)"
    return line


def describe(report: ConversionReport, comparison: Comparison, pictures: str) -> list[str]:
    """What was done, in plain words."""
    lines = [line for tower in report.towers for line in describe_tower(tower, report.raw)]
    if report.renamed:
        lines.append("renamed: the text tower's weights, from CLIP's names to this model's")
    lines += [f"resized: {entry}" for entry in report.resized]
    lines += [f"created, with the values of a new model: {key}" for key in report.created]
    lines += [f"dropped: {key}" for key in report.dropped]
    lines.append(describe_shift(f"image features before and after, on {pictures}", comparison.images))
    if comparison.texts:
        what = f"text features before and after, on {len(CAPTIONS)} captions"
        lines.append(describe_shift(what, comparison.texts))
    lines += comparison.missing
    lines.append(
        "The features moved: these weights are where training starts, not a finished model. Train before using them."
        if comparison.needs_training
        else "The features are the same but for rounding: the converted model needs no training."
    )
    return lines


# --- the command ------------------------------------------------------------------------------------------------


def convert(args: argparse.Namespace) -> None:
    """All refusals that cost nothing, then the conversion, the comparison, the file, and what was done."""
    if args.model_configs is not None:
        try:
            add_model_configs(args.model_configs)
        except ValueError as error:
            raise ConversionError(f"--model-configs: {error}") from error
    model_config(args.to_model)
    check_input(args.source)
    check_output(args.output, args.source)
    pictures = read_pictures(args.images) if args.images else drawn_pictures()
    kind = f"{len(pictures)} drawn test pictures, no photographs"
    if args.images:
        kind = f"{'the first ' * (len(pictures) == MOST_PICTURES)}{len(pictures)} of the given pictures"

    progress(f"reading {args.source}")
    loaded = load_weights(args.source)
    progress(f"creating {args.to_model}")
    model = build(args.to_model)
    weights, report = as_openclip_reads(loaded, model, args.raw)
    converted = convert_named(weights, model, report)
    progress(f"comparing features on {kind}")
    comparison = compare(args.to_model, report, weights, model, pictures)
    progress(f"writing {args.output}")
    save_weights(args.output, converted)
    if args.json:
        found = {"from": str(args.source), "to_model": args.to_model, "output": str(args.output)}
        found |= asdict(report) | asdict(comparison) | {"pictures": kind, "needs_training": comparison.needs_training}
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print("\n".join([*describe(report, comparison, kind), f"written: {args.output}"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. Command-line mistakes end in SystemExit(2), as argparse does."""
    args = parser().parse_args(argv)
    try:
        convert(args)
    except (ConversionError, WeightsError, ComparisonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was written before is whole", file=sys.stderr)
        return 130
    return 0
