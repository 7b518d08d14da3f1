"""The forms that text towers use, for every kind: causal or not, with and without key padding."""

from functools import partial

import pytest
import torch
from cases import assert_equal, assert_low_precision, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from open_clip_linear import KINDS, TextLayout
from open_clip_linear.attention import naive, sums
from open_clip_linear.attention.eq4 import eq4_attention
from open_clip_linear.attention.eq7 import eq7_attention
from open_clip_linear.attention.inline import inline_attention
from open_clip_linear.attention.sema import sema_attention
from open_clip_linear.attention.softmax import softmax_attention

LOG_GAIN = torch.tensor([0.7, -0.4], dtype=torch.float64)


def sema(window, local, class_token):
    def fast(q, k, v, causal, valid_BN=None):
        layout = TextLayout(q.shape[-2], causal, valid_BN is not None, class_token)
        return sema_attention(q, k, v, layout, window, local, valid_BN)

    def slow(q, k, v, causal, valid=None):
        grid = (1, q.shape[-2] - class_token)
        return naive.sema(q, k, v, grid, 0, window, local, int(class_token), causal, valid)

    return fast, slow


# spec → (fast form, specification), both of (q, k, v, causal, valid).
FORMS = {
    "softmax": (softmax_attention, naive.softmax),
    "eq4": (eq4_attention, naive.eq4),
    "eq4:norm=off": (partial(eq4_attention, norm=False), partial(naive.eq4, norm="off")),
    "eq4:gain=half_n": (partial(eq4_attention, gain="half_n"), partial(naive.eq4, gain="half_n")),
    "eq7": (eq7_attention, naive.eq7),
    "eq7:scale=mean": (partial(eq7_attention, mean=True), partial(naive.eq7, scale="mean")),
    "eq7:scale=learned": (
        lambda q, k, v, **kw: eq7_attention(q, k, v, True, LOG_GAIN.to(q.dtype), **kw),
        partial(naive.eq7, scale="learned", log_gain=LOG_GAIN),
    ),
    "inline": (inline_attention, naive.inline),
    "sema:window=3": sema(3, "softmax", False),
    "sema:window=4 with a class token": sema(4, "softmax", True),
    "sema:window=7,local=eq4": sema(7, "eq4", False),
    "sema:window=7,local=eq7 with a class token": sema(7, "eq7", True),
}
# (B, H, N, D): the text tower's 77, and lengths around and beyond a chunk of the causal sums.
SHAPES = [(2, 2, 1, 32), (3, 2, 77, 32), (1, 2, 128, 32), (2, 2, 301, 20)]


def padding(B, N):
    """Some texts short, one with a hole, the first key of one missing, the last text nothing but padding."""
    valid = torch.arange(N) < torch.linspace(1, N, B).long()[:, None]
    valid[0, N // 2 : N // 2 + 3] = False
    valid[0, 0] = N == 1
    valid[-1, :] = valid[-1, :] & (B == 1)
    return valid


def test_every_kind_with_a_text_form_is_tested():
    assert {spec.partition(":")[0] for spec in FORMS} == {kind for kind, cls in KINDS.items() if cls.text}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", FORMS)
def test_equals_the_specification_with_its_gradients(spec, causal, padded, shape):
    fast, slow = FORMS[spec]
    if shape[2] == 301 and "sema" in spec:
        shape = (2, 2, 40, 20)  # the specification loops over rows
    if shape[2] == 1 and "class token" in spec:
        shape = (2, 2, 2, 32)
    valid = padding(shape[0], shape[2]) if padded else None
    ours, theirs = partial(fast, causal=causal, valid_BN=valid), partial(slow, causal=causal, valid=valid)
    # The un-normalised Eq. 4 divides by what may be next to nothing; how much is lost there is the inputs' doing.
    single = 1e-2 if spec == "eq4:norm=off" else 1e-5
    assert_equal(ours, theirs, inputs(shape), 1e-9)
    assert_equal(ours, theirs, inputs(shape, torch.float32), single)


@pytest.mark.parametrize("spec", [spec for spec in FORMS if "norm=off" not in spec])
def test_bf16_error_is_that_of_the_format(spec):
    fast, slow = FORMS[spec]

    def two_heads(form):
        return lambda *tensors: form(*(t[:, :2] for t in tensors), causal=True)

    assert_low_precision(two_heads(fast), two_heads(slow), 6e-3)


@given(st.sampled_from(list(FORMS)), st.sampled_from([9, 77, 150]), st.data())
@settings(max_examples=60)
def test_no_kind_leaks_a_later_token(spec, N, data):
    """Bit for bit: whatever comes after row i changes nothing up to it."""
    fast, _ = FORMS[spec]
    i = data.draw(st.integers(0, N - 2))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    q, k, v = (t.detach() for t in inputs((2, 2, N, 16), dtype))
    valid = padding(2, N) if data.draw(st.booleans()) else None
    before = fast(q, k, v, causal=True, valid_BN=valid)
    for t in (q, k, v):
        t[:, :, i + 1 :] = 50 * torch.randn_like(t[:, :, i + 1 :])
    if valid is not None:
        valid[:, i + 1 :] = ~valid[:, i + 1 :]
    after = fast(q, k, v, causal=True, valid_BN=valid)
    assert torch.equal(before[:, :, : i + 1], after[:, :, : i + 1])
    assert not torch.equal(before[:, :, i + 1 :], after[:, :, i + 1 :])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", FORMS)
def test_padded_keys_never_weigh_in(spec, causal):
    """Bit for bit, for finite and infinite padding."""
    fast, _ = FORMS[spec]
    q, k, v = (t.detach() for t in inputs((3, 2, 21, 16), torch.float32))
    valid = padding(3, 21)
    before = fast(q, k, v, causal=causal, valid_BN=valid)
    for filler in (1e3, float("inf")):
        k_other, v_other = (t.masked_fill(~valid[:, None, :, None], filler) for t in (k, v))
        if filler == 1e3:
            assert torch.equal(before, fast(q, k_other, v_other, causal=causal, valid_BN=valid))
        assert torch.equal(before, fast(q, k, v_other, causal=causal, valid_BN=valid))
    assert (before[-1] == 0).all()  # nothing but padding


@pytest.mark.parametrize("spec", FORMS)
def test_a_short_text_is_the_beginning_of_a_long_one(spec):
    if "class token" in spec:
        return
    fast, _ = FORMS[spec]
    q, k, v = (t.detach() for t in inputs((1, 2, 30, 16)))
    long = fast(q, k, v, causal=True, valid_BN=None)
    short = fast(*(t[:, :, :11] for t in (q, k, v)), causal=True, valid_BN=None)
    assert torch.allclose(long[:, :, :11], short, atol=1e-12)


@given(st.integers(1, 40), st.integers(1, 12))
@settings(max_examples=40)
def test_causal_products_are_the_same_in_chunks_of_any_length(N, chunk):
    q, k, v = (t.detach() for t in inputs((1, 2, N, 5)))
    whole = sums.product_seen(q, k, v, causal=True)
    length, sums.CHUNK = sums.CHUNK, chunk
    try:
        assert torch.allclose(sums.product_seen(q, k, v, causal=True), whole, atol=1e-12)
    finally:
        sums.CHUNK = length


def test_inline_keeps_its_accuracy_where_keys_share_an_offset():
    q, k, v = (t.detach() for t in inputs((1, 2, 77, 32), torch.float32))
    k = k + 100
    expected = naive.inline(q.double(), k.double(), v.double(), causal=True)
    assert (inline_attention(q, k, v, causal=True).double() - expected).abs().max() < 1e-4
