"""`linear_attention`: the linear kinds as one function of q, k and v, for models that are not OpenCLIP's.

    o_BHND = linear_attention(q, k, v, kind="eq7", scale="mean")

The towers of this package call the same operators.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from open_clip_linear.attention.base import no_autocast
from open_clip_linear.attention.eq4 import eq4_attention
from open_clip_linear.attention.eq7 import eq7_attention
from open_clip_linear.attention.inline import inline_attention
from open_clip_linear.kernels.form import SCALES
from open_clip_linear.kernels.ops import affine_attention, affine_attention_packed, without_operators

BACKENDS = ("auto", "operator", "composed")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ELSEWHERE = {  # what is asked for here, and where it is
    "softmax": "; softmax is torch.nn.functional.scaled_dot_product_attention",
    "sema": "; sema needs a patch grid: a tower has it, chosen by block_type in the model config",
    "learned": '; the learned gain is the towers\': multiply the output of scale="mean" by one number a head',
}


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kind: str,
    scale: str | None = None,
    causal: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Attention of linear cost: q, k, v (B, H, N, D) of one float dtype and any strides → (B, H, N, D) in it.

    The operators are differentiable once, by the backward pass alone; second derivatives and `torch.func.grad` are the
    composed backend's. Sums over tokens are in float32, of float64 inputs in float64. Under autocast the inputs are
    brought to its dtype first, as scaled dot-product attention does.

    Args:
        kind: "eq4", "eq7" (equations 4 and 7 of arXiv 2604.10064, q and k L2-normalised per head) or "inline"
            (arXiv 2412.06590).
        scale: eq7 "half" (the literal form, default) or "mean" (divided by the number of keys); eq4 "one" (default) or
            "half_n" (times half the number of keys); inline "mean".
        causal: row i sees keys n ≤ i; only the composed backend has that form.
        backend: "operator" (the forward and backward passes written by hand), "composed" (plain PyTorch, saved step by
            step by autograd), or "auto": the operator where there is one; in ONNX and for forward-mode derivatives
            (`torch.func.jvp`), which have none, the composed.

    Raises:
        TypeError: q, k or v is no tensor.
        ValueError: an unknown kind, scale or backend, tensors that do not fit, or a form the backend has not.
    """
    _check_tensors(q=q, k=k, v=v)
    q, k, v = _autocast(q, k, v)
    _check(kind, scale, backend, causal, q, k, v)
    chosen = scale or SCALES[kind][0]
    with no_autocast(q.device.type):
        if _by_composed(backend, causal, q, k, v):
            return composed(kind, chosen)(q, k, v, causal=causal)
        return affine_attention(q, k, v, kind=kind, scale=chosen)


def linear_attention_qkvpacked(
    qkv: Tensor, *, kind: str, scale: str | None = None, causal: bool = False, backend: str = "auto"
) -> Tensor:
    """The same from one tensor as a linear layer gives it: (B, N, 3, H, D) → (B, N, H, D), without a copy of q, k or v.

    Arguments and errors are those of `linear_attention`.
    """
    _check_tensors(qkv=qkv)
    if qkv.ndim != 5 or qkv.shape[2] != 3:
        raise ValueError(f"qkv must be (B, N, 3, H, D), found {tuple(qkv.shape)}")
    (qkv,) = _autocast(qkv)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    _check(kind, scale, backend, causal, q, k, v)
    if _by_composed(backend, causal, qkv):
        return linear_attention(q, k, v, kind=kind, scale=scale, causal=causal, backend=backend).transpose(1, 2)
    with no_autocast(qkv.device.type):
        return affine_attention_packed(qkv, kind=kind, scale=scale or SCALES[kind][0])


def _by_composed(backend: str, causal: bool, *tensors: Tensor) -> bool:
    if causal or backend == "composed":
        return True
    without = without_operators(*tensors)
    if without and backend == "operator":
        raise ValueError('the operator has no form in ONNX nor forward-mode derivatives; give backend="auto"')
    return without


def composed(kind: str, scale: str) -> Callable[..., Tensor]:
    """A kind in plain PyTorch: a function of q, k, v and `causal`."""
    if kind == "eq7":
        return partial(eq7_attention, mean=scale == "mean")
    return partial(eq4_attention, gain=scale) if kind == "eq4" else inline_attention


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """The tensors as autocast wants the inputs of a product."""
    device = tensors[0].device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return list(tensors)
    return [t if t.dtype == torch.float64 else t.to(torch.get_autocast_dtype(device)) for t in tensors]


def _check_tensors(**tensors: Tensor) -> None:
    """Raise TypeError for what is no tensor."""
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a tensor, found {type(t).__name__}")


def _check(kind: str, scale: str | None, backend: str, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ValueError for what `linear_attention` does not take."""
    if kind not in SCALES:
        raise ValueError(f"kind must be one of {', '.join(SCALES)}, found {kind!r}{ELSEWHERE.get(kind, '')}")
    if scale is not None and scale not in SCALES[kind]:
        where = ELSEWHERE.get(scale, "")
        raise ValueError(f"{kind}: scale must be one of {', '.join(SCALES[kind])}, found {scale!r}{where}")
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, found {backend!r}")
    if causal and backend == "operator":
        raise ValueError('the operator has no causal form; give backend="auto" or "composed"')
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.ndim != 4 or t.shape != q.shape or 0 in t.shape[1:]:
            raise ValueError(
                f"q, k, v must be (B, H, N, D) of one shape, of which B alone may be 0, found {name} {tuple(t.shape)}"
            )
        if t.dtype not in DTYPES or t.dtype != q.dtype or t.device != q.device:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ValueError(
                f"q, k, v must be of one dtype ({known}) on one device, found {name} {t.dtype} on {t.device} beside "
                f"{q.dtype} on {q.device}"
            )
