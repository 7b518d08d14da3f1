"""What every attention kind shares: the token layout, the option declarations, and the module around the kernel.

A kind is one file with a pure function on q, k, v and one subclass of `Attention` that names the kind, declares
its options and implements `attend`. Everything else (projections, precision, masks) is decided here once.

Shapes: B batch, H heads, N tokens, D head dimension, C = H·D width. Tensors carry them: `q_BHND`, `x_BNC`.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from open_clip import transformer as openclip
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class TokenLayout:
    """How a tower's tokens lie: `prefix` tokens that are no patch, then the patches row by row.

    `patch_dropout` is the share of patches OpenCLIP drops in training; with it the grid does not hold.
    """

    grid: tuple[int, int]
    prefix: int = 1
    patch_dropout: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prefix + self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class Choice:
    """An option with a closed list of values; the first one is the default.

    `only_init` marks an option that changes how weights start and nothing of what they compute, so that a
    checkpoint does not depend on it.
    """

    name: str
    values: tuple[str, ...]
    only_init: bool = False

    @property
    def default(self) -> str:
        return self.values[0]

    @property
    def allowed(self) -> str:
        return ", ".join(self.values)

    def parse(self, text: str) -> str | None:
        """The value, or None where `text` is not allowed."""
        return text if text in self.values else None


@dataclass(frozen=True)
class Integer:
    """An option that is a whole number of at least 1."""

    name: str
    default: int
    only_init: ClassVar[bool] = False
    allowed: ClassVar[str] = "a whole number from 1 to 65535"

    def parse(self, text: str) -> int | None:
        """The value, or None where `text` is not allowed."""
        # Leading zeros, signs and other scripts' digits are refused: one value has one spelling.
        if not (text.isascii() and text.isdigit()) or text.startswith("0") or len(text) > 5:
            return None
        return int(text) if int(text) <= 65535 else None


Option = Choice | Integer
Value = str | int


def widen(x: Tensor) -> Tensor:
    """`x` in float32 or, where it is float64 already, unchanged: the dtype sums over tokens are taken in."""
    return x if x.dtype == torch.float64 else x.float()


def unit(x: Tensor) -> Tensor:
    """x / max(‖x‖₂, 1e-12) over the last dimension, in float32 or wider; a zero row stays zero."""
    return F.normalize(widen(x), dim=-1, eps=1e-12)


def no_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Autocast switched off, where the device has it (the meta device has not)."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


class Attention(openclip.Attention, ABC):
    """Multi-head self-attention with OpenCLIP's projections and a kernel of our own between them.

    Parameter names and initialisation are those of `nn.MultiheadAttention` (`in_proj_weight`, `in_proj_bias`,
    `out_proj.*`), so stock state dicts fit. It subclasses OpenCLIP's `Attention` because OpenCLIP's conversion to
    bf16 and fp16 weights finds attention modules by that class.

    Args:
        dim: width C.
        num_heads: H; must divide C.
        layout: how the tokens lie.
    """

    kind: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()

    def __init__(self, dim: int, num_heads: int, layout: TokenLayout) -> None:
        super().__init__(dim, num_heads=num_heads)
        self.layout = layout
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.in_proj_bias)
        nn.init.zeros_(self.out_proj.bias)

    @classmethod
    def check(cls, layout: TokenLayout, **options: Value) -> None:
        """Raise ValueError where this kind cannot work with these options on such tokens."""

    @abstractmethod
    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
        """The kernel: q, k, v (B, H, N, D), any float dtype → (B, H, N, D) in the same dtype."""

    def forward(self, x_BNC: Tensor) -> Tensor:
        """(B, N, C) → (B, N, C). Runs under autocast; sums over tokens stay in float32 or wider."""
        B, N, C = x_BNC.shape
        qkv = F.linear(x_BNC, self.in_proj_weight, self.in_proj_bias)
        # One copy here spares the kernels, which would copy the strided views several times.
        q, k, v = qkv.view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).contiguous()
        # The kernels choose their own precision; autocast would cast the token sums down to bf16 again.
        with no_autocast(x_BNC.device.type):
            o_BHND = self.attend(q, k, v)
        return self.out_proj(o_BHND.transpose(1, 2).reshape(B, N, C))
