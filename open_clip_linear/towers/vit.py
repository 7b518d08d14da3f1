"""The seam into OpenCLIP's own towers: `block_type` in a model config may hold an attention spec.

OpenCLIP has no plugin discovery, and any `block_type` it does not know silently builds softmax blocks. `install`
puts two subclasses where OpenCLIP looks its classes up, and one check on its config dataclasses:

1. `open_clip.transformer.Transformer` builds our blocks for an attention spec and hands every other call to the
   original unchanged. It also guards the kind of the weights it loads.
2. `open_clip.model.VisionTransformer` tells the transformer it builds how its tokens lie (grid, class token, patch
   dropout), which the transformer alone never sees. It also lets fixed sin-cos positions serve grids that are not
   square, which OpenCLIP asserts against.
3. The config dataclasses refuse a `block_type` that no tower would read (a timm, ResNet or Hugging Face tower) or
   that cannot be built, before anything is.

Tried on OpenCLIP 3.3.0 and on 4.2.0.dev0; tests/towers/test_vit.py checks what is assumed of upstream.
"""

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any

import numpy as np
import open_clip.coca_model
import open_clip.model
import open_clip.transformer
import torch
from open_clip.pos_embed import get_2d_sincos_pos_embed_from_grid
from torch import Tensor, nn

from open_clip_linear.attention import TokenLayout
from open_clip_linear.checkpoint import MARK, check_kind, mark
from open_clip_linear.spec import AttentionSpec, SpecError, parse_spec

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

_layout: ContextVar[TokenLayout | None] = ContextVar("layout of the vision tower being built", default=None)

_StockTransformer: type[nn.Module] = open_clip.transformer.Transformer
_StockVisionTransformer: type[nn.Module] = open_clip.transformer.VisionTransformer


def refuse_custom_options(spec: AttentionSpec, options: Mapping[str, Any]) -> None:
    """Raise SpecError where an option of OpenCLIP's custom blocks stands beside an attention spec."""
    on = [name for name in CUSTOM_BLOCK_OPTIONS if options.get(name)]
    if on:
        raise SpecError(
            f"attention {str(spec)!r} cannot be combined with {', '.join(on)}: these belong to OpenCLIP's "
            "block_type 'custom'; remove them"
        )


class Block(open_clip.transformer.ResidualAttentionBlock):
    """OpenCLIP's pre-norm residual block around one of our attentions."""

    def __init__(self, width: int, heads: int, spec: AttentionSpec, layout: TokenLayout, **kwargs: Any) -> None:
        super().__init__(width, heads, **kwargs)
        self.attn = spec.build(width, heads, layout)

    def attention(
        self,
        q_x: Tensor,
        k_x: Tensor | None = None,
        v_x: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Self-attention on q_x (B, N, C). Raises ValueError for other keys, other values or a mask."""
        if k_x is not None or v_x is not None or attn_mask is not None:
            raise ValueError(f"{type(self.attn).__name__} attends over its own tokens without a mask; got others")
        return self.attn(q_x)


class Transformer(_StockTransformer):  # type: ignore[misc, valid-type]
    """OpenCLIP's transformer, whose `block_type` may be an attention spec. Arguments are OpenCLIP's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        call = inspect.signature(_StockTransformer).bind(*args, **kwargs).arguments
        block_type = call.pop("block_type", None)
        if block_type in STOCK_BLOCK_TYPES:
            super().__init__(*args, **kwargs)
            self.spec: AttentionSpec | None = None
            return
        spec = parse_spec(block_type)
        layout = _layout.get()
        if layout is None:
            raise SpecError(f"attention {str(spec)!r} is for vision towers; text towers are not supported yet")
        refuse_custom_options(spec, call)
        # No layers from OpenCLIP: ours take their place, built from the same arguments.
        width, layers, heads = call.pop("width"), call.pop("layers"), call.pop("heads")
        super().__init__(width, 0, heads, **call)
        block_arguments = inspect.signature(open_clip.transformer.ResidualAttentionBlock).parameters
        shared = {name: value for name, value in call.items() if name in block_arguments}
        self.layers = layers
        self.resblocks = nn.ModuleList(Block(width, heads, spec, layout, **shared) for _ in range(layers))
        self.spec = spec
        self.register_buffer(MARK, mark(spec))

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any) -> None:
        # Raises whether or not the caller asked for strict loading, before any of the tower's weights are copied.
        check_kind(self.spec, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


def sin_cos_positions(width: int, layout: TokenLayout) -> Tensor:
    """OpenCLIP's fixed sin-cos position embedding for a grid of any shape: float32 (tokens, width), prefix zero."""
    rows, columns = layout.grid
    grid = np.stack(np.meshgrid(np.arange(columns, dtype=np.float32), np.arange(rows, dtype=np.float32)))
    patches = get_2d_sincos_pos_embed_from_grid(width, grid)
    return torch.from_numpy(np.concatenate([np.zeros((layout.prefix, width)), patches])).float()


class VisionTransformer(_StockVisionTransformer):  # type: ignore[misc, valid-type]
    """OpenCLIP's vision tower, which tells its transformer how the tokens lie. Arguments are OpenCLIP's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(_StockVisionTransformer).bind(*args, **kwargs)
        bound.apply_defaults()
        call = bound.arguments
        height, width = open_clip.transformer.to_2tuple(call["image_size"])
        patch_height, patch_width = open_clip.transformer.to_2tuple(call["patch_size"])
        layout = TokenLayout((height // patch_height, width // patch_width), patch_dropout=call["patch_dropout"])
        # OpenCLIP's fixed sin-cos positions assert a square grid; ours serve any, so they are filled in afterwards.
        fixed_positions = call["block_type"] not in STOCK_BLOCK_TYPES and call["pos_embed_type"] == "sin_cos_2d"
        if fixed_positions:
            call["pos_embed_type"] = "learnable"
        token = _layout.set(layout)
        try:
            super().__init__(**call)
        finally:
            _layout.reset(token)
        if fixed_positions:
            self.positional_embedding.data.copy_(sin_cos_positions(call["width"], layout))
            self.positional_embedding.requires_grad_(False)


def check_vision_cfg(cfg: Any) -> None:
    """Raise SpecError where a vision config's `block_type` is wrong or would not be read."""
    if cfg.block_type in STOCK_BLOCK_TYPES:
        return
    spec = parse_spec(cfg.block_type)
    refuse_custom_options(spec, vars(cfg))
    if cfg.timm_model_name or not isinstance(cfg.layers, int):
        tower = f"the timm tower {cfg.timm_model_name!r}" if cfg.timm_model_name else "a ResNet tower"
        raise SpecError(f"vision_cfg.block_type {cfg.block_type!r} is not read by {tower}; remove it or use a ViT")


def check_text_cfg(cfg: Any) -> None:
    """Raise SpecError for any attention spec in a text config: text towers come later."""
    if cfg.block_type in STOCK_BLOCK_TYPES:
        return
    spec = parse_spec(cfg.block_type)
    raise SpecError(
        f"text_cfg.block_type {str(spec)!r}: the text tower's attention cannot be chosen yet (causal forms are to "
        "come); leave block_type out of text_cfg"
    )


def _add_check(cfg_class: type, check: Callable[[Any], None]) -> None:
    """Run `check` at the end of a config dataclass's __init__, in place, so that every importer sees it."""
    original = cfg_class.__init__  # type: ignore[misc]

    @wraps(original)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        check(self)

    cfg_class.__init__ = checked  # type: ignore[misc]


def install() -> None:
    """Put the seam in place. Called once, by `open_clip_linear.register`."""
    open_clip.transformer.Transformer = Transformer
    open_clip.transformer.VisionTransformer = VisionTransformer
    open_clip.model.VisionTransformer = VisionTransformer
    _add_check(open_clip.model.CLIPVisionCfg, check_vision_cfg)
    _add_check(open_clip.model.CLIPTextCfg, check_text_cfg)
    _add_check(open_clip.coca_model.MultimodalCfg, check_text_cfg)
