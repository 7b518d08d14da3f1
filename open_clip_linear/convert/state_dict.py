"""Weights of one attention kind as weights of another, tower by tower.

Kinds share their parameters and differ in what a row's weights sum to (`AttentionSpec.weight_sum`): 1 for softmax, N/2
for the literal Eq. 7. A conversion multiplies the output projection's weight (its bias is no part of the sum) by the
source's sum over the target's, which keeps the attention branch at its size beside the residual stream. The features
then start near the source's; they are equal only between kinds that differ in scale alone. `eq7:scale=learned` holds
such a factor itself: it goes into the gain there, and from the gain into the weights of another kind.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import open_clip.model
import torch
from open_clip.transformer import MultimodalTransformer, Transformer
from torch import Tensor, nn

from open_clip_linear.checkpoint import MARK, KindMismatchError, function_of, mark, read_mark
from open_clip_linear.spec import AttentionSpec, SpecError, parse_pattern, parse_spec
from open_clip_linear.towers.vit import specs_of

PROJECTIONS = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")  # of every attention
# of OpenCLIP's 'custom' blocks with options
CUSTOM_PARTS = ("attn.logit_scale", "attn.head_scale", "attn.ln_", "ln_attn.", "mlp.ln.")
POSITIONS = ("visual.positional_embedding", "positional_embedding", "text.positional_embedding")
NAMES = {"visual.transformer": "vision", "transformer": "text", "text.transformer": "text", "text_decoder": "decoder"}
OPENAI_SIZES = ("input_resolution", "context_length", "vocab_size")  # numbers, beside the weights of OpenAI's files


class ConversionError(ValueError):
    """Weights that cannot be converted into the model; the message says what was found and what to do."""


@dataclass(frozen=True)
class LayerChange:
    """One layer: its attention before and after, and the factor (one, or one a head) and `into` what it went."""

    source: str
    target: str
    into: str = "nothing"  # or "output projection", "learned gain"
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class TowerChange:
    """One tower: its attention as a spec or pattern, and its number of tokens, before and after."""

    name: str
    source: str
    target: str
    source_tokens: int
    target_tokens: int
    layers: tuple[LayerChange, ...]


@dataclass
class ConversionReport:
    """What a conversion did; the lists hold state dict keys."""

    raw: bool
    towers: list[TowerChange] = field(default_factory=list)
    renamed: bool = False  # from CLIP's names to those of CustomTextCLIP and CoCa
    resized: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)  # with the target model's own values
    dropped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Tower:
    """A transformer of the target model."""

    name: str
    prefix: str
    positions: str  # the key of its position embeddings; "" for CoCa's decoder, which has none
    tokens: int
    causal: bool
    layers: int
    specs: tuple[AttentionSpec, ...] | None

    def keys(self, tokens: int) -> float:
        """How many keys a row sees, in the mean."""
        return (tokens + 1) / 2 if self.causal else tokens


def convert_state_dict(
    state_dict: Mapping[str, Any], target_model: nn.Module, raw: bool = False
) -> tuple[dict[str, Tensor], ConversionReport]:
    """Convert weights of any attention kinds into those of a model, and load them into it.

    The kinds of the weights are read from their marks; weights without a mark are softmax, as stock OpenCLIP's are.
    Layers whose function stays are copied bit for bit. What a factor touches keeps its dtype, but for half precision,
    which becomes float32 so that no bit is lost.

    Args:
        state_dict: of a CLIP model, also with the prefixes of DistributedDataParallel and torch.compile.
        target_model: a freshly created CLIP, CustomTextCLIP or CoCa; its own values serve parameters that the weights
            lack because their kind has none.
        raw: leave the attention's weights as they are, whatever that does to its size.

    Returns:
        The new state dict, with the target's marks, and what was done.

    Raises:
        ConversionError: weights of an unknown kind, of another model, damaged, or not finite.
    """
    source, report = as_openclip_reads(state_dict, target_model, raw)
    return convert_named(source, target_model, report), report


def as_openclip_reads(
    state_dict: Mapping[str, Any], model: nn.Module, raw: bool = False
) -> tuple[dict[str, Tensor], ConversionReport]:
    """The first half of `convert_state_dict`: the weights under the model's names, before anything is computed.

    It follows OpenCLIP's load_checkpoint, which the result is loaded by.
    """
    state, report, own = strip_prefixes(state_dict), ConversionReport(raw), model.state_dict()
    for key in OPENAI_SIZES:
        if key in state and key not in own:
            del state[key]
            report.dropped.append(key)
    if others := [key for key, value in state.items() if not isinstance(value, Tensor)]:
        raise ConversionError(f"these weights hold more than tensors: {listed(others)}; give a plain state dict")
    state = {key: value.detach() for key, value in state.items()}
    if broken := [key for key, value in state.items() if value.is_floating_point() and not value.isfinite().all()]:
        raise ConversionError(
            f"these weights hold NaN or infinite values in {listed(broken)}: they are damaged or come from a run that "
            "diverged; take an earlier checkpoint"
        )
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        renamed = open_clip.model.convert_to_custom_text_state_dict(state)
        report.renamed, state = set(renamed) != set(state), renamed
    for key in ("logit_scale", "logit_bias"):
        if key in state and key in own and state[key].numel() == own[key].numel():
            state[key] = state[key].reshape(own[key].shape)
    if "logit_bias" in own and "logit_bias" not in state and "logit_scale" in state:
        state["logit_bias"] = torch.zeros_like(state["logit_scale"])
        report.created.append("logit_bias")
    return state, report


def convert_named(source: Mapping[str, Tensor], model: nn.Module, report: ConversionReport) -> dict[str, Tensor]:
    """The second half of `convert_state_dict`: computes, checks and loads; fills in the report."""
    state, own = dict(source), model.state_dict()
    for tower in find_towers(model):
        report.towers.append(convert_tower(state, own, tower, report))
    refuse_misfit(state, own)
    resize_positions(state, model, report)
    state = {key: state[key] for key in own}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ConversionError(f"the converted weights do not load: {' '.join(str(error).split())[:600]}") from error
    return state


def strip_prefixes(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The state dict without what DistributedDataParallel and torch.compile put before every name."""
    state = {str(key): value for key, value in state_dict.items()}
    while prefix := next((p for p in ("module.", "_orig_mod.") if state and all(k.startswith(p) for k in state)), None):
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def find_towers(model: nn.Module) -> list[_Tower]:
    """OpenCLIP's transformers in a model; towers of timm and Hugging Face are none."""
    modules, towers = dict(model.named_modules()), []
    for path, name in NAMES.items():
        module = modules.get(path)
        if not isinstance(module, Transformer):
            continue
        parent = path.rpartition(".")[0]
        decoder = isinstance(module, MultimodalTransformer)
        # The modules around a transformer know how its tokens lie, whether its blocks are OpenCLIP's or ours.
        owner: Any = module if decoder else modules[parent]
        positions = "" if decoder else f"{parent}.positional_embedding".removeprefix(".")
        tokens = owner.context_length if decoder else owner.positional_embedding.shape[0]
        causal = getattr(owner, "attn_mask", None) is not None
        towers.append(_Tower(name, f"{path}.", positions, tokens, causal, len(module.resblocks), specs_of(module)))
    return towers


def source_specs(state: Mapping[str, Tensor], tower: _Tower) -> tuple[AttentionSpec, ...]:
    """One spec a layer, from the mark of these weights. Raises ConversionError where they are of another tower."""
    blocks = f"{tower.prefix}resblocks."
    layers = len({key.removeprefix(blocks).partition(".")[0] for key in state if key.startswith(blocks)})
    if layers not in (0, tower.layers):
        raise ConversionError(
            f"the {tower.name} tower of these weights has {layers} layers and the model's has {tower.layers}; convert "
            "into a model that differs in its attention alone"
        )
    found = state.get(tower.prefix + MARK)
    try:
        return parse_pattern("softmax" if found is None else read_mark(found)).layers(tower.layers)
    except (SpecError, KindMismatchError) as error:
        raise ConversionError(
            f"the {tower.name} tower's attention is not known here: {error}; a kind from outside this package must be "
            "registered (register_attention) by the process that converts"
        ) from error


def convert_tower(
    state: dict[str, Tensor], own: Mapping[str, Tensor], tower: _Tower, report: ConversionReport
) -> TowerChange:
    """Convert the weights of one tower in place."""
    sources = source_specs(state, tower)
    targets = tower.specs or (parse_spec("softmax"),) * tower.layers
    tokens = state[tower.positions].shape[0] if tower.positions in state else tower.tokens
    keys = tower.keys(tokens), tower.keys(tower.tokens)
    layers = []
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        block = f"{tower.prefix}resblocks.{index}."
        refuse_custom(state, own, block, source, target)
        layers.append(convert_layer(state, own, f"{block}attn.", source, target, keys, report))
    state.pop(tower.prefix + MARK, None)
    if (new_mark := mark(tower.specs)) is not None:
        state[tower.prefix + MARK] = new_mark
    return TowerChange(tower.name, function_of(sources), function_of(tower.specs), tokens, tower.tokens, tuple(layers))


def refuse_custom(
    state: Mapping[str, Tensor], own: Mapping[str, Tensor], block: str, source: AttentionSpec, target: AttentionSpec
) -> None:
    """Raise ConversionError for the options of OpenCLIP's 'custom' blocks, unless weights and model both have them.

    Such a block carries no mark and is no plain softmax: nothing says what its size would be.
    """

    def parts(keys: Mapping[str, Tensor], spec: AttentionSpec) -> set[str]:
        names = {key.removeprefix(block) for key in keys if key.startswith(block)}
        return {name for name in names if spec.kind == "softmax" and name.startswith(CUSTOM_PARTS)}

    found, wanted = parts(state, source), parts(own, target)
    if found != wanted:
        where, which = ("these weights", found - wanted) if found - wanted else ("the model", wanted - found)
        raise ConversionError(
            f"{block.rstrip('.')} of {where} has options of OpenCLIP's block_type 'custom' ({listed(sorted(which))}), "
            "which are converted neither from nor into another attention; only plain softmax is"
        )


def is_learned(spec: AttentionSpec) -> bool:
    """Whether a layer has Eq. 7's learned gain, which multiplies its weights."""
    return spec.kind == "eq7" and dict(spec.options).get("scale") == "learned"


def convert_layer(
    state: dict[str, Tensor],
    own: Mapping[str, Tensor],
    attn: str,
    source: AttentionSpec,
    target: AttentionSpec,
    keys: tuple[float, float],
    report: ConversionReport,
) -> LayerChange:
    """Convert the attention under the prefix `attn` in place; `keys` is how many a row sees, before and after."""
    names = source.function(), target.function()
    if names[0] == names[1]:
        return LayerChange(*names)
    weight, gain = f"{attn}out_proj.weight", f"{attn}log_gain"
    change = LayerChange(*names)
    if is_learned(source) and weight in state and gain not in state:
        raise ConversionError(f"these weights are of {names[0]!r} but have no {gain}; they are not whole")
    if not report.raw and weight in state:
        sums = source.weight_sum(keys[0]), target.weight_sum(keys[1])
        if not all(math.isfinite(total) and total > 0 for total in sums):
            raise ConversionError(
                f"no factor leads from {names[0]!r} to {names[1]!r}, whose weights sum to {sums[0]} and {sums[1]}; "
                "convert without a factor (--raw)"
            )
        ratio = sums[0] / sums[1]
        if is_learned(target):
            state[gain] = torch.full_like(own[gain], math.log(ratio))
            change = LayerChange(*names, "learned gain", (ratio,))
        else:
            factors = torch.tensor([ratio], dtype=torch.float64)
            if is_learned(source):
                factors = factors * state.pop(gain).double().exp()
            columns = factors.repeat_interleave(state[weight].shape[1] // len(factors))
            change = LayerChange(*names, "output projection", tuple(factors.tolist()))
            state[weight] = scaled(state[weight], columns)
    parts = [f"{attn}{part}" for part in PROJECTIONS]
    for key in [key for key in own if key.startswith(attn) and key not in state and key not in parts]:
        state[key] = own[key].detach().clone()
        report.created.append(key)
    for key in [key for key in state if key.startswith(attn) and key not in own]:
        del state[key]
        report.dropped.append(key)
    return change


def scaled(weight: Tensor, columns: Tensor) -> Tensor:
    """`weight` (out, in) with its columns multiplied, rounded once; float32 where it was narrower."""
    return (weight.double() * columns.to(weight.device)).to(torch.promote_types(weight.dtype, torch.float32))


def resize_positions(state: dict[str, Tensor], model: nn.Module, report: ConversionReport) -> None:
    """Resize the position embeddings to the model's image size and context length, as OpenCLIP does on loading.

    Raises:
        ConversionError: patches that make no square, whose grid nothing tells.
    """
    own = model.state_dict()
    for key in (key for key in POSITIONS if key in state and key in own):
        before, after = state[key].shape[0], own[key].shape[0]
        if before == after:
            continue
        state[key] = state[key].to(torch.promote_types(state[key].dtype, torch.float32))  # half has no interpolation
        if key.startswith("visual."):
            if math.isqrt(max(before - 1, 0)) ** 2 != before - 1 or before < 2:
                raise ConversionError(
                    f"the weights have positions for {before - 1} patches, which make no square, and the model has "
                    f"{after - 1}; positions of a grid that is not square cannot be resized, so convert into a model "
                    "of the same image size"
                )
            open_clip.model.resize_pos_embed(state, model)
        else:
            open_clip.model.resize_text_pos_embed(state, model)
        report.resized.append(f"{key}: {before} → {after} tokens")


def refuse_misfit(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise ConversionError where the weights are another model's, but for the length of position embeddings."""

    def form(key: str, value: Tensor) -> tuple[bool, int, tuple[int, ...]]:
        return value.is_floating_point(), value.ndim, tuple(value.shape[1:] if key in POSITIONS else value.shape)

    def shown(key: str, value: Tensor) -> str:
        return f"{str(value.dtype).removeprefix('torch.')} {'×'.join(map(str, value.shape))}".rstrip()

    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    other = [
        f"{key} ({shown(key, state[key])} for {shown(key, own[key])})"
        for key in own
        if key in state and form(key, state[key]) != form(key, own[key])
    ]
    parts = [
        f"{len(keys)} {what} {listed(keys)}"
        for keys, what in (
            (missing, f"of the model's {len(own)} entries are missing, such as"),
            (unknown, "entries are unknown to the model, such as"),
            (other, "entries have another shape or type, such as"),
        )
        if keys
    ]
    if parts:
        raise ConversionError(
            f"these weights are another model's: {'; '.join(parts)}. Convert into a model that differs from theirs in "
            "its attention and image size alone"
        )


def listed(keys: list[str]) -> str:
    """The first three of some names."""
    return ", ".join(keys[:3]) + (", …" if len(keys) > 3 else "")
