"""Weights read from a layer's own kernel times its values are its output: for every kind, and in whole towers."""

from types import SimpleNamespace

import open_clip
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from evaluate.errors import RefusedError
from evaluate.looking.tower import Layer, attention_layers, record, weights_of
from open_clip_linear.attention import KINDS, Attention, Layout, TextLayout, VisionLayout
from open_clip_linear.spec import parse_spec

SPECS = (
    "softmax", "eq4", "eq4:norm=off", "eq4:gain=half_n", "eq7", "eq7:scale=mean", "eq7:scale=learned", "inline",
    "sema:window=3", "sema:window=2,local=eq4", "sema:window=3,local=eq7",
)  # fmt: skip
H, D = 2, 8
GRID = (4, 5)
TOKENS = 21


def built(spec: str, layout: Layout) -> Attention:
    module = parse_spec(spec).build(H * D, H, layout).double()
    if getattr(module, "log_gain", None) is not None:
        nn.init.normal_(module.log_gain)
    return module


def test_every_kind_is_tried() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} == set(KINDS)


@pytest.mark.parametrize("layout", [VisionLayout(GRID), TextLayout(TOKENS)], ids=["image", "causal"])
@pytest.mark.parametrize("spec", SPECS)
def test_weights_times_values_are_the_output(spec: str, layout: Layout) -> None:
    module = built(spec, layout)
    q, k, v = torch.randn(3, 2, H, TOKENS, D, dtype=torch.float64)
    rows, blocks = zip(*weights_of(module.attend, q, k), strict=True)
    assert rows == (range(0, 8), range(8, 16), range(16, TOKENS))
    weights = torch.cat(blocks, dim=2)
    assert weights.shape == (2, H, TOKENS, TOKENS)
    torch.testing.assert_close(weights @ v, module.attend(q, k, v, None), atol=1e-11, rtol=1e-11)
    if isinstance(layout, TextLayout):
        assert (weights.triu(1) == 0).all()


def tower(block_type: str | None, layers: int = 5) -> nn.Module:
    """A model with a small vision tower of 4 x 5 patches."""
    options = {} if block_type is None else {"block_type": block_type}
    visual = open_clip.transformer.VisionTransformer(
        (32, 40), 8, width=H * D, layers=layers, heads=H, mlp_ratio=2.0, output_dim=8, **options
    )
    return SimpleNamespace(visual=visual.double().eval())  # type: ignore[return-value]


def whole(layer: Layer) -> torch.Tensor:
    return torch.cat([weights for _, weights in layer.weights()], dim=2)


def test_a_recorded_tower_of_several_kinds() -> None:
    model = tower("softmax+eq7+sema:window=3+inline+eq4")
    outputs = []
    for module in attention_layers(model):
        module.register_forward_hook(lambda module, inputs, output: outputs.append((module, inputs[0], output)))
    layers = record(model, torch.randn(2, 3, 32, 40, dtype=torch.float64))
    assert [layer.spec for layer in layers] == ["softmax", "eq7", "sema:window=3", "inline", "eq4"]
    assert [layer.number for layer in layers] == [1, 2, 3, 4, 5]
    for layer, (module, x, output) in zip(layers, outputs, strict=True):
        v = F.linear(x, module.in_proj_weight[2 * H * D :], module.in_proj_bias[2 * H * D :])
        o = whole(layer) @ v.unflatten(-1, (H, D)).transpose(1, 2)
        torch.testing.assert_close(module.out_proj(o.transpose(1, 2).flatten(2)), output, atol=1e-11, rtol=1e-11)
        assert "attend_packed" not in vars(module)  # the tower is as it was


def test_a_stock_tower_gives_the_weights_that_pytorch_gives() -> None:
    model = tower(None)
    seen = []
    for module in attention_layers(model):
        module.register_forward_hook(lambda module, inputs, output: seen.append((module, inputs[0])))
    layers = record(model, torch.randn(1, 3, 32, 40, dtype=torch.float64))
    for layer, (module, x) in zip(layers, list(seen), strict=True):
        _, expected = module(x, x, x, need_weights=True, average_attn_weights=False)
        torch.testing.assert_close(whole(layer), expected, atol=1e-12, rtol=1e-12)


def test_towers_that_are_not_read_are_refused() -> None:
    with pytest.raises(RefusedError, match="the vision tower is a Linear"):
        attention_layers(SimpleNamespace(visual=nn.Linear(1, 1)))  # type: ignore[arg-type]
    custom = tower(None, layers=1)
    custom.visual.transformer.resblocks[0].attn = open_clip.transformer.Attention(H * D, H)  # type: ignore[union-attr,index,assignment]
    with pytest.raises(RefusedError, match="block_type 'custom'"):
        attention_layers(custom)
