"""What every attention kind shares: the token layouts, the option declarations, and the module around the kernel.

A kind is one file with a pure function on q, k, v and one subclass of `Attention` that names the kind, declares
its options and implements `attend`. Everything else (projections, precision, masks) is decided here once.

Shapes: B batch, H heads, N tokens, D head dimension, C = H·D width. Tensors carry them: `q_BHND`, `x_BNC`. `valid_BN`
is bool and true where a key may be attended to.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from open_clip import transformer as openclip
from torch import Tensor, nn
from torch.nn import functional as F

from open_clip_linear.kernels.chunked import widen
from open_clip_linear.kernels.form import MIN_NORM


@dataclass(frozen=True)
class VisionLayout:
    """How a vision tower's tokens lie: `prefix` tokens that are no patch, then the patches row by row.

    `patch_dropout` is the share of patches OpenCLIP drops in training; with it the grid does not hold.
    """

    grid: tuple[int, int]
    prefix: int = 1
    patch_dropout: float = 0.0
    causal: ClassVar[bool] = False
    padding: ClassVar[bool] = False

    @property
    def tokens(self) -> int:
        return self.prefix + self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class TextLayout:
    """How a text tower's tokens lie: at most `tokens` of them, the last one a class token where `class_token`.

    With `causal` row i sees keys n ≤ i. With `padding` OpenCLIP's mask also says, per text, which keys are padding.
    """

    tokens: int
    causal: bool = True
    padding: bool = False
    class_token: bool = False


Layout = VisionLayout | TextLayout


@dataclass(frozen=True)
class Choice:
    """An option with a closed list of values; the first one is the default.

    `only_init` marks an option that changes how weights start and nothing of what they compute, so that a
    checkpoint does not depend on it.
    """

    name: str
    values: tuple[str, ...]
    only_init: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.values, tuple) and self.values and all(isinstance(v, str) for v in self.values)):
            raise ValueError(f"Choice {self.name!r}: values must be a tuple of words, found {self.values!r}")

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

    def __post_init__(self) -> None:
        if self.default is None or self.parse(str(self.default)) != self.default:
            raise ValueError(f"Integer {self.name!r}: the default must be {self.allowed}, found {self.default!r}")

    def parse(self, text: str) -> int | None:
        """The value, or None where `text` is not allowed."""
        # Leading zeros, signs and other scripts' digits are refused: one value has one spelling.
        if not (text.isascii() and text.isdigit()) or text.startswith("0") or len(text) > 5:
            return None
        return int(text) if int(text) <= 65535 else None


Option = Choice | Integer
Value = str | int


def unit(x: Tensor) -> Tensor:
    """x / max(‖x‖₂, 1e-12) over the last dimension, in float32 or wider; a zero row stays zero."""
    return F.normalize(widen(x), dim=-1, eps=MIN_NORM)


def no_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Autocast switched off, where it is on; a device need not have it (the meta device has not)."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def read_mask(layout: Layout, mask: Tensor | None, batch: int, tokens: int) -> Tensor | None:
    """What OpenCLIP's attention mask says beyond the layout: `valid_BN`, or None where every key is valid.

    OpenCLIP passes no mask, an additive causal mask (N, N), or key padding with or without it (B·H, N, N). Which of
    them is decided when the tower is built; a mask of another sort is refused. Its values are compared only on the CPU
    and outside torch.compile: elsewhere that would halt the device, or break the graph, in every layer.

    Raises:
        ValueError: another mask than the layout's.
    """
    ndim = 3 if layout.padding else 2 if layout.causal else 0
    if mask is None and ndim == 0:
        return None
    if mask is None or mask.ndim != ndim or mask.shape[-2:] != (tokens, tokens) or not mask.is_floating_point():
        raise _wrong_mask(layout, mask, tokens)
    rows = mask if ndim == 2 else mask.view(batch, -1, tokens, tokens)[:, 0]
    # The last row sees every key that is valid.
    valid = rows[:, -1] == 0 if layout.padding else None
    if mask.device.type == "cpu" and not torch.compiler.is_compiling():
        allowed = torch.ones(tokens, tokens, dtype=torch.bool)
        if layout.causal:
            allowed = allowed.tril()
        if valid is not None:
            allowed = allowed & valid[:, None]
        if not torch.equal(rows, torch.zeros_like(rows).masked_fill(~allowed, float("-inf"))):
            raise _wrong_mask(layout, mask, tokens)
    return valid


def _wrong_mask(layout: Layout, mask: Tensor | None, tokens: int) -> ValueError:
    parts = [word for word, on in (("a causal mask", layout.causal), ("key padding", layout.padding)) if on]
    found = "none" if mask is None else f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
    return ValueError(
        f"this tower's attention was built for {' and '.join(parts) or 'no mask'} over {tokens} tokens (0 where a key "
        f"is seen, -inf elsewhere), but was given another mask: {found}"
    )


class Attention(openclip.Attention, ABC):
    """Multi-head self-attention with OpenCLIP's projections and a kernel of our own between them.

    Parameter names and initialisation are those of `nn.MultiheadAttention` (`in_proj_weight`, `in_proj_bias`,
    `out_proj.*`), so stock state dicts fit. It subclasses OpenCLIP's `Attention` because OpenCLIP's conversion to
    bf16 and fp16 weights finds attention modules by that class.

    Args:
        dim: width C.
        num_heads: H; must divide C.
        layout: how the tokens lie.

    `text` says that the kind has a causal form and honours key padding; without it text towers refuse the kind.
    """

    kind: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    text: ClassVar[bool] = False

    def __init__(self, dim: int, num_heads: int, layout: Layout) -> None:
        super().__init__(dim, num_heads=num_heads)
        self.layout = layout
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.in_proj_bias)
        nn.init.zeros_(self.out_proj.bias)

    @classmethod
    def check(cls, layout: Layout, **options: Value) -> None:
        """Raise ValueError where this kind cannot work with these options on such tokens."""

    @classmethod
    def weight_sum(cls, keys: float, **options: Value) -> float:
        """What a row's weights sum to over that many keys where q·k averages to 0: the branch's size beside a mean.

        Conversion between kinds keeps the branch at its size by it.
        """
        return 1.0

    @abstractmethod
    def attend(self, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor, valid_BN: Tensor | None) -> Tensor:
        """The kernel: q, k, v (B, H, N, D), any float dtype → (B, H, N, D) in the same dtype.

        Row i sees all keys, or keys n ≤ i where `self.layout.causal`; of these the ones that are valid (all, where
        `valid_BN` is None). A row that sees no key gets zero.
        """

    def forward(self, x_BNC: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """(B, N, C) → (B, N, C). Runs under autocast; sums over tokens stay in float32 or wider.

        Raises:
            ValueError: `attn_mask` is not the one this tower was built for, see `read_mask`.
        """
        B, N, C = x_BNC.shape
        valid_BN = read_mask(self.layout, attn_mask, B, N)
        qkv = F.linear(x_BNC, self.in_proj_weight, self.in_proj_bias)
        # The kernels choose their own precision; autocast would cast the token sums down to bf16 again.
        with no_autocast(x_BNC.device.type):
            o_BNHD = self.attend_packed(qkv.view(B, N, 3, self.num_heads, self.head_dim), valid_BN)
        return self.out_proj(o_BNHD.reshape(B, N, C))

    def attend_packed(self, qkv_BN3HD: Tensor, valid_BN: Tensor | None) -> Tensor:
        """`attend` on q, k and v as the projection gives them: (B, N, 3, H, D) → (B, N, H, D)."""
        # One copy here spares the kernels, which would copy the strided views several times.
        q, k, v = qkv_BN3HD.permute(2, 0, 3, 1, 4).contiguous()
        o_BHND = self.attend(q, k, v, valid_BN)
        # Heads and tokens in each other's place would be reshaped without a word, and mix tokens.
        if not isinstance(o_BHND, Tensor) or o_BHND.shape != v.shape or o_BHND.dtype != v.dtype:
            found = f"{o_BHND.dtype} {tuple(o_BHND.shape)}" if isinstance(o_BHND, Tensor) else type(o_BHND).__name__
            raise TypeError(f"{self.kind}: attend must return {v.dtype} {tuple(v.shape)} like v, but returned {found}")
        return o_BHND.transpose(1, 2)
