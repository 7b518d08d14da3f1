"""``python -m evaluate attention``: where each layer of a vision tower looks on a picture, for every kind of attention.

For each layer and head, over the shares |w|/Σ|w| of a row: the entropy (nats), the effective number of keys (its
exponential, between 1 and N), the largest share, the part of Σ|w| that is negative, and what the weights sum to. Maps
over the patches: w/Σ|w| of the class token, and its mean over all patches as queries, both means over the heads.

The attention is what the layer did with this picture, not what the picture's features are made of: MLPs and the
residual stream are not in it. Cost: linear kinds N/D passes of a layer's kernel in float64, softmax N² once; memory
D·N a head.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from data_prep.atomic import write_text
from evaluate.looking.attention_page import Shown, page
from evaluate.looking.pictures import read_picture
from evaluate.looking.shares import entropy_of, shares_of
from evaluate.looking.tower import Layer, attention_layers, record
from evaluate.models import LoadedModel
from evaluate.result import command_line, model_facts, versions

FORMAT = 1  # raised when a name changes its meaning
PREFIX = 1  # OpenCLIP's ViT has one token that is no patch, the class token, in front
DIGITS = 5


FIGURES = ("entropy", "effective_keys", "largest_share", "negative", "weight_sum")


@dataclass(frozen=True)
class Queries:
    """What one token, or the mean of several, did in one layer."""

    figures: Tensor  # (5, H), as `FIGURES` names them
    map: Tensor  # (N,) w/Σ|w|, mean over heads


def look(layer: Layer) -> tuple[Queries, Queries]:
    """The class token, and the mean over the patches, of a layer that saw one picture. In blocks of D rows."""
    _, H, N, _ = layer.k.shape
    figures_5HN = layer.k.new_empty(5, H, N, dtype=torch.float64)
    maps_2HN = layer.k.new_zeros(2, H, N, dtype=torch.float64)
    for rows, weights_1HRN in layer.weights():
        weights_HRN = weights_1HRN[0]
        shares = shares_of(weights_HRN)
        entropy = entropy_of(shares)
        negative = shares.masked_fill(weights_HRN > 0, 0).sum(-1)
        figures_5HN[:, :, rows.start : rows.stop] = torch.stack(
            [entropy, entropy.exp(), shares.amax(-1), negative, weights_HRN.sum(-1)]
        )
        signed = shares * weights_HRN.sign()
        own = PREFIX if rows.start == 0 else 0  # the block's rows that are no patch
        maps_2HN[0] += signed[:, :own].sum(1)
        maps_2HN[1] += signed[:, own:].sum(1)
    return (
        Queries(figures_5HN[:, :, :PREFIX].mean(-1), maps_2HN[0].mean(0) / PREFIX),
        Queries(figures_5HN[:, :, PREFIX:].mean(-1), maps_2HN[1].mean(0) / (N - PREFIX)),
    )


def as_json(queries: Queries, grid: tuple[int, int]) -> dict[str, Any]:
    """Figures by head, and the map as rows of patches."""

    def rounded(values: Tensor) -> list[Any]:
        return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]

    return {
        **{name: rounded(values) for name, values in zip(FIGURES, queries.figures, strict=True)},
        "class_token_share": rounded(queries.map[:PREFIX])[0],
        "map": [rounded(row) for row in queries.map[PREFIX:].view(grid)],
    }


def look_at(model: nn.Module, pixels_1CYX: Tensor) -> list[dict[str, Any]]:
    """Every layer on one picture, as JSON values."""
    grid = model.visual.grid_size  # type: ignore[union-attr]
    found = []
    for layer in record(model, pixels_1CYX):
        first, patches = look(layer)
        found.append(
            {
                "layer": layer.number,
                "kind": layer.spec,
                "class_token": as_json(first, grid),  # type: ignore[arg-type]
                "patches": as_json(patches, grid),  # type: ignore[arg-type]
            }
        )
    return found


def seen_picture(model: nn.Module, pixels_1CYX: Tensor) -> Image.Image:
    """The pixels as a picture again: resized and cropped as the model sees it."""
    cfg: Any = model.visual.preprocess_cfg  # type: ignore[union-attr]
    mean, std = (torch.tensor(cfg[name]).view(-1, 1, 1) for name in ("mean", "std"))
    pixels = (pixels_1CYX[0].cpu() * std + mean).clamp(0, 1)
    return Image.fromarray((255 * pixels).round().byte().permute(1, 2, 0).numpy())


def write_attention(
    output: Path,
    loaded: LoadedModel,
    files: Sequence[Path],
    *,
    device: str,
    image_size: int | None,
    advance: Callable[[int], object],
    argv: Sequence[str] = (),
) -> str:
    """Look at every file, write attention.json and attention.html into `output`, and return the table.

    Raises RefusedError: a tower that is not read, or a file that is no picture; both before anything is computed.
    """
    attention_layers(loaded.model)
    for file in files:
        read_picture(file)
    pictures, shown = [], []
    for file in files:
        pixels = loaded.preprocess(read_picture(file)).unsqueeze(0).to(device)
        layers = look_at(loaded.model, pixels)
        pictures.append({"file": str(file), "layers": layers})
        shown.append(Shown(file.name, seen_picture(loaded.model, pixels), layers))
        advance(1)
    visual: Any = loaded.model.visual
    found = {
        **model_facts(loaded),
        "format": FORMAT,
        "image_size": loaded.image_size,
        "forced_image_size": image_size,
        "grid": list(visual.grid_size),
        "pool": visual.pool_type,
        "shares": "|w|/sum|w|; maps are w/sum|w|, mean over heads; patches: mean over all patches as queries",
        "pictures": pictures,
        "versions": versions(),
        "command": command_line(argv),
    }
    write_text(output / "attention.json", json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
    grid = " × ".join(map(str, visual.grid_size))
    about = f"{loaded.name} ({found['kind']}), {loaded.image_size} px, {grid} patches"
    write_text(output / "attention.html", page(about, visual.pool_type, shown))
    return table(about, pictures)


def table(about: str, pictures: Sequence[dict[str, Any]]) -> str:
    """Each layer's figures for a terminal: means over pictures and heads."""
    lines = [about, f"{'':<34}{'class token':^32}{'patches':^32}"]
    columns = f"{'entropy':>10}{'keys':>10}{'negative %':>12}"
    lines.append(f"{'layer':<34}{columns}{columns}")
    for at, layer in enumerate(pictures[0]["layers"]):
        line = f"{layer['layer']:>3} {layer['kind']:<30}"
        for who in ("class_token", "patches"):
            entropy, keys, negative = (
                torch.tensor([picture["layers"][at][who][name] for picture in pictures]).mean().item()
                for name in ("entropy", "effective_keys", "negative")
            )
            line += f"{entropy:>10.3f}{keys:>10.1f}{100 * negative:>12.1f}"
        lines.append(line)
    lines.append("keys: the effective number, exp(entropy of the shares |w|/Σ|w|), mean over heads and pictures.")
    return "\n".join(lines)
