"""Small models that the tests of conversion share, and the kinds they go through."""

import copy

import open_clip
import torch

from open_clip_linear.attention import naive
from open_clip_linear.checkpoint import MARK

VISION = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}  # 17 tokens
TEXT = {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
DECODER = {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
VISION_MARK, TEXT_MARK = f"visual.transformer.{MARK}", f"transformer.{MARK}"
OUT = "visual.transformer.resblocks.{}.attn.out_proj.weight"
TEXT_OUT = "transformer.resblocks.{}.attn.out_proj.weight"
SPECS = [
    "softmax",
    "eq4",
    "eq4:gain=half_n",
    "eq7",
    "eq7:scale=mean",
    "sema:window=3",
    "sema:window=2,local=eq7",
    "inline",
]
NAIVE = {
    "softmax": naive.softmax,
    "eq4": naive.eq4,
    "eq4:gain=half_n": lambda q, k, v: naive.eq4(q, k, v, gain="half_n"),
    "eq7": naive.eq7,
    "eq7:scale=mean": lambda q, k, v: naive.eq7(q, k, v, scale="mean"),
    "sema:window=3": lambda q, k, v: naive.sema(q, k, v, grid=(4, 4), window=3),
    "sema:window=2,local=eq7": lambda q, k, v: naive.sema(q, k, v, grid=(4, 4), window=2, local="eq7"),
    "inline": naive.inline,
}


def clip(vision=None, text=None, cls=open_clip.CLIP, vision_cfg=None, text_cfg=None, **more):
    config = {
        "embed_dim": 16,
        "vision_cfg": VISION | {"block_type": vision} | (vision_cfg or {}),
        "text_cfg": TEXT | {"block_type": text} | (text_cfg or {}),
    }
    return cls(**copy.deepcopy(config | more)).eval()


def coca(vision=None, text=None, decoder=None):
    pooled = {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
    words = {"embed_cls": True, "output_tokens": True, "context_length": 11}
    decoder = DECODER | {"context_length": 11, "block_type": decoder}
    model = clip(vision, text, open_clip.CoCa, pooled, words, multimodal_cfg=decoder)
    torch.nn.init.normal_(model.text_decoder.text_projection)  # OpenCLIP leaves it as memory was
    return model


def trained(model):
    """A model whose every weight, biases and gains among them, is something else than at the start."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embedding" not in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def images(count=3, side=32):
    return torch.randn(count, 3, side, side, dtype=torch.float64)
