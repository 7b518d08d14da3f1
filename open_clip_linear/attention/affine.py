"""The module of the kinds whose full form is one operator: eq4, eq7 and inline (`open_clip_linear.kernels`)."""

from abc import abstractmethod
from typing import Any

from torch import Tensor

from open_clip_linear.attention.base import Attention
from open_clip_linear.kernels.ops import affine_attention_packed, without_operators


class AffineAttention(Attention):
    """A kind that is computed by the operator where every row sees every key, and by `attend` elsewhere."""

    @property
    @abstractmethod
    def fast(self) -> dict[str, Any]:
        """What the operator is told: its keyword arguments."""

    def attend_packed(self, qkv_BN3HD: Tensor, valid_BN: Tensor | None) -> Tensor:
        if self.layout.causal or valid_BN is not None or without_operators(qkv_BN3HD):
            return super().attend_packed(qkv_BN3HD, valid_BN)
        return affine_attention_packed(qkv_BN3HD, **self.fast)
