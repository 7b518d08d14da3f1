"""The causal forms of `linear_attention`: what they hold for the backward pass at any length, and narrow dtypes."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from cases import inputs, output_and_gradients
from torch import Tensor
from torch.nn import functional as F

from open_clip_linear import linear_attention
from open_clip_linear.attention import naive

SLOW = {"eq7": partial(naive.eq7, scale="mean"), "inline": naive.inline, "eq4": naive.eq4}
# Of N·D numbers a head. eq7 saves q and k of unit length, products inside chunks (one at D = 64) and states (another).
SAVED = {"eq7": 4.1, "inline": 5.1, "eq4": 6.2}


def fast(kind: str) -> Callable[..., Tensor]:
    return partial(linear_attention, kind=kind, scale="mean" if kind == "eq7" else None, causal=True)


def saved_units(kind: str, n: int) -> float:
    """What autograd saves beyond the inputs, in units of q's size."""
    tensors = inputs((1, 2, n, 64), torch.float32)
    own = {t.untyped_storage().data_ptr() for t in tensors}
    held: dict[int, torch.UntypedStorage] = {}  # alive until counted: no two share an address

    def keep(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        fast(kind)(*tensors)
    return sum(storage.nbytes() for storage in held.values()) / tensors[0].nbytes


@pytest.mark.parametrize("kind", SLOW)
def test_memory_for_the_backward_pass_is_linear(kind: str) -> None:
    first, *others = [saved_units(kind, n) for n in (256, 1024, 16_384)]
    assert first < SAVED[kind]
    assert others == pytest.approx([first, first], rel=0.01)
    assert saved_units(kind, 1021) < SAVED[kind] + 3.1  # a prime: q, k and v are copied once, with zeros after them


@pytest.mark.parametrize("n", [77, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", SLOW)
def test_errors_are_below_those_of_softmax(kind: str, dtype: torch.dtype, n: int) -> None:
    """Of output and gradients, against float64 on the same inputs."""
    tensors = inputs((1, 2, n, 64), dtype)

    def errors(attend: Callable[..., Tensor], exact: Callable[..., Tensor]) -> list[float]:
        wide = [t.detach().double().requires_grad_() for t in tensors]
        pairs = zip(
            output_and_gradients(attend, tensors),
            output_and_gradients(partial(exact, causal=True), wide),
            strict=True,
        )
        return [float((f.double() - e).detach().norm() / e.detach().norm()) for f, e in pairs]

    ours = errors(fast(kind), SLOW[kind])
    theirs = errors(partial(F.scaled_dot_product_attention, is_causal=True), naive.softmax)
    assert ours[0] <= theirs[0]
    assert max(ours[1:]) <= max(theirs[1:])
