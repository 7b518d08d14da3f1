"""Linear-cost attention for OpenCLIP, chosen in the model-config JSON.

    import open_clip
    import open_clip_linear  # registers the models and the attention kinds

    model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-16-eq7")

Importing is registering: it adds the model configs this package ships and lets `block_type` in the `vision_cfg` and
`text_cfg` of any OpenCLIP config hold an attention spec (`eq7`, `eq7:scale=mean`, `sema:window=7,local=eq4`) or a
pattern of them over the layers (`eq7*9+softmax*3`); see `open_clip_linear.spec`.
Nothing else of OpenCLIP changes: other models are built by the same code as before.
"""

from importlib.metadata import version

from open_clip_linear.attention import (
    KINDS,
    Attention,
    Choice,
    Integer,
    Layout,
    TextLayout,
    VisionLayout,
    register_attention,
)
from open_clip_linear.attention.functional import linear_attention, linear_attention_qkvpacked
from open_clip_linear.checkpoint import KindMismatchError
from open_clip_linear.registry import Registration, add_model_configs, register
from open_clip_linear.spec import AttentionSpec, Pattern, SpecError, parse_pattern, parse_spec

__version__ = version("open_clip_linear")
__all__ = [
    "KINDS",
    "Attention",
    "AttentionSpec",
    "Choice",
    "Integer",
    "KindMismatchError",
    "Layout",
    "Pattern",
    "Registration",
    "SpecError",
    "TextLayout",
    "VisionLayout",
    "add_model_configs",
    "linear_attention",
    "linear_attention_qkvpacked",
    "parse_pattern",
    "parse_spec",
    "register",
    "register_attention",
]

register()
