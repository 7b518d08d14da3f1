"""`python -m open_clip_linear list`: this package's models, with the size of their towers.

Everything is counted on the meta device, where a model has shapes and no memory. Multiply-adds (MACs) are those of
matrix products and convolutions, half of what PyTorch counts as FLOPs; sums, norms and softmax itself are left out, and
a causal product counts whole. Image towers are all counted at one image size, so that their costs can be compared;
parameters are those of the model at its own.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import open_clip
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from open_clip_linear.registry import register
from open_clip_linear.towers.vit import STOCK_BLOCK_TYPES, specs_of

PIXELS = 224
SCALARS = ("logit_scale", "logit_bias")  # of neither tower
_TOWERS_OF_OTHERS = {"timm_model_name", "hf_model_name"}

NOTE = f"""
image: pixels a side. M: millions of parameters. GMACs: 10⁹ multiply-adds of matrix products and convolutions, for one
image of {PIXELS} px (whatever the model's own size) and one text.
"""


@dataclass(frozen=True)
class ListedModel:
    """What is told about one model."""

    name: str
    vision_attention: str
    text_attention: str
    image_size: int | list[int]
    parameters: dict[str, int]  # total, vision, text
    macs: dict[str, int]  # image_224, text


def attention_kind(tower: dict[str, Any]) -> str:
    """A tower's attention by its config: an attention spec, `softmax` for OpenCLIP's own, or timm's model name."""
    if name := tower.get("timm_model_name"):
        return str(name)
    block_type = tower.get("block_type")
    return "softmax" if block_type in STOCK_BLOCK_TYPES else str(block_type)


def build(config: dict[str, Any], pixels: int | list[int] | None = None) -> open_clip.CLIP:
    """The model of a config on the meta device, for images of `pixels` (a side, or height and width) if not its own."""
    vision = config["vision_cfg"] | ({} if pixels is None else {"image_size": pixels})
    with torch.device("meta"):
        return open_clip.CLIP(**(config | {"vision_cfg": vision}))


def count_macs(transformer: nn.Module, forward: Callable[[], object]) -> int:
    """Multiply-adds of what `forward` computes on the meta device through a tower's `transformer`.

    Blocks of one attention spec cost the same: the tower is run with its first block and with one more of each spec,
    and what that adds is taken as often as the spec occurs. Scaled dot-product attention is two matrix products on
    the meta device; elsewhere it is a fused kernel, which PyTorch's counter does not know on every device.
    """
    blocks: nn.ModuleList = transformer.resblocks  # type: ignore[assignment]

    def macs(*few: nn.Module) -> int:
        transformer.resblocks = nn.ModuleList(few)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            forward()
        return counter.get_total_flops() // 2

    specs = specs_of(transformer) or [None] * len(blocks)
    one_of_each = dict(zip(specs, blocks, strict=True))
    try:
        with_first = macs(blocks[0])
        cost = {spec: macs(blocks[0], block) - with_first for spec, block in one_of_each.items()}
        return with_first + sum(cost[spec] for spec in specs[1:])
    finally:
        transformer.resblocks = blocks


def image_macs(model: open_clip.CLIP) -> int:
    """MACs of the image tower for one image of the size that the model was built for."""
    image = torch.empty(1, 3, *model.visual.image_size, device="meta")
    return count_macs(model.visual.transformer, lambda: model.encode_image(image))


def text_macs(model: open_clip.CLIP) -> int:
    """MACs of the text tower for one text."""
    text = torch.empty(1, model.context_length, dtype=torch.long, device="meta")
    return count_macs(model.transformer, lambda: model.encode_text(text))


def pair_macs(name: str, image_size: Sequence[int] = ()) -> dict[str, int]:
    """MACs of one image and one text of a registered model, as {"image": …, "text": …}; empty where a tower is not a
    stack of OpenCLIP's transformer blocks (ResNets, timm's and Hugging Face's models) and so cannot be counted here.

    Args:
        image_size: a side, or height and width, if not the config's own.
    """
    config = open_clip.get_model_config(name)
    if not config["vision_cfg"].get("patch_size") or _TOWERS_OF_OTHERS & {*config["vision_cfg"], *config["text_cfg"]}:
        return {}
    pixels = image_size[0] if len(image_size) == 1 else list(image_size) or None
    towers = {"embed_dim": config["embed_dim"], "vision_cfg": config["vision_cfg"], "text_cfg": config["text_cfg"]}
    model = build(towers | {"quick_gelu": config.get("quick_gelu", False)}, pixels)
    return {"image": image_macs(model), "text": text_macs(model)}


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Number of parameters: all, the vision tower's, and the rest but the logit scalars."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    total = sum(sizes.values())
    vision = sum(size for name, size in sizes.items() if name.startswith("visual."))
    return {"total": total, "vision": vision, "text": total - vision - sum(sizes.get(name, 0) for name in SCALARS)}


def listed(names: Sequence[str]) -> Iterator[ListedModel]:
    """What there is to tell about registered models, one after the other. A tower that several share is run once."""
    macs: dict[str, int] = {}
    for name in names:
        config = open_clip.get_model_config(name)
        vision, text = config["vision_cfg"], config["text_cfg"]
        model = build(config)
        own = vision["image_size"] == PIXELS
        image_key, text_key = json.dumps([vision, config["embed_dim"]]), json.dumps([text, config["embed_dim"]])
        if image_key not in macs:
            macs[image_key] = image_macs(model if own else build(config, PIXELS))
        if text_key not in macs:
            macs[text_key] = text_macs(model)
        yield ListedModel(
            name,
            attention_kind(vision),
            attention_kind(text),
            vision["image_size"],
            count_parameters(model),
            {f"image_{PIXELS}": macs[image_key], "text": macs[text_key]},
        )


def print_table(names: Sequence[str]) -> None:
    """Print the models row by row, as they are counted."""
    configs = [open_clip.get_model_config(name) for name in names]
    columns: list[tuple[str, Sequence[str]]] = [
        ("name", names),
        ("vision attention", [attention_kind(config["vision_cfg"]) for config in configs]),
        ("text attention", [attention_kind(config["text_cfg"]) for config in configs]),
    ]
    words = "  ".join(f"{{:<{max(map(len, (title, *cells)))}}}" for title, cells in columns)
    titles = [title for title, _ in columns]
    print(f"{words.format(*titles)}  image  total M  vision M  text M  image GMACs  text GMACs")
    for model in listed(names):
        total, vision, text = (model.parameters[part] / 1e6 for part in ("total", "vision", "text"))
        image, words_macs = model.macs[f"image_{PIXELS}"] / 1e9, model.macs["text"] / 1e9
        print(
            f"{words.format(model.name, model.vision_attention, model.text_attention)}  {model.image_size!s:>5}"
            f"  {total:7.2f}  {vision:8.2f}  {text:6.2f}  {image:11.3f}  {words_macs:10.3f}"
        )
    print(NOTE, end="")


def main(argv: Sequence[str]) -> int:
    """Print the list; returns the exit code. Command-line mistakes end in SystemExit(2), as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m open_clip_linear list",
        description="This package's models: attention, parameters, and multiply-adds.",
    )
    parser.add_argument("--json", action="store_true", help="exact numbers, as a JSON array with one object a model")
    arguments = parser.parse_args(argv)
    names = register().models
    try:
        if arguments.json:
            print(json.dumps([asdict(model) for model in listed(names)], indent=2))
        else:
            print_table(names)
        sys.stdout.flush()
    except BrokenPipeError:
        # A reader such as `head` has seen enough. Python would say so once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
