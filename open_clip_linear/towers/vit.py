"""The seam into OpenCLIP's own towers: `block_type` in a model config may hold an attention spec.

OpenCLIP has no plugin discovery, and any `block_type` it does not know silently builds softmax blocks. `install`
therefore wraps a few methods of OpenCLIP's classes, in place, so that the classes stay the ones that every importer,
`isinstance` check and pickled model means:

1. `Transformer.__init__` builds our blocks where `block_type` is an attention spec; every other call goes through
   unchanged. `Transformer`'s loading and saving guard the kind of the weights (see `open_clip_linear.checkpoint`).
2. `VisionTransformer.__init__` tells the transformer it builds how its tokens lie (grid, class token, patch
   dropout), which the transformer alone never sees. It also lets fixed sin-cos positions serve grids that are not
   square, which OpenCLIP asserts against.
3. The config dataclasses' `__init__` refuses a `block_type` that no tower would read (a timm, ResNet or Hugging Face
   tower) or that cannot be built, before anything is.

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

Method = Callable[..., Any]

_layout: ContextVar[TokenLayout | None] = ContextVar("layout of the vision tower being built", default=None)


def spec_of(transformer: nn.Module) -> AttentionSpec | None:
    """The spec a transformer was built with; None for OpenCLIP's own blocks."""
    return getattr(transformer, "spec", None)


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


# --- Transformer ------------------------------------------------------------------------------------------------


def build_blocks(original: Method) -> Method:
    """`Transformer.__init__` whose `block_type` may be an attention spec."""
    signature = inspect.signature(original)

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        call = signature.bind(self, *args, **kwargs).arguments
        del call["self"]
        block_type = call.pop("block_type", None)
        if block_type in STOCK_BLOCK_TYPES:
            original(self, *args, **kwargs)
            return
        spec = parse_spec(block_type)
        layout = _layout.get()
        if layout is None:
            raise SpecError(f"attention {str(spec)!r} is for vision towers; text towers are not supported yet")
        refuse_custom_options(spec, call)
        # No layers from OpenCLIP: ours take their place, built from the same arguments.
        width, layers, heads = call.pop("width"), call.pop("layers"), call.pop("heads")
        original(self, width, 0, heads, **call)
        block_arguments = inspect.signature(open_clip.transformer.ResidualAttentionBlock).parameters
        shared = {name: value for name, value in call.items() if name in block_arguments}
        self.layers = layers
        self.resblocks = nn.ModuleList(Block(width, heads, spec, layout, **shared) for _ in range(layers))
        self.spec = spec
        self.register_buffer(MARK, mark(spec))

    return init


def guard_loading(original: Method) -> Method:
    """`Transformer._load_from_state_dict` that refuses weights of another kind, strict or not."""

    @wraps(original)
    def load(self: nn.Module, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        spec = spec_of(self)
        check_kind(spec, state_dict, prefix)
        if prefix + MARK in state_dict:
            # An averaged or cast mark says the same in another dtype; ours is loaded in its place.
            state_dict[prefix + MARK] = mark(spec)
        original(self, state_dict, prefix, *args)

    return load


def write_mark(original: Method) -> Method:
    """`Transformer._save_to_state_dict` that writes the mark anew, whatever averaging did to the buffer."""

    @wraps(original)
    def save(self: nn.Module, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        original(self, destination, prefix, keep_vars)
        if prefix + MARK in destination:
            destination[prefix + MARK] = mark(spec_of(self))

    return save


# --- VisionTransformer ------------------------------------------------------------------------------------------


def sin_cos_positions(width: int, layout: TokenLayout) -> Tensor:
    """OpenCLIP's fixed sin-cos position embedding for a grid of any shape: float32 (tokens, width), prefix zero."""
    rows, columns = layout.grid
    grid = np.stack(np.meshgrid(np.arange(columns, dtype=np.float32), np.arange(rows, dtype=np.float32)))
    patches = get_2d_sincos_pos_embed_from_grid(width, grid)
    return torch.from_numpy(np.concatenate([np.zeros((layout.prefix, width)), patches])).float()


def tell_layout(original: Method) -> Method:
    """`VisionTransformer.__init__` that tells its transformer how the tokens lie."""
    signature = inspect.signature(original)

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        call = bound.arguments
        del call["self"]
        height, width = open_clip.transformer.to_2tuple(call["image_size"])
        patch_height, patch_width = open_clip.transformer.to_2tuple(call["patch_size"])
        grid = (height // patch_height, width // patch_width)
        layout = TokenLayout(grid, prefix=1, patch_dropout=call["patch_dropout"])
        # OpenCLIP's fixed sin-cos positions assert a square grid; ours serve any, so they are filled in afterwards.
        fixed_positions = call["block_type"] not in STOCK_BLOCK_TYPES and call["pos_embed_type"] == "sin_cos_2d"
        if fixed_positions:
            call["pos_embed_type"] = "learnable"
        token = _layout.set(layout)
        try:
            original(self, **call)
        finally:
            _layout.reset(token)
        if fixed_positions:
            self.positional_embedding.data.copy_(sin_cos_positions(call["width"], layout))
            self.positional_embedding.requires_grad_(False)

    return init


# --- configs ----------------------------------------------------------------------------------------------------


def parsed(cfg: Any, where: str) -> AttentionSpec | None:
    """The spec in a config's `block_type`, or None for a stock one. Raises SpecError that says `where` it stands."""
    if cfg.block_type in STOCK_BLOCK_TYPES:
        return None
    try:
        return parse_spec(cfg.block_type)
    except SpecError as error:
        raise SpecError(f"{where}.block_type: {error}") from None


def check_vision_cfg(cfg: Any) -> None:
    """Raise SpecError where a vision config's `block_type` is wrong or would not be read."""
    spec = parsed(cfg, "vision_cfg")
    if spec is None:
        return
    refuse_custom_options(spec, vars(cfg))
    if cfg.timm_model_name or not isinstance(cfg.layers, int):
        tower = f"the timm tower {cfg.timm_model_name!r}" if cfg.timm_model_name else "a ResNet tower"
        raise SpecError(f"vision_cfg.block_type {cfg.block_type!r} is not read by {tower}; remove it or use a ViT")


def check_text_cfg(cfg: Any) -> None:
    """Raise SpecError for any attention spec in a text config: text towers come later."""
    spec = parsed(cfg, "text_cfg")
    if spec is not None:
        raise SpecError(
            f"text_cfg.block_type {str(spec)!r}: the text tower's attention cannot be chosen yet (causal forms are to "
            "come); leave block_type out of text_cfg"
        )


def with_check(check: Callable[[Any], None]) -> Callable[[Method], Method]:
    """A config dataclass's `__init__` that ends with `check`."""

    def wrap(original: Method) -> Method:
        @wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            check(self)

        return init

    return wrap


def install() -> None:
    """Put the seam in place; doing it again changes nothing."""
    transformer, vision = open_clip.transformer.Transformer, open_clip.transformer.VisionTransformer
    seam: tuple[tuple[type, str, Callable[[Method], Method]], ...] = (
        (transformer, "__init__", build_blocks),
        (transformer, "_load_from_state_dict", guard_loading),
        (transformer, "_save_to_state_dict", write_mark),
        (vision, "__init__", tell_layout),
        (open_clip.model.CLIPVisionCfg, "__init__", with_check(check_vision_cfg)),
        (open_clip.model.CLIPTextCfg, "__init__", with_check(check_text_cfg)),
        (open_clip.coca_model.MultimodalCfg, "__init__", with_check(check_text_cfg)),
    )
    for cls, name, wrap in seam:
        method = getattr(cls, name)
        if not getattr(method, "open_clip_linear", False):
            wrapped = wrap(method)
            wrapped.open_clip_linear = True  # type: ignore[attr-defined]
            setattr(cls, name, wrapped)
