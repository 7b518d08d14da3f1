"""The operators against the float64 specification: values, gradients, shapes, strides, chunks, hostile inputs."""

from functools import partial
from typing import Any

import pytest
import torch
from cases import SHAPES, assert_equal, assert_matches_specification, inputs
from torch import Tensor

from open_clip_linear.attention import naive
from open_clip_linear.kernels import chunked
from open_clip_linear.kernels.ops import affine_attention, affine_attention_packed

FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "eq7": ({"kind": "eq7", "scale": "half"}, naive.eq7),
    "eq7 mean": ({"kind": "eq7", "scale": "mean"}, partial(naive.eq7, scale="mean")),
    "eq4": ({"kind": "eq4", "scale": "one"}, naive.eq4),
    "eq4 half_n": ({"kind": "eq4", "scale": "half_n"}, partial(naive.eq4, gain="half_n")),
    "inline": ({"kind": "inline", "scale": "mean"}, naive.inline),
}
RAW = {"kind": "eq4", "scale": "one", "norm": False}  # its denominator may be near zero: no tolerance holds everywhere


def packed(q: Tensor, k: Tensor, v: Tensor, **form: Any) -> Tensor:
    """The packed operator on separate tensors."""
    return affine_attention_packed(torch.stack([q, k, v], dim=1).permute(0, 3, 1, 2, 4), **form).transpose(1, 2)


@pytest.mark.parametrize("operator", [affine_attention, packed])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FORMS)
def test_equals_the_specification(name: str, shape: tuple[int, int, int, int], operator: Any) -> None:
    form, slow = FORMS[name]
    assert_matches_specification(partial(operator, **form), slow, shape)


@pytest.mark.parametrize("name", FORMS)
def test_chunks_and_blocks_of_heads_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form, slow = FORMS[name]
    for rows in (1, 7, 100, 300):  # tokens one by one; several heads of several samples at once
        monkeypatch.setattr(chunked, "ROWS", rows)
        monkeypatch.setattr(chunked, "SHORT", 16)
        assert_matches_specification(partial(affine_attention, **form), slow, (2, 3, 33, 8))


@pytest.mark.parametrize("operator", [affine_attention, packed])
def test_the_gain_and_its_gradient(operator: Any) -> None:
    def fast(q: Tensor, k: Tensor, v: Tensor, log_gain: Tensor) -> Tensor:
        return operator(q, k, v, kind="eq7", scale="mean", log_gain=log_gain)

    def slow(q: Tensor, k: Tensor, v: Tensor, log_gain: Tensor) -> Tensor:
        return naive.eq7(q, k, v, "learned", log_gain)

    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        log_gain = torch.linspace(-1, 2, 3, dtype=dtype).requires_grad_()
        assert_equal(fast, slow, [*inputs((2, 3, 50, 16), dtype), log_gain], tolerance)


@pytest.mark.parametrize("form", [*(form for form, _ in FORMS.values()), RAW])
def test_gradcheck_and_opcheck(form: dict[str, Any]) -> None:
    tensors = [t.requires_grad_() for t in torch.randn(3, 2, 2, 5, 4, dtype=torch.float64)]
    log_gain = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True) if form["kind"] == "eq7" else None
    words = form["kind"], form["scale"], form.get("norm", True)
    assert torch.autograd.gradcheck(lambda *t: affine_attention(*t, **form), tensors)
    torch.library.opcheck(torch.ops.open_clip_linear.affine.default, (*tensors, log_gain, *words))
    qkv = torch.randn(2, 5, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: affine_attention_packed(t, **form), [qkv])
    torch.library.opcheck(torch.ops.open_clip_linear.affine_packed.default, (qkv, log_gain, *words))


def test_a_single_gradient_is_enough() -> None:
    q, k, v = (t.detach() for t in inputs((1, 2, 9, 8)))
    v.requires_grad_()
    (dv,) = torch.autograd.grad(affine_attention(q, k, v, kind="eq7", scale="mean").sum(), v)
    (expected,) = torch.autograd.grad(naive.eq7(q, k, v, scale="mean").sum(), v)
    assert torch.allclose(dv, expected)


def test_a_second_derivative_is_refused() -> None:
    q, k, v = inputs((1, 1, 4, 4))
    (dq,) = torch.autograd.grad(affine_attention(q, k, v, kind="eq7", scale="half").sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=r"affine_backward|does not require grad"):
        dq.sum().backward()


@pytest.mark.parametrize("name", FORMS)
def test_the_same_bits_every_time(name: str) -> None:
    form, _ = FORMS[name]
    tensors = [t.detach() for t in inputs((2, 3, 197, 32), torch.float32)]
    first = affine_attention(*tensors, **form)
    assert all(torch.equal(first, affine_attention(*tensors, **form)) for _ in range(3))


def adversarial() -> dict[str, list[Tensor]]:
    """q, k, v in float64 of which a careless kernel makes something else."""
    q, k, v = (t.detach() for t in inputs((1, 2, 40, 16)))
    zero = torch.zeros_like(q)
    tiny = torch.full_like(q, 1e-15)
    return {
        "every key is minus the query": [q[:, :, :1].expand_as(q), -q[:, :, :1].expand_as(q), v],
        "keys far from zero": [q, k + 1000, v],
        "values far from zero": [q, k, v + 1000],
        "zero queries": [zero, k, v],
        "zero keys": [q, zero, v],
        "zero values": [q, k, zero],
        "rows below the least norm": [tiny, tiny, v],
        "one token": [q[:, :, :1], k[:, :, :1], v[:, :, :1]],
        "sizes far apart": [q * 1e8, k * 1e-8, v],
        "one key": [q, k[:, :, :1].expand_as(k), v],
    }


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("case", adversarial())
def test_hostile_inputs(name: str, case: str) -> None:
    form, slow = FORMS[name]
    tensors = adversarial()[case]
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-4)):
        given = [t.to(dtype) for t in tensors]
        found, expected = affine_attention(*given, **form), slow(*[t.double() for t in given])
        assert found.isfinite().all()
        if name.startswith("eq4") and case == "every key is minus the query":
            continue  # 0 / 1e-6: rounding decides, but it stays finite
        size = max(expected.abs().max(), tensors[2].abs().max())  # sums may cancel to nothing
        assert (found - expected).abs().max() <= tolerance * size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "bound"), [("eq7 mean", 1.2), ("inline", 1.2), ("eq4", 2.0)])
def test_errors_are_those_of_softmax(name: str, bound: float, dtype: torch.dtype) -> None:
    """Of output and gradients, relative to their rms, against float64 on the same inputs."""
    form, slow = FORMS[name]
    tensors = [t.detach().requires_grad_() for t in inputs((2, 3, 577, 64), dtype)]
    cotangent = torch.randn(2, 3, 577, 64, generator=torch.Generator().manual_seed(3)).to(dtype)

    def errors(fast: Any, exact: Any) -> list[float]:
        wide = [t.detach().double().requires_grad_() for t in tensors]
        o, expected = fast(*tensors), exact(*wide)
        pairs = zip(
            [o, *torch.autograd.grad(o, tensors, cotangent)],
            [expected, *torch.autograd.grad(expected, wide, cotangent.double())],
            strict=True,
        )
        return [
            float((f.detach().double() - e.detach()).square().mean().sqrt() / e.detach().square().mean().sqrt())
            for f, e in pairs
        ]

    ours = errors(partial(affine_attention, **form), slow)
    theirs = errors(torch.nn.functional.scaled_dot_product_attention, naive.softmax)
    assert max(ours) <= bound * max(theirs)
    assert ours[0] <= bound * theirs[0]


@pytest.mark.parametrize("name", FORMS)
def test_the_same_bits_on_any_number_of_threads(name: str) -> None:
    form, _ = FORMS[name]
    tensors = [t.detach() for t in inputs((2, 12, 577, 64), torch.float32)]
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(affine_attention(*tensors, **form))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
