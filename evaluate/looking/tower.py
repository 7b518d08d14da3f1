"""The attention of a vision tower's own layers on a picture: q and k as they were, and the weights row by row.

Every kind of attention is linear in v, so the gradient of its output with respect to v is its matrix of weights. One
backward pass through the layer's own kernel gives as many rows as v has channels: each channel asks for a row of its
own. So no kind needs a second formula, one of a user's own neither, and those of linear cost stay linear: N rows of N
weights cost N/D passes, and only D rows are in memory. Softmax has its formula here: there a pass costs N².

Legend: B pictures, H heads, N tokens, D head dimension, R rows.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import open_clip
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluate.errors import RefusedError
from open_clip_linear.attention import Attention
from open_clip_linear.attention.softmax import Softmax
from open_clip_linear.towers.vit import specs_of


@dataclass(frozen=True)
class Layer:
    """One layer on some pictures."""

    number: int  # from 1
    spec: str
    q: Tensor  # (B, H, N, D), as is k
    k: Tensor
    attend: Callable[..., Tensor] | None  # (q, k, v, valid) → o; None for softmax

    def weights(self) -> Iterator[tuple[range, Tensor]]:
        """Rows of at most D queries and their weights in float64, (B, H, R, N), until all N rows have come."""
        q, k = self.q.double(), self.k.double()
        return softmax_weights(q, k) if self.attend is None else weights_of(self.attend, q, k)


def blocks_of(q_BHND: Tensor) -> Iterator[range]:
    """The rows, D at a time."""
    N, D = q_BHND.shape[-2:]
    return (range(start, min(start + D, N)) for start in range(0, N, D))


def softmax_weights(q_BHND: Tensor, k_BHND: Tensor) -> Iterator[tuple[range, Tensor]]:
    """The weights softmax(q·k/√D) in blocks of rows."""
    for rows in blocks_of(q_BHND):
        yield rows, (q_BHND[:, :, rows.start : rows.stop] @ k_BHND.mT / q_BHND.shape[-1] ** 0.5).softmax(-1)


def weights_of(attend: Callable[..., Tensor], q_BHND: Tensor, k_BHND: Tensor) -> Iterator[tuple[range, Tensor]]:
    """The weights that a kernel (q, k, v, valid) → o gives, in blocks of rows; see the head of the file."""
    v = torch.zeros_like(k_BHND, requires_grad=True)
    with torch.enable_grad():
        o = attend(q_BHND, k_BHND, v, None)
    for rows in blocks_of(q_BHND):
        asked = torch.zeros_like(o)
        for channel, row in enumerate(rows):
            asked[:, :, row, channel] = 1
        (gradient_BHND,) = torch.autograd.grad(o, v, asked, retain_graph=True)
        yield rows, gradient_BHND[..., : len(rows)].mT


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The attention modules of the vision tower in order.

    Raises RefusedError: the tower is no ViT of OpenCLIP's, or its attention is of a form that is not read here.
    """
    visual = model.visual
    if not isinstance(visual, open_clip.transformer.VisionTransformer):
        raise RefusedError(
            f"the vision tower is a {type(visual).__name__}; this reads the attention of OpenCLIP's own ViT. Give a "
            "model whose config has no timm_model_name and a whole number of layers."
        )
    found = [block.attn for block in visual.transformer.resblocks]
    for module in found:
        if not isinstance(module, Attention | nn.MultiheadAttention):
            raise RefusedError(
                f"the vision tower's attention is {type(module).__module__}.{type(module).__name__} (block_type "
                "'custom'), which this cannot read. Give a model with another block_type."
            )
    return found


@torch.no_grad()
def record(model: nn.Module, pixels_B3YX: Tensor) -> list[Layer]:
    """q and k of every layer while the vision tower reads the pictures. Raises RefusedError as `attention_layers`."""
    modules = attention_layers(model)
    specs = specs_of(model.visual.transformer)  # type: ignore[union-attr,arg-type]
    found: list[Layer] = []
    with ExitStack() as stack:
        for number, module in enumerate(modules):
            spec, attend, listen = "softmax", None, listen_to_stock
            if isinstance(module, Attention):
                spec, listen = str(specs[number]) if specs else module.kind, listen_to_ours
                attend = None if type(module) is Softmax else module.attend
            stack.callback(listen(module, partial(keep_layer, found, number + 1, spec, attend)))
        model.visual(pixels_B3YX)  # type: ignore[operator]
    return found


Keep = Callable[[Tensor, Tensor], None]


def keep_layer(
    found: list[Layer], number: int, spec: str, attend: Callable[..., Tensor] | None, q: Tensor, k: Tensor
) -> None:
    """Add what a layer was given."""
    found.append(Layer(number, spec, q, k, attend))


def listen_to_ours(module: nn.Module, keep: Keep) -> Callable[[], None]:
    """Give `keep` what the module's kernel gets; returns what ends it."""
    original: Any = module.attend_packed

    def attend_packed(qkv_BN3HD: Tensor, valid: Tensor | None) -> Tensor:
        q, k, _ = qkv_BN3HD.permute(2, 0, 3, 1, 4)
        keep(q, k)
        return original(qkv_BN3HD, valid)

    module.attend_packed = attend_packed  # type: ignore[assignment]  # on the instance, in front of the class's
    return partial(delattr, module, "attend_packed")


def listen_to_stock(module: nn.Module, keep: Keep) -> Callable[[], None]:
    """The same for PyTorch's module, which never shows its q and k: they are projected a second time."""

    def project(module: Any, inputs: tuple[Tensor, ...]) -> None:
        x_BNC = inputs[0] if module.batch_first else inputs[0].transpose(0, 1)
        C = x_BNC.shape[-1]
        qk = F.linear(x_BNC, module.in_proj_weight[: 2 * C], module.in_proj_bias[: 2 * C])
        q, k = qk.unflatten(-1, (2, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
        keep(q, k)

    return module.register_forward_pre_hook(project).remove
