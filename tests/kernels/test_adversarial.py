"""`linear_attention` on strange strides and hostile numbers, with gradients, beside the composed form in float64."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from open_clip_linear import linear_attention, linear_attention_qkvpacked
from open_clip_linear.kernels.form import SCALES

FORMS = [(kind, scale) for kind, scales in SCALES.items() for scale in scales]
B, H, N, D = 2, 3, 33, 8


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Of one shape (B, H, N, D), each as a caller may have it.
VIEWS: dict[str, Callable[[int], Tensor]] = {
    "contiguous": lambda seed: draw(B, H, N, D, seed=seed),
    "from (B, N, H, D)": lambda seed: draw(B, N, H, D, seed=seed).transpose(1, 2),
    "D and N in each other's place": lambda seed: draw(B, H, D, N, seed=seed).mT,
    "H and B in each other's place": lambda seed: draw(H, B, N, D, seed=seed).transpose(0, 1),
    "heads innermost": lambda seed: draw(N, D, B, H, seed=seed).permute(2, 3, 0, 1),
    "flipped": lambda seed: draw(B, H, N, D, seed=seed).flip(2),
    "every second token": lambda seed: draw(B, H, 2 * N, D, seed=seed)[:, :, ::2],
    "every third feature": lambda seed: draw(B, H, N, 3 * D, seed=seed)[..., ::3],
    "every second head": lambda seed: draw(B, 2 * H, N, D, seed=seed)[:, 1::2],
    "one sample expanded": lambda seed: draw(1, H, N, D, seed=seed).expand(B, H, N, D),
    "one head expanded": lambda seed: draw(B, 1, N, D, seed=seed).expand(B, H, N, D),
    "one token expanded": lambda seed: draw(B, H, 1, D, seed=seed).expand(B, H, N, D),
    "one feature expanded": lambda seed: draw(B, H, N, 1, seed=seed).expand(B, H, N, D),
    "rows that overlap": lambda seed: draw(B * H * N * D, seed=seed).as_strided((B, H, N, D), (N * D, D, 3, 1)),
    "negated lazily": lambda seed: torch.view_as_complex(draw(B, H, N, D, 2, seed=seed)).conj().imag,
}


def outcome(attend: Callable[..., Tensor], tensors: Sequence[Tensor], cotangent: Tensor) -> list[Tensor]:
    """The output and the gradients of the tensors that want one."""
    o = attend(*tensors)
    return [o.detach(), *torch.autograd.grad(o, [t for t in tensors if t.requires_grad], cotangent)]


@given(
    form=st.sampled_from(FORMS),
    layouts=st.tuples(*[st.sampled_from(list(VIEWS))] * 4),
    wanted=st.sampled_from([(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0)]),
    causal=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_strides_change_nothing(
    form: tuple[str, str], layouts: tuple[str, ...], wanted: tuple[int, ...], causal: bool
) -> None:
    kind, scale = form
    tensors = [VIEWS[layout](seed) for seed, layout in enumerate(layouts)]
    *views, cotangent = [t.detach() for t in tensors]
    # Eq. 4 of q and k that are both one number a row divides by nothing: 1 + q·k is 0 for half of the pairs.
    if kind == "eq4" and layouts[0] == layouts[1] == "one feature expanded":
        return
    plain = [t.clone(memory_format=torch.contiguous_format) for t in views]
    for group in (views, plain):
        for t, want in zip(group, wanted, strict=True):
            t.requires_grad_(bool(want))

    def attend(backend: str) -> Callable[..., Tensor]:
        return lambda *t: linear_attention(*t, kind=kind, scale=scale, causal=causal, backend=backend)

    found, expected = outcome(attend("auto"), views, cotangent), outcome(attend("composed"), plain, cotangent)
    for f, e in zip(found, expected, strict=True):
        assert (f - e).abs().max() <= 1e-9 * e.abs().max().clamp(min=0.1)


PACKED: dict[str, Callable[[], Tensor]] = {
    "tokens flipped": lambda: draw(B, N, 3, H, D).flip(1),
    "every second token": lambda: draw(B, 2 * N, 3, H, D)[:, ::2],
    "one sample expanded": lambda: draw(1, N, 3, H, D).expand(B, N, 3, H, D),
    "q, k and v the same": lambda: draw(B, N, 1, H, D).expand(B, N, 3, H, D),
    "features outermost": lambda: draw(D, B, N, 3, H).permute(1, 2, 3, 4, 0),
    "tokens first": lambda: draw(N, B, 3, H, D).transpose(0, 1),
    "negated lazily": lambda: torch.view_as_complex(draw(B, N, 3, H, D, 2)).conj().imag,
}


@pytest.mark.parametrize("layout", PACKED)
@pytest.mark.parametrize("form", FORMS)
def test_strides_change_nothing_packed(form: tuple[str, str], layout: str) -> None:
    kind, scale = form
    view = PACKED[layout]().detach().requires_grad_()
    plain = view.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    cotangent = draw(B, H, N, D, seed=1).transpose(1, 2)
    found = outcome(lambda t: linear_attention_qkvpacked(t, kind=kind, scale=scale), [view], cotangent)
    expected = outcome(
        lambda t: linear_attention_qkvpacked(t, kind=kind, scale=scale, backend="composed"), [plain], cotangent
    )
    for f, e in zip(found, expected, strict=True):
        assert (f - e).abs().max() <= 1e-9 * e.abs().max()


def hostile() -> dict[str, list[Tensor]]:
    """q, k, v (2, 2, 50, 16) in float64, of which a careless kernel makes something else."""
    q, k, v = (draw(2, 2, 50, 16, seed=seed) for seed in range(3))
    token = torch.arange(50)[:, None]
    return {
        "every key is minus the query": [q[:, :, :1].expand_as(q), -q[:, :, :1].expand_as(q), v],
        "keys far from zero": [q, k + 1e4, v],
        "values far from zero": [q, k, v + 1e4],
        "all far from zero": [q + 1e4, k + 1e4, v + 1e4],
        "rows of zeros": [q * (token % 3 > 0), k * (token % 4 > 0), v * (token % 5 > 0)],
        "queries and keys denormal in float32": [q * 1e-40, k * 1e-40, v],
        "values denormal in float32": [q, k, v * 1e-40],
        "queries and keys denormal in float16": [q * 1e-7, k * 1e-7, v],
        "values denormal in float16": [q, k, v * 1e-7],
        "around the least norm": [q * 3e-13, k * 3e-13, v],
        "one token": [q[:, :, :1], k[:, :, :1], v[:, :, :1]],
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", hostile())
@pytest.mark.parametrize("form", FORMS)
def test_hostile_numbers(form: tuple[str, str], case: str, dtype: torch.dtype, causal: bool) -> None:
    """Beside float64 no worse than the format, or than what autograd makes of plain PyTorch in the same dtype."""
    kind, scale = form
    narrow = [t.to(dtype).requires_grad_() for t in hostile()[case]]
    cotangent = draw(*narrow[0].shape, seed=3).to(dtype)

    def attend(backend: str) -> Callable[..., Tensor]:
        return lambda *t: linear_attention(*t, kind=kind, scale=scale, causal=causal, backend=backend)

    wide = [t.detach().double().requires_grad_() for t in narrow]
    expected = outcome(attend("composed"), wide, cotangent.double())
    found, plain = (outcome(attend(backend), narrow, cotangent) for backend in ("auto", "composed"))
    largest = torch.finfo(dtype).max
    # Sums of values, and for k's gradient of queries times values, may cancel to nothing: float32's rounding stays.
    cancelled = 2e-7 * narrow[0].abs().max().clamp(min=1) * narrow[2].abs().max().clamp(min=1)
    for f, p, e in zip(found, plain, expected, strict=True):
        inside = e.abs() < 0.9 * largest  # the literal forms leave float16's range
        if not inside.any():
            continue
        assert f[inside].isfinite().all()
        if kind == "eq4" and case == "every key is minus the query":
            continue  # 0 / 1e-6: rounding decides, but it stays finite
        size = torch.where(inside, e, 0).abs().max()
        bound = 4 * (p.double() - e)[inside].abs().max() + 4 * torch.finfo(dtype).eps * size
        assert (f.double() - e)[inside].abs().max() <= bound + cancelled


def test_eq4s_gradient_of_q_where_many_values_share_an_offset() -> None:
    q, k, v = (draw(1, 1, 20_000, 64, seed=seed).float() for seed in range(3))
    q, v = q.requires_grad_(), v + 1
    cotangent = draw(1, 1, 20_000, 64, seed=3).float()
    wide = [t.detach().double().requires_grad_(t.requires_grad) for t in (q, k, v)]
    found = outcome(lambda *t: linear_attention(*t, kind="eq4"), (q, k, v), cotangent)
    expected = outcome(lambda *t: linear_attention(*t, kind="eq4", backend="composed"), wide, cotangent.double())
    assert all((f.double() - e).norm() <= 1e-6 * e.norm() for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_an_empty_batch_stays_empty(form: tuple[str, str], causal: bool) -> None:
    kind, scale = form
    q, k, v = (torch.empty(0, 2, 5, 4, requires_grad=True) for _ in range(3))
    o = linear_attention(q, k, v, kind=kind, scale=scale, causal=causal)
    assert o.shape == q.shape
    assert all(g.shape == q.shape for g in torch.autograd.grad(o.sum(), (q, k, v)))
    qkv = torch.empty(0, 5, 3, 2, 4, requires_grad=True)
    o = linear_attention_qkvpacked(qkv, kind=kind, scale=scale, causal=causal)
    assert o.shape == (0, 5, 2, 4)
    assert torch.autograd.grad(o.sum(), qkv)[0].shape == qkv.shape
