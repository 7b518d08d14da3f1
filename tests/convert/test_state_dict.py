"""What is computed, layer by layer, and which weights are refused."""

import itertools
import random
import re

import open_clip
import pytest
import torch
from open_clip.transformer import ResidualAttentionBlock
from small_models import NAIVE, OUT, SPECS, TEXT_MARK, TEXT_OUT, VISION_MARK, clip, coca, images, trained
from torch.nn import functional as F

from open_clip_linear import KINDS, Attention, Choice, parse_spec, register_attention
from open_clip_linear.checkpoint import MARK, read_mark
from open_clip_linear.convert import ConversionError, convert_state_dict
from open_clip_linear.convert.command import describe_tower
from open_clip_linear.convert.state_dict import PROJECTIONS, find_towers


@pytest.mark.parametrize("target", SPECS)
@pytest.mark.parametrize("source", SPECS)
def test_a_converted_layer_is_the_kernel_times_the_factor(source, target):
    """Written out in float64 from the source's weights: W (factor · o) + b."""
    weights = trained(clip(source).double()).state_dict()
    model = clip(target).double()
    converted, report = convert_state_dict(weights, model)
    factor = 1.0
    if source != target:
        factor = parse_spec(source).weight_sum(17) / parse_spec(target).weight_sum(17)
        assert report.towers[0].layers[1].factors == (factor,)
    attn, prefix = model.visual.transformer.resblocks[1].attn, "visual.transformer.resblocks.1.attn."
    x = torch.randn(2, 17, 32, dtype=torch.float64)
    q, k, v = (x @ weights[prefix + "in_proj_weight"].mT + weights[prefix + "in_proj_bias"]).chunk(3, dim=-1)
    q, k, v = (t.view(2, 17, 2, 16).transpose(1, 2) for t in (q, k, v))
    o = NAIVE[target](q, k, v).transpose(1, 2).reshape(2, 17, 32)
    expected = (factor * o) @ weights[prefix + "out_proj.weight"].mT + weights[prefix + "out_proj.bias"]
    assert torch.allclose(attn(x), expected, rtol=1e-9, atol=1e-9)
    assert ("softmax" if VISION_MARK not in converted else read_mark(converted[VISION_MARK])) == target
    for key in set(weights) | set(converted):
        if key not in (OUT.format(0), OUT.format(1), VISION_MARK):
            assert torch.equal(converted[key], weights[key]), key


def test_softmax_into_the_literal_eq7_is_two_over_the_tokens():
    weights = trained(clip()).state_dict()
    converted, report = convert_state_dict(weights, clip("eq7"))
    for layer in range(2):
        expected = (weights[OUT.format(layer)].double() * 2 / 17).float()
        assert torch.equal(converted[OUT.format(layer)], expected)
        name = f"visual.transformer.resblocks.{layer}.attn.out_proj.bias"
        assert torch.equal(converted[name], weights[name])
    assert describe_tower(report.towers[0], False) == [
        "vision: softmax → eq7, 2 layers, output projections × 0.1176 (2/17)"
    ]
    assert describe_tower(report.towers[1], False) == ["text: softmax, 2 layers, unchanged"]


def test_kinds_that_differ_in_scale_alone_are_converted_exactly():
    """eq7 → mean → learned → eq7 → learned → mean: equal features at every step, and the first weights at its end."""
    model, image = trained(clip("eq7").double()), images()
    first = weights = model.state_dict()
    expected = model.encode_image(image)
    for step in ("eq7:scale=mean", "eq7:scale=learned", "eq7", "eq7:scale=learned,init=literal", "eq7:scale=mean"):
        model = clip(step).double()
        weights, _ = convert_state_dict(weights, model)
        assert torch.allclose(model.encode_image(image), expected, rtol=1e-9, atol=1e-9), step
    back, _ = convert_state_dict(weights, clip("eq7").double())
    for key, value in first.items():
        assert torch.allclose(back[key].double(), value.double(), rtol=1e-12, atol=0), key


def test_float32_weights_return():
    weights = trained(clip("eq7")).state_dict()
    there, _ = convert_state_dict(weights, clip("eq7:scale=mean"))
    back, _ = convert_state_dict(there, clip("eq7"))
    assert list(back) == list(weights)
    for key, value in weights.items():
        assert torch.allclose(back[key].float(), value.float(), rtol=1e-6, atol=0), key


def test_the_learned_gain_takes_the_factor_and_gives_it_back_head_by_head():
    weights = trained(clip("softmax").double()).state_dict()
    learned = clip("eq7:scale=learned").double()
    converted, report = convert_state_dict(weights, learned)
    assert torch.equal(converted[OUT.format(0)], weights[OUT.format(0)])
    gains = converted["visual.transformer.resblocks.0.attn.log_gain"].exp()
    assert torch.allclose(gains, torch.full_like(gains, 2))
    assert describe_tower(report.towers[0], False) == [
        "vision: softmax → eq7:scale=learned, 2 layers, learned gains set to 2"
    ]
    trained(learned)
    mean = clip("eq7:scale=mean").double()
    converted, report = convert_state_dict(learned.state_dict(), mean)
    assert not any(key.endswith("log_gain") for key in converted)
    assert not report.dropped
    image = images()
    assert torch.allclose(mean.encode_image(image), learned.encode_image(image), rtol=1e-9, atol=1e-9)
    assert len(report.towers[0].layers[0].factors) == 2
    line = (
        r"(vision: eq7:scale=learned → eq7:scale=mean, 2 layers,) output projections × [\d.]+ to [\d.]+, each head by"
    )
    assert re.match(line, describe_tower(report.towers[0], False)[0])


def test_raw_keeps_every_weight():
    for source, target in itertools.product([*SPECS, "eq7:scale=learned"], ["softmax", "eq7", "eq7:scale=learned"]):
        weights = trained(clip(source)).state_dict()
        converted, report = convert_state_dict(weights, clip(target), raw=True)
        same = parse_spec(source).function() == parse_spec(target).function()
        gains = [f"visual.transformer.resblocks.{layer}.attn.log_gain" for layer in range(2)]
        assert report.dropped == (gains if "learned" in source and not same else [])
        assert report.created == (gains if "learned" in target and not same else [])
        for key in set(weights) - {VISION_MARK} - set(report.dropped):
            assert torch.equal(converted[key], weights[key]), key
        if not same:
            (line,) = describe_tower(report.towers[0], True)
            assert line.endswith("weights as they were (--raw)")


def test_random_patterns_return_to_their_weights():
    """Both towers, random kinds in each layer, there and back; what keeps its kind is the same bit for bit."""
    draw = random.Random(3)
    for _ in range(20):
        one, two = (["+".join(draw.choices(SPECS, k=2)) for _tower in range(2)] for _ in range(2))
        weights = trained(clip(*one)).state_dict()
        there, _ = convert_state_dict(weights, clip(*two))
        back, report = convert_state_dict(there, clip(*one))
        assert set(back) == set(weights)
        for key, value in weights.items():
            assert torch.allclose(back[key].float(), value.float(), rtol=1e-6, atol=0), (one, two, key)
        for tower, out in zip(report.towers, (OUT, TEXT_OUT), strict=True):
            for index, layer in enumerate(tower.layers):
                same = torch.equal(weights[out.format(index)], there[out.format(index)])
                assert same == (layer.source == layer.target or layer.factors == (1.0,))


def test_a_pattern_is_converted_layer_by_layer():
    weights = trained(clip(vision_cfg={"layers": 3})).state_dict()
    converted, report = convert_state_dict(weights, clip("eq7*1+softmax*1+eq7*1", vision_cfg={"layers": 3}))
    assert read_mark(converted[VISION_MARK]) == "eq7+softmax+eq7"
    for layer, factor in enumerate((2 / 17, 1, 2 / 17)):
        assert torch.allclose(converted[OUT.format(layer)], weights[OUT.format(layer)] * factor, rtol=1e-6)
    assert torch.equal(converted[OUT.format(1)], weights[OUT.format(1)])
    assert describe_tower(report.towers[0], False) == [
        "vision: softmax → eq7+softmax+eq7, 3 layers",
        "  layer 1: softmax → eq7, output projections × 0.1176 (2/17)",
        "  layer 2: softmax, unchanged",
        "  layer 3: softmax → eq7, output projections × 0.1176 (2/17)",
    ]
    back, report = convert_state_dict(converted, clip("softmax*2+eq7*1", vision_cfg={"layers": 3}))
    assert describe_tower(report.towers[0], False)[1:] == [
        "  layer 1: eq7 → softmax, output projections × 8.5",
        "  layer 2: softmax, unchanged",
        "  layer 3: eq7, unchanged",
    ]
    assert torch.equal(back[OUT.format(2)], converted[OUT.format(2)])


@pytest.mark.parametrize(("causal", "keys"), [(True, 6.5), (False, 12)])
def test_a_text_tower_is_converted_by_the_keys_its_rows_see(causal, keys):
    words = {"no_causal_mask": not causal}
    weights = trained(clip(text_cfg=words)).state_dict()
    converted, report = convert_state_dict(weights, clip("eq7", "eq7", text_cfg=words))
    assert torch.allclose(converted[TEXT_OUT.format(1)], weights[TEXT_OUT.format(1)] / (keys / 2), rtol=1e-6)
    assert torch.allclose(converted[OUT.format(1)], weights[OUT.format(1)] / (17 / 2), rtol=1e-6)
    assert [read_mark(converted[key]) for key in (VISION_MARK, TEXT_MARK)] == ["eq7", "eq7"]
    assert [tower.name for tower in report.towers] == ["vision", "text"]
    back, _ = convert_state_dict(converted, clip(text_cfg=words))
    assert list(back) == list(weights)


def test_tokens_are_those_the_attention_was_built_for():
    for model in (clip("eq7", "eq7"), clip("eq7", "eq7", open_clip.CustomTextCLIP), coca("eq7", "eq7", "eq7")):
        towers = find_towers(model)
        assert [tower.name for tower in towers] in (["vision", "text"], ["vision", "text", "decoder"])
        for tower in towers:
            layout = model.get_submodule(tower.prefix[:-1]).resblocks[0].attn.layout
            assert (tower.tokens, tower.causal) == (layout.tokens, layout.causal)


def test_clip_weights_go_into_custom_text_models():
    for source in (clip(), clip("eq7", "eq7")):
        weights = trained(source).state_dict()
        model = clip("eq7", "inline", open_clip.CustomTextCLIP)
        converted, report = convert_state_dict(weights, model)
        assert report.renamed
        assert read_mark(converted[f"text.{TEXT_MARK}"]) == "inline"
        factor = 6.5 / 2 if source.transformer.state_dict().get(MARK) is not None else 1
        out = TEXT_OUT.format(0)
        assert torch.allclose(converted[f"text.{out}"], weights[out] * factor, rtol=1e-6)
        assert not convert_state_dict(converted, clip("eq7", "softmax", open_clip.CustomTextCLIP))[1].renamed


def test_coca_and_its_decoder():
    weights = trained(coca()).state_dict()
    model = coca("eq7", "eq7", "eq7:scale=mean+softmax")
    converted, report = convert_state_dict(weights, model)
    assert [tower.name for tower in report.towers] == ["vision", "text", "decoder"]
    for key, factor in {
        f"text.{TEXT_OUT.format(0)}": 2 / 6.5,  # 11 words and the class token
        "text_decoder.resblocks.0.attn.out_proj.weight": 2,
        "text_decoder.resblocks.1.attn.out_proj.weight": 1,
        "text_decoder.cross_attn.0.attn.out_proj.weight": 1,
    }.items():
        assert torch.allclose(converted[key], weights[key] * factor, rtol=1e-6), key
    back, _ = convert_state_dict(converted, coca())
    assert list(back) == list(weights)


@pytest.mark.parametrize("size", [48, (48, 32)])
def test_positions_are_resized_as_openclip_does_and_each_side_counts_its_own_tokens(size):
    weights = trained(clip("eq7")).state_dict()
    model = clip("eq4:gain=half_n", vision_cfg={"image_size": size}, text_cfg={"context_length": 20})
    converted, report = convert_state_dict(weights, model)
    tokens = model.visual.positional_embedding.shape[0]
    assert report.resized == [
        f"visual.positional_embedding: 17 → {tokens} tokens",
        "positional_embedding: 12 → 20 tokens",
    ]
    factor = (17 / 2) / (tokens / 2)
    assert torch.allclose(converted[OUT.format(0)], weights[OUT.format(0)] * factor, rtol=1e-6)
    rows, columns = model.visual.grid_size
    grid = weights["visual.positional_embedding"][1:].T.reshape(1, 32, 4, 4)
    expected = F.interpolate(grid, (rows, columns), mode="bicubic", antialias=True)[0].flatten(1).T
    assert torch.equal(converted["visual.positional_embedding"][1:], expected)
    half = {key: value.half() if value.is_floating_point() else value for key, value in weights.items()}
    converted, _ = convert_state_dict(half, model)
    assert converted["visual.positional_embedding"].dtype == torch.float32


def test_positions_of_a_grid_that_is_not_square_stay_or_are_refused():
    wide = {"image_size": (24, 40)}
    weights = trained(clip(vision_cfg=wide)).state_dict()
    converted, report = convert_state_dict(weights, clip("eq7", vision_cfg=wide))
    assert not report.resized
    assert torch.equal(converted["visual.positional_embedding"], weights["visual.positional_embedding"])
    for size in (32, (40, 32)):
        with pytest.raises(ConversionError, match=r"15 patches, which make no square, and the model has (16|20)"):
            convert_state_dict(weights, clip("eq7", vision_cfg={"image_size": size}))


def test_half_precision_is_multiplied_without_losing_bits():
    weights = {k: v.half() if v.is_floating_point() else v for k, v in trained(clip()).state_dict().items()}
    converted, _ = convert_state_dict(weights, clip("eq7"))
    assert torch.equal(converted[OUT.format(0)], (weights[OUT.format(0)].double() * 2 / 17).float())
    assert converted["visual.conv1.weight"].dtype == torch.float16


@pytest.fixture
def gated():
    """A kind from outside the package with a parameter of its own."""

    @register_attention
    class Gated(Attention):
        kind = "gated"
        options = (Choice("size", ("one", "none")),)

        def __init__(self, dim, num_heads, layout, size):
            super().__init__(dim, num_heads, layout)
            self.gate = torch.nn.Parameter(torch.full((dim,), 3.0))

        @classmethod
        def weight_sum(cls, keys, **options):
            return 4.0 if options["size"] == "one" else 0.0

        def attend(self, q_BHND, k_BHND, v_BHND, valid_BN):
            return v_BHND

    yield
    del KINDS["gated"]


def test_parameters_of_one_side_are_created_or_dropped_and_named(gated):
    gates = [f"visual.transformer.resblocks.{layer}.attn.gate" for layer in range(2)]
    weights = trained(clip()).state_dict()
    converted, report = convert_state_dict(weights, clip("gated"))
    assert (report.created, report.dropped) == (gates, [])
    assert torch.equal(converted[gates[0]], torch.full((32,), 3.0))
    assert torch.allclose(converted[OUT.format(0)], weights[OUT.format(0)] / 4)
    _, report = convert_state_dict(converted, clip("eq7"))
    assert (report.created, report.dropped) == ([], gates)
    for source, target in (("softmax", "gated:size=none"), ("gated:size=none", "softmax")):
        with pytest.raises(ConversionError, match=r"no factor leads from .*--raw"):
            convert_state_dict(clip(source).state_dict(), clip(target))
        convert_state_dict(clip(source).state_dict(), clip(target), raw=True)


def test_what_openclip_corrects_on_loading_is_corrected():
    """Shapes of the logit scale, a bias that SigLIP training adds, and the sizes in OpenAI's files."""
    weights = trained(clip(nonscalar_logit_scale=True)).state_dict()
    weights |= {"input_resolution": torch.tensor(32), "context_length": torch.tensor(12)}
    converted, report = convert_state_dict(weights, clip("eq7", init_logit_bias=-10))
    assert converted["logit_scale"].shape == ()
    assert (report.created, report.dropped) == (["logit_bias"], ["input_resolution", "context_length"])


# --- what is refused --------------------------------------------------------------------------------------------


def broken(**changes):
    return trained(clip("eq7")).state_dict() | changes


CLASS = "visual.class_embedding"
REFUSED = {
    "another width": (
        lambda: clip(vision_cfg={"width": 64}).state_dict(),
        r"another model's: \d+ entries have another shape or type, such as visual.class_embedding \(float32 64 for ",
    ),
    "another patch": (lambda: clip(vision_cfg={"patch_size": 16}).state_dict(), r"visual.conv1.weight \(float32 32×3×"),
    "another depth": (lambda: clip(vision_cfg={"layers": 3}).state_dict(), "has 3 layers and the model's has 2"),
    "a ResNet": (
        lambda: clip(vision_cfg={"layers": [1, 1, 1, 1], "width": 8}).state_dict(),
        r"entries are missing, such as visual.class_embedding.* entries are unknown to the model, such as",
    ),
    "another context": (lambda: clip(text_cfg={"width": 64}).state_dict(), "positional_embedding .float32 12×64"),
    "nothing of it": (lambda: {"weight": torch.zeros(3)}, r"\d+ of the model's \d+ entries are missing"),
    "a part alone": (lambda: clip("eq7").visual.state_dict(), "entries are missing"),
    "an unknown kind": (
        lambda: broken(**{VISION_MARK: torch.tensor(list(b"mine"), dtype=torch.uint8)}),
        "the vision tower's attention is not known here: .*unknown kind 'mine'.*register_attention",
    ),
    "a damaged mark": (lambda: broken(**{VISION_MARK: torch.tensor([300])}), "cannot be read"),
    "a mark of more layers": (
        lambda: broken(**{VISION_MARK: torch.tensor(list(b"eq7*3"), dtype=torch.uint8)}),
        "is for 3 layers",
    ),
    "NaN": (lambda: broken(**{CLASS: torch.full((32,), torch.nan)}), "NaN or infinite values in visual.class_embedd"),
    "integers": (lambda: broken(**{CLASS: torch.zeros(32, dtype=torch.int8)}), r"class_embedding \(int8 32 for float3"),
    "no tensor": (lambda: broken(epoch=3), "hold more than tensors: epoch"),
    "no gains": (
        lambda: {k: v for k, v in clip("eq7:scale=learned").state_dict().items() if "log_gain" not in k},
        "have no visual.transformer.resblocks.0.attn.log_gain",
    ),
    "custom blocks": (
        lambda: clip("custom", vision_cfg={"qk_norm": True, "scale_fc": True}).state_dict(),
        r"resblocks.0 of these weights has options of OpenCLIP's block_type 'custom' \(attn.ln_k.bias, .*, …\)",
    ),
    "an empty one": (dict, "entries are missing"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_weights_that_are_not_the_models_are_refused_in_a_sentence(what):
    make, message = REFUSED[what]
    with pytest.raises(ConversionError, match=message) as caught:
        convert_state_dict(make(), clip("inline"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_custom_blocks_stay_and_are_not_converted_into():
    options = {"scale_heads": True, "scale_attn": True}
    weights = trained(clip("custom", vision_cfg=options)).state_dict()
    converted, _ = convert_state_dict(weights, clip("custom", "eq7", vision_cfg=options))
    assert torch.equal(converted[OUT.format(0)], weights[OUT.format(0)])
    convert_state_dict(clip("custom").state_dict(), clip("eq7"))  # without options it is plain softmax
    for source in (None, "eq7"):
        with pytest.raises(ConversionError, match="of the model has options of OpenCLIP's block_type 'custom'"):
            convert_state_dict(clip(source).state_dict(), clip("custom", vision_cfg=options))


def test_upstreams_blocks_have_the_projections_that_are_never_created():
    names = {name for name, _ in ResidualAttentionBlock(32, 2).attn.named_parameters()}
    assert names == set(PROJECTIONS)
