"""The seam into OpenCLIP's own towers: `block_type` in a model config may hold an attention spec.

OpenCLIP has no plugin discovery, and any `block_type` it does not know silently builds softmax blocks. `install`
therefore wraps a few methods of OpenCLIP's classes, in place, so that the classes stay the ones that every importer,
`isinstance` check and pickled model means:

1. `Transformer.__init__` builds our blocks where `block_type` is an attention spec; every other call goes through
   unchanged. `Transformer`'s loading and saving guard the kind of the weights (see `open_clip_linear.checkpoint`).
2. `VisionTransformer.__init__` and `TextTransformer.__init__` tell the transformer they build how its tokens lie (grid,
   class token, patch dropout; causal or not, key padding), which the transformer alone never sees. The first also lets
   fixed sin-cos positions serve grids that are not square, which OpenCLIP asserts against. CoCa's builder of its text
   decoder hands `multimodal_cfg.block_type` down, which OpenCLIP drops.
3. The config dataclasses' `__init__` refuses a `block_type` that no tower would read (a timm, ResNet or Hugging Face
   tower) or that cannot be built, before anything is.
4. OpenCLIP's int8 conversion, which knows nothing of attention, refuses our towers rather than doing half of them.

docs/seam.md explains how it works and how to add a kind.
Tried on OpenCLIP 3.3.0 and on 4.2.0.dev0; tests/towers/test_vit.py checks what is assumed of upstream.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import numpy as np
import open_clip.coca_model
import open_clip.model
import open_clip.transformer
import open_clip.utils
import torch
from open_clip.pos_embed import get_2d_sincos_pos_embed_from_grid
from torch import Tensor, nn

from open_clip_linear.attention import Attention, Layout, TextLayout, VisionLayout
from open_clip_linear.checkpoint import MARK, check_kind, mark
from open_clip_linear.spec import AttentionSpec, SpecError, parse_pattern

STOCK_BLOCK_TYPES = (None, "default", "custom")

# Options of OpenCLIP's 'custom' blocks; they change its softmax attention and mean nothing to the other kinds.
CUSTOM_BLOCK_OPTIONS = (
    "qk_norm",
    "scaled_cosine_attn",
    "scale_heads",
    "scale_attn_inner",
    "scale_attn",
    "scale_fc",
)

Method = Callable[..., Any]

_layout: ContextVar[Layout | None] = ContextVar("layout of the tower being built", default=None)
_decoder_block_type: ContextVar[Any] = ContextVar("block_type of the CoCa decoder being built", default=None)


@contextmanager
def building(layout: Layout) -> Iterator[None]:
    """The transformer built inside the block has its tokens lie so."""
    token = _layout.set(layout)
    try:
        yield
    finally:
        _layout.reset(token)


def specs_of(transformer: nn.Module) -> tuple[AttentionSpec, ...] | None:
    """The specs a transformer's layers were built with; None for OpenCLIP's own blocks."""
    return getattr(transformer, "specs", None)


def refuse_custom_options(spec: str, options: Mapping[str, Any]) -> None:
    """Raise SpecError where an option of OpenCLIP's custom blocks stands beside an attention spec."""
    on = [name for name in CUSTOM_BLOCK_OPTIONS if options.get(name)]
    if on:
        raise SpecError(
            f"attention {spec!r} cannot be combined with {', '.join(on)}: these belong to OpenCLIP's "
            "block_type 'custom'; remove them"
        )


class Block(open_clip.transformer.ResidualAttentionBlock):
    """OpenCLIP's pre-norm residual block around one of our attentions."""

    def __init__(self, width: int, heads: int, spec: AttentionSpec, layout: Layout, **kwargs: Any) -> None:
        super().__init__(width, heads, **kwargs)
        self.attn = spec.build(width, heads, layout)

    def attention(
        self,
        q_x: Tensor,
        k_x: Tensor | None = None,
        v_x: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Self-attention on q_x (B, N, C). Raises ValueError for other keys or values, or another mask than its own."""
        if k_x is not None or v_x is not None:
            raise ValueError(f"{type(self.attn).__name__} attends over its own tokens; got other keys or values")
        return self.attn(q_x, attn_mask)


# --- Transformer ------------------------------------------------------------------------------------------------


def build_blocks(original: Method) -> Method:
    """`Transformer.__init__` whose `block_type` may be an attention spec."""
    signature = inspect.signature(original)

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        call = signature.bind(self, *args, **kwargs).arguments
        del call["self"]
        block_type = call.pop("block_type", None)
        if isinstance(self, open_clip.transformer.MultimodalTransformer):
            block_type = _decoder_block_type.get()
        if block_type in STOCK_BLOCK_TYPES:
            original(self, *args, **kwargs)
            return
        pattern, layout = parse_pattern(block_type), _layout.get()
        if layout is None:
            raise SpecError(
                f"attention {block_type!r}: a Transformer alone does not say how its tokens lie; build it by "
                "OpenCLIP's VisionTransformer or TextTransformer"
            )
        refuse_custom_options(block_type, call)
        if not call.get("batch_first", True):
            raise SpecError(f"attention {block_type!r} works on batches first; leave out batch_first=False")
        # No layers from OpenCLIP: ours take their place, built from the same arguments.
        width, layers, heads = call.pop("width"), call.pop("layers"), call.pop("heads")
        specs = pattern.layers(layers)
        original(self, width, 0, heads, **call)
        block_arguments = inspect.signature(open_clip.transformer.ResidualAttentionBlock).parameters
        shared = {name: value for name, value in call.items() if name in block_arguments}
        self.layers = layers
        self.resblocks = nn.ModuleList(Block(width, heads, spec, layout, **shared) for spec in specs)
        self.specs = specs
        self.register_buffer(MARK, mark(specs))

    return init


def guard_loading(original: Method) -> Method:
    """`Transformer._load_from_state_dict` that refuses weights of another kind, strict or not."""

    @wraps(original)
    def load(self: nn.Module, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        specs = specs_of(self)
        check_kind(specs, state_dict, prefix)
        if prefix + MARK in state_dict:
            # An averaged or cast mark says the same in another dtype; ours is loaded in its place.
            state_dict[prefix + MARK] = mark(specs)
        original(self, state_dict, prefix, *args)

    return load


def write_mark(original: Method) -> Method:
    """`Transformer._save_to_state_dict` that writes the mark anew, whatever averaging did to the buffer."""

    @wraps(original)
    def save(self: nn.Module, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        original(self, destination, prefix, keep_vars)
        if prefix + MARK in destination:
            destination[prefix + MARK] = mark(specs_of(self))

    return save


# --- VisionTransformer, TextTransformer, CoCa's decoder ----------------------------------------------------------


def all_arguments(signature: inspect.Signature, self: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a wrapped `__init__` by name, defaults included, without self."""
    bound = signature.bind(self, *args, **kwargs)
    bound.apply_defaults()
    del bound.arguments["self"]
    return bound.arguments


def sin_cos_positions(width: int, layout: VisionLayout) -> Tensor:
    """OpenCLIP's fixed sin-cos position embedding for a grid of any shape: float32 (tokens, width), prefix zero."""
    rows, columns = layout.grid
    grid = np.stack(np.meshgrid(np.arange(columns, dtype=np.float32), np.arange(rows, dtype=np.float32)))
    patches = get_2d_sincos_pos_embed_from_grid(width, grid)
    return torch.from_numpy(np.concatenate([np.zeros((layout.prefix, width)), patches])).float()


def tell_vision_layout(original: Method) -> Method:
    """`VisionTransformer.__init__` that tells its transformer how the tokens lie."""
    signature = inspect.signature(original)

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        call = all_arguments(signature, self, args, kwargs)
        height, width = open_clip.transformer.to_2tuple(call["image_size"])
        patch_height, patch_width = open_clip.transformer.to_2tuple(call["patch_size"])
        grid = (height // patch_height, width // patch_width)
        layout = VisionLayout(grid, prefix=1, patch_dropout=call["patch_dropout"])
        # OpenCLIP's fixed sin-cos positions assert a square grid; ours serve any, so they are filled in afterwards.
        fixed_positions = call["block_type"] not in STOCK_BLOCK_TYPES and call["pos_embed_type"] == "sin_cos_2d"
        if fixed_positions:
            call["pos_embed_type"] = "learnable"
        with building(layout):
            original(self, **call)
        if fixed_positions:
            self.positional_embedding.data.copy_(sin_cos_positions(call["width"], layout))
            self.positional_embedding.requires_grad_(False)

    return init


def tell_text_layout(original: Method) -> Method:
    """`TextTransformer.__init__` that tells its transformer how the tokens lie."""
    signature = inspect.signature(original)

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        call = all_arguments(signature, self, args, kwargs)
        # OpenCLIP masks padding where a class token stands at the end, and on request in towers that are not causal.
        layout = TextLayout(
            call["context_length"] + bool(call["embed_cls"]),
            causal=not call["no_causal_mask"],
            padding=bool(call["embed_cls"] or (call["use_pad_mask"] and call["no_causal_mask"])),
            class_token=bool(call["embed_cls"]),
        )
        with building(layout):
            original(self, *args, **kwargs)

    return init


def tell_decoder(original: Method) -> Method:
    """`_build_text_decoder_tower` that hands the config's `block_type` down; the cross-attention stays OpenCLIP's."""
    signature = inspect.signature(original)

    @wraps(original)
    def build(*args: Any, **kwargs: Any) -> Any:
        cfg = signature.bind(*args, **kwargs).arguments["multimodal_cfg"]
        cfg = open_clip.coca_model.MultimodalCfg(**cfg) if isinstance(cfg, dict) else cfg
        token = _decoder_block_type.set(cfg.block_type)
        try:
            with building(TextLayout(cfg.context_length)):
                return original(*args, **kwargs)
        finally:
            _decoder_block_type.reset(token)

    return build


# --- configs ----------------------------------------------------------------------------------------------------


def parsed(cfg: Any, where: str) -> tuple[AttentionSpec, ...] | None:
    """The layers' specs in a config's `block_type`, or None for a stock one.

    Raises SpecError that says `where` it stands.
    """
    if cfg.block_type in STOCK_BLOCK_TYPES:
        return None
    try:
        pattern = parse_pattern(cfg.block_type)
        refuse_custom_options(cfg.block_type, vars(cfg))
        if isinstance(cfg.layers, list | tuple):  # a ResNet's; it is refused for what it is
            return pattern.specs
        if not isinstance(cfg.layers, int):
            raise SpecError(f"layers must be a whole number, found {cfg.layers!r}")
        return pattern.layers(cfg.layers)
    except SpecError as error:
        raise SpecError(f"{where}.block_type: {error}") from None


def check_vision_cfg(cfg: Any) -> None:
    """Raise SpecError where a vision config's `block_type` is wrong or would not be read."""
    if parsed(cfg, "vision_cfg") and (cfg.timm_model_name or not isinstance(cfg.layers, int)):
        tower = f"the timm tower {cfg.timm_model_name!r}" if cfg.timm_model_name else "a ResNet tower"
        raise SpecError(f"vision_cfg.block_type {cfg.block_type!r} is not read by {tower}; remove it or use a ViT")


def check_text_cfg(cfg: Any) -> None:
    """Raise SpecError where a text config's `block_type` is wrong or would not be read."""
    where = "multimodal_cfg" if isinstance(cfg, open_clip.coca_model.MultimodalCfg) else "text_cfg"
    if not parsed(cfg, where):
        return
    modern = getattr(cfg, "text_arch", "clip") != "clip"  # OpenCLIP 4 has a second text architecture
    if cfg.hf_model_name or modern:
        tower = f"the text architecture {cfg.text_arch!r}" if modern else f"the tower {cfg.hf_model_name!r}"
        raise SpecError(f"{where}.block_type {cfg.block_type!r} is not read by {tower}; remove it")


def with_check(check: Callable[[Any], None]) -> Callable[[Method], Method]:
    """A config dataclass's `__init__` that ends with `check`."""

    def wrap(original: Method) -> Method:
        @wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            check(self)

        return init

    return wrap


# --- int8 -------------------------------------------------------------------------------------------------------


def refuse_int8(original: Method) -> Method:
    """`replace_linear` that refuses our towers: it would convert their MLPs and leave their attention as it is."""

    @wraps(original)
    def replace(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(module, Attention) for module in model.modules()):
            raise NotImplementedError(
                f"{type(model).__name__} has attention of open_clip_linear, which has no int8 form, and OpenCLIP's "
                "conversion would leave it half done; leave out --use-bnb-linear"
            )
        return original(model, *args, **kwargs)

    return replace


def install() -> None:
    """Put the seam in place; doing it again changes nothing."""
    transformer, vision = open_clip.transformer.Transformer, open_clip.transformer.VisionTransformer
    text, coca = open_clip.transformer.TextTransformer, open_clip.coca_model
    seam: tuple[tuple[Any, str, Callable[[Method], Method]], ...] = (
        (transformer, "__init__", build_blocks),
        (transformer, "_load_from_state_dict", guard_loading),
        (transformer, "_save_to_state_dict", write_mark),
        (vision, "__init__", tell_vision_layout),
        (text, "__init__", tell_text_layout),
        (coca, "_build_text_decoder_tower", tell_decoder),
        (open_clip.model.CLIPVisionCfg, "__init__", with_check(check_vision_cfg)),
        (open_clip.model.CLIPTextCfg, "__init__", with_check(check_text_cfg)),
        (coca.MultimodalCfg, "__init__", with_check(check_text_cfg)),
        (open_clip.utils, "replace_linear", refuse_int8),
    )
    for owner, name, wrap in seam:
        method = getattr(owner, name)
        if not getattr(method, "open_clip_linear", False):
            wrapped = wrap(method)
            wrapped.open_clip_linear = True  # type: ignore[attr-defined]
            setattr(owner, name, wrapped)
