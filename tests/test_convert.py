"""Conversion between kinds: what is computed, what is read and refused, and the command as users run it."""

import argparse
import copy
import itertools
import json
import os
import pickle
import random
import re
import shlex
import subprocess
import sys

import numpy as np
import open_clip
import pytest
import torch
from open_clip.transformer import ResidualAttentionBlock
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import open_clip_linear
from open_clip_linear import KINDS, Attention, Choice, parse_spec, register_attention
from open_clip_linear.attention import naive
from open_clip_linear.checkpoint import MARK, read_mark
from open_clip_linear.comparison import ComparisonError, drawn_pictures, feature_shift, read_pictures
from open_clip_linear.conversion import find_towers
from open_clip_linear.convert import ConversionError, convert_state_dict, describe_tower, main, spell_factor
from open_clip_linear.weights import WeightsError, load_weights, save_weights

VISION = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}  # 17 tokens
TEXT = {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
DECODER = {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
VISION_MARK, TEXT_MARK = f"visual.transformer.{MARK}", f"transformer.{MARK}"
OUT = "visual.transformer.resblocks.{}.attn.out_proj.weight"
TEXT_OUT = "transformer.resblocks.{}.attn.out_proj.weight"
SPECS = [
    "softmax",
    "eq4",
    "eq4:gain=half_n",
    "eq7",
    "eq7:scale=mean",
    "sema:window=3",
    "sema:window=2,local=eq7",
    "inline",
]
NAIVE = {
    "softmax": naive.softmax,
    "eq4": naive.eq4,
    "eq4:gain=half_n": lambda q, k, v: naive.eq4(q, k, v, gain="half_n"),
    "eq7": naive.eq7,
    "eq7:scale=mean": lambda q, k, v: naive.eq7(q, k, v, scale="mean"),
    "sema:window=3": lambda q, k, v: naive.sema(q, k, v, grid=(4, 4), window=3),
    "sema:window=2,local=eq7": lambda q, k, v: naive.sema(q, k, v, grid=(4, 4), window=2, local="eq7"),
    "inline": naive.inline,
}


def clip(vision=None, text=None, cls=open_clip.CLIP, vision_cfg=None, text_cfg=None, **more):
    config = {
        "embed_dim": 16,
        "vision_cfg": VISION | {"block_type": vision} | (vision_cfg or {}),
        "text_cfg": TEXT | {"block_type": text} | (text_cfg or {}),
    }
    return cls(**copy.deepcopy(config | more)).eval()


def coca(vision=None, text=None, decoder=None):
    pooled = {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
    words = {"embed_cls": True, "output_tokens": True, "context_length": 11}
    decoder = DECODER | {"context_length": 11, "block_type": decoder}
    model = clip(vision, text, open_clip.CoCa, pooled, words, multimodal_cfg=decoder)
    torch.nn.init.normal_(model.text_decoder.text_projection)  # OpenCLIP leaves it as memory was
    return model


def trained(model):
    """A model whose every weight, biases and gains among them, is something else than at the start."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embedding" not in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def images(count=3, side=32):
    return torch.randn(count, 3, side, side, dtype=torch.float64)


# --- what is computed -------------------------------------------------------------------------------------------


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
    assert names == set(open_clip_linear.conversion.PROJECTIONS)


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_training_checkpoints_and_prefixes(tmp_path, prefix):
    weights = trained(clip("eq7")).state_dict()
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    checkpoint = {
        "epoch": 3,
        "name": "a run",
        "state_dict": {prefix + key: value for key, value in weights.items()},
        "optimizer": optimizer.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
    }
    torch.save(checkpoint, tmp_path / "c.pt")
    torch.save(checkpoint, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    for name in ("c.pt", "old.bin"):
        converted, _ = convert_state_dict(load_weights(tmp_path / name), clip("eq7"))
        assert all(torch.equal(converted[key], value) for key, value in weights.items())


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".safetensors"])
def test_files_hold_what_was_written(tmp_path, suffix):
    weights = clip("eq7:scale=mean").state_dict() | {"view": torch.randn(1000, 2)[:2].mT}
    weights["same"] = weights["view"]
    path = tmp_path / f"w{suffix}"
    save_weights(path, weights)
    found = load_weights(path)
    assert {k: (v.dtype, v.tolist()) for k, v in found.items()} == {
        k: (v.dtype, v.tolist()) for k, v in weights.items()
    }
    assert read_mark(found[VISION_MARK]) == "eq7:scale=mean"
    assert path.stat().st_size < 1.1 * sum(v.nbytes for v in weights.values()) + 30_000
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor):
        return x * self.weight


def write_odd_files(folder):
    """Files that are no plain weights, and what is said of each."""
    plain = {"weight": torch.zeros(300)}
    with_args = {"state_dict": plain, "args": argparse.Namespace(lr=1)}
    torch.save(with_args, folder / "namespace.pt")
    torch.save(with_args, folder / "old-namespace.pt", _use_new_zipfile_serialization=False)
    torch.save({"state_dict": plain, "loss": np.float64(2)}, folder / "numpy.pt")
    torch.save(plain | {"harm": Harmful()}, folder / "harmful.pt")
    torch.save(torch.nn.Linear(2, 2), folder / "module.pt")
    torch.jit.save(torch.jit.trace(Net(), torch.ones(2)), folder / "script.pt")
    torch.save(plain, folder / "whole.pt")
    (folder / "cut.pt").write_bytes((folder / "whole.pt").read_bytes()[:-200])
    torch.save(plain, folder / "old.pt", _use_new_zipfile_serialization=False)
    (folder / "old-cut.pt").write_bytes((folder / "old.pt").read_bytes()[:-200])
    (folder / "page.pt").write_text("<!DOCTYPE html><html>not found</html>")
    (folder / "empty.pt").touch()
    (folder / "pickle.bin").write_bytes(pickle.dumps([1, 2]))
    torch.save([1, 2], folder / "list.pt")
    torch.save({"epoch": 3, "model": plain}, folder / "elsewhere.pt")
    torch.save({}, folder / "nothing.pt")
    save_file(plain, folder / "whole.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "whole.safetensors").read_bytes()[:-3])
    (folder / "page.safetensors").write_text("<!DOCTYPE html><html>not found</html>")
    (folder / "a.npz").touch()
    (folder / "folder").mkdir()


ODD = {
    "namespace.pt": r"Python objects beside its weights \(argparse.Namespace\)[\s\S]*python -c",
    "old-namespace.pt": r"Python objects beside its weights \(argparse.Namespace\)[\s\S]*python -c",
    "numpy.pt": r"Python objects beside its weights \(numpy.*scalar",
    "harmful.pt": r"Python objects beside its weights \(posix.mkdir\)",
    "module.pt": r"Python objects beside its weights \(torch.nn.modules.linear.Linear\)",
    "script.pt": r"is a TorchScript archive, a program[\s\S]*python -c[\s\S]*QuickGELU",
    "cut.pt": r"damaged or its end is missing; it has [\d,]+ bytes and begins with b'PK",
    "old-cut.pt": "damaged or its end is missing",
    "page.pt": r"no PyTorch checkpoint; it has 37 bytes and begins with b'<!DOCTYPE html>",
    "empty.pt": "is empty",
    "pickle.bin": "no PyTorch checkpoint|damaged or its end is missing",
    "list.pt": "holds no state dict but a list",
    "elsewhere.pt": "holds no state dict but a dict with the entries epoch, model",
    "nothing.pt": "holds no state dict but a dict without entries",
    "cut.safetensors": "no whole safetensors file",
    "page.safetensors": r"no whole safetensors file .* begins with b'<!DOCTYPE html>",
    "a.npz": "NumPy arrays",
    "folder": "is a folder",
    "missing.pt": "does not exist",
}


@pytest.mark.filterwarnings("ignore")
def test_files_that_are_no_plain_weights_are_explained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_odd_files(tmp_path)
    for name, message in ODD.items():
        with pytest.raises(WeightsError, match=message):
            load_weights(tmp_path / name)
        assert main(["--from", name, "--to-model", "tiny-emoji-eq7", "--output", "new.pt"]) == 1
        out, error = capsys.readouterr()
        assert out == ""
        assert re.search(message, error.split("error: ", 1)[1])
    assert not (tmp_path / "harm").exists()
    assert not (tmp_path / "new.pt").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["namespace.pt", "old-namespace.pt", "numpy.pt", "script.pt", "module.pt"])
def test_the_command_that_is_given_brings_the_weights_out(tmp_path, name, monkeypatch):
    write_odd_files(tmp_path)
    with pytest.raises(WeightsError) as caught:
        load_weights(tmp_path / name)
    (line,) = (line for line in str(caught.value).splitlines() if "python -c" in line)
    program = shlex.split(line)
    assert program[:2] == ["python", "-c"]
    exec(program[2], {})
    new = load_weights(tmp_path / name.replace(".pt", "-weights.pt"))
    assert "weight" in new


def test_a_failed_write_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_weights(path, {"weight": torch.zeros(3)})
    before = path.read_bytes()
    for name, error in (("fsync", OSError(28, "No space left on device")), ("replace", KeyboardInterrupt())):
        with monkeypatch.context() as patch:

            def fail(*_, error=error):
                raise error

            patch.setattr(os, name, fail)
            with pytest.raises((WeightsError, KeyboardInterrupt), match=r"could not be written: No space left|^$"):
                save_weights(path, {"weight": torch.ones(3)})
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == [path.name]


WRITE = """
import os, pathlib, resource, signal, sys, torch
from open_clip_linear.weights import WeightsError, save_weights
path = pathlib.Path(sys.argv[1])
weights = {"weight": torch.ones(1_000_000)}
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try: save_weights(path, weights); sys.exit("written beyond the limit")
except WeightsError as error: print(error, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
save_weights(path, weights)
"""


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_full_disk_and_a_kill_leave_the_file_that_was_there(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    save_weights(path, {"weight": torch.zeros(3)})
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", WRITE, path], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert done.stdout.startswith(f"{path} could not be written: ")
    assert path.read_bytes() == before
    save_weights(path, {"weight": torch.ones(3)})
    assert load_weights(path)["weight"].tolist() == [1, 1, 1]


# --- features ---------------------------------------------------------------------------------------------------


def test_the_shift_of_features():
    before = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    shift = feature_shift(["a", "b"], before, torch.tensor([[2.0, 0.0], [3.0, 3.0]]))
    assert shift.cosines == pytest.approx([1, 0.5**0.5])
    assert (shift.cosine_mean, shift.cosine_min) == pytest.approx(((1 + 0.5**0.5) / 2, 0.5**0.5))
    assert shift.norm_change == pytest.approx((2 + 18**0.5) / 3 - 1)
    assert shift.between_samples == pytest.approx(0)
    assert not shift.same
    assert feature_shift(["a", "b"], before, before).same
    assert feature_shift(["a"], before[:1], before[:1]).between_samples is None
    with pytest.raises(ComparisonError, match="after the conversion are NaN"):
        feature_shift(["a", "b"], before, before * torch.nan)


def test_drawn_pictures_are_the_same_each_time_and_differ():
    one, two = drawn_pictures(), drawn_pictures()
    assert len(one) == 8
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)
    assert len({picture.tobytes() for picture in one.values()}) == 8


def test_pictures_from_files_and_folders(tmp_path):
    for name in ("b.png", "a.JPG", "c.webp"):
        Image.new("L", (20, 10), 7).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    found = read_pictures([tmp_path, tmp_path / "c.webp"])
    assert list(found) == [str(tmp_path / name) for name in ("a.JPG", "b.png", "c.webp")]
    assert {picture.mode for picture in found.values()} == {"RGB"}
    (tmp_path / "empty").mkdir()
    for name, message in (("empty", "no picture in"), ("no.png", "no such file"), ("notes.txt", "cannot be read")):
        with pytest.raises(ComparisonError, match=f"--images .*{name}.*{message}"):
            read_pictures([tmp_path / name])


def test_factors_are_spelled_as_the_fractions_they_are():
    assert [spell_factor(x) for x in (2 / 197, 98.5, 0.5, 1.0, 2 / 3, 0.123456789123)] == [
        "0.01015 (2/197)",
        "98.5",
        "0.5",
        "1",
        "0.6667 (2/3)",
        "0.1235",
    ]


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """A folder of small models, which OpenCLIP does not know before the command adds it."""
    folder = tmp_path_factory.mktemp("configs")
    for name, vision, text, more in (
        ("stock", None, None, {}),
        ("eq7", "eq7", None, {}),
        ("eq7mean", "eq7:scale=mean", None, {}),
        ("both", "eq7*1+softmax*1", "inline", {}),
        ("custom", "eq7", "eq4", {"custom_text": True}),
        ("larger", "eq7", None, {"vision_cfg": {"image_size": 48}}),
        ("words", None, "eq7", {"text_cfg": {"vocab_size": 100}}),
    ):
        config = {
            "embed_dim": 16,
            "vision_cfg": VISION | {"block_type": vision} | more.pop("vision_cfg", {}),
            "text_cfg": TEXT | {"block_type": text} | more.pop("text_cfg", {}),
        }
        for cfg in (config["vision_cfg"], config["text_cfg"]):
            if cfg["block_type"] is None:
                del cfg["block_type"]
        (folder / f"convert-{name}.json").write_text(json.dumps(config | more))
    return folder


def options(source, model, output, configs, *more):
    words = ["--from", source, "--to-model", f"convert-{model}", "--output", output, "--model-configs", configs, *more]
    return [str(word) for word in words]


def test_the_command_end_to_end_in_processes_of_its_own(tmp_path, configs):
    stock, there, back = tmp_path / "stock.pt", tmp_path / "eq7.safetensors", tmp_path / "back.pt"
    weights = trained(clip()).state_dict()
    torch.save({"state_dict": {f"module.{key}": value for key, value in weights.items()}, "epoch": 1}, stock)
    command = [sys.executable, "-m", "open_clip_linear", "convert"]
    done = subprocess.run([*command, *options(stock, "eq7", there, configs)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "vision: softmax → eq7, 2 layers, output projections × 0.1176 (2/17)",
        "text: softmax, 2 layers, unchanged",
    ]
    assert re.fullmatch(
        r"image features before and after, on 8 drawn test pictures, no photographs: cosine 0\.\d{4} in the mean and "
        r"-?0\.\d{4} at least, norm [+-]\d+\.\d % \(two different ones had cosine -?[01]\.\d{4} before\)",
        lines[2],
    )
    assert lines[3].startswith("The features moved: ")
    assert lines[4:] == [f"written: {there}"]
    assert done.stderr.splitlines() == [
        f"reading {stock}",
        "creating convert-eq7",
        "comparing features on 8 drawn test pictures, no photographs",
        f"writing {there}",
    ]
    done = subprocess.run([*command, *options(there, "stock", back, configs, "--json")], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["towers"][0]["source"] == "eq7"
    returned = torch.load(back, weights_only=True)
    assert set(returned) == set(weights)
    assert all(torch.allclose(returned[key], value, rtol=1e-6, atol=0) for key, value in weights.items())
    refused = subprocess.run([*command, *options(there, "eq7", there, configs)], capture_output=True, text=True)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: the output ")


def convert(capsys, *arguments):
    """What the command prints, as JSON."""
    assert main([*options(*arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_file_loads_with_openclip_and_computes_what_was_compared(tmp_path, configs, capsys):
    stock, image = tmp_path / "stock.safetensors", images().float()
    source = trained(clip())
    save_file(source.state_dict(), stock)
    for name in ("eq7", "both", "custom"):
        for suffix in (".pt", ".safetensors"):
            output = tmp_path / f"{name}{suffix}"
            found = convert(capsys, stock, name, output, configs)
            model = open_clip.create_model(f"convert-{name}", pretrained=str(output))
            assert model.encode_image(image).isfinite().all()
            assert found["needs_training"]
            assert (found["texts"] is not None) == (name != "eq7")
            assert len(found["images"]["cosines"]) == 8
    assert found["renamed"]
    assert load_file(tmp_path / "eq7.safetensors")[VISION_MARK].tolist() == list(b"eq7")


def test_the_comparison_is_that_of_the_two_models(tmp_path, configs, capsys):
    for name, side in (("one", 40), ("two", 20), ("three", 32)):
        Image.effect_noise((side, side), 90).convert("RGB").save(tmp_path / f"{name}.png")
    source = trained(clip(text_cfg={"context_length": 12}))
    torch.save(source.state_dict(), tmp_path / "stock.pt")
    found = convert(capsys, tmp_path / "stock.pt", "both", tmp_path / "new.pt", configs, "--images", tmp_path)
    model, _, preprocess = open_clip.create_model_and_transforms("convert-both", pretrained=str(tmp_path / "new.pt"))
    model.eval()
    pictures = torch.stack([preprocess(Image.open(path)) for path in found["images"]["samples"]])
    before, after = source.encode_image(pictures), model.encode_image(pictures)
    assert found["images"]["cosines"] == pytest.approx(F.cosine_similarity(before, after).tolist(), abs=1e-5)
    growth = after.norm(dim=1).mean() / before.norm(dim=1).mean() - 1
    assert found["images"]["norm_change"] == pytest.approx(growth.item(), abs=1e-5)
    tokens = open_clip.get_tokenizer("convert-both")(found["texts"]["samples"])
    cosines = F.cosine_similarity(source.encode_text(tokens), model.encode_text(tokens)).tolist()
    assert found["texts"]["cosines"] == pytest.approx(cosines, abs=1e-5)
    assert found["pictures"] == "3 of the given pictures"


def test_an_exact_conversion_says_that_nothing_moved(tmp_path, configs, capsys):
    torch.save(trained(clip("eq7")).state_dict(), tmp_path / "eq7.pt")
    assert main(options(tmp_path / "eq7.pt", "eq7mean", tmp_path / "mean.pt", configs)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "vision: eq7 → eq7:scale=mean, 2 layers, output projections × 17"
    assert "cosine 1.0000 in the mean and 1.0000 at least, norm +0.0 %" in lines[2]
    assert lines[3] == "The features are the same but for rounding: the converted model needs no training."
    raw = convert(capsys, tmp_path / "eq7.pt", "eq7mean", tmp_path / "raw.pt", configs, "--raw")
    assert raw["raw"]
    assert raw["needs_training"]
    old, new = (torch.load(tmp_path / name, weights_only=True) for name in ("eq7.pt", "raw.pt"))
    assert torch.equal(old[OUT.format(0)], new[OUT.format(0)])


def test_another_image_size_is_compared_with_the_source_at_its_own(tmp_path, configs, capsys):
    """The size kept, a model at 48 px has the features of the one at 32 px, but for its finer grid."""
    source = trained(clip(vision_cfg={"layers": 2}))
    torch.save(source.state_dict(), tmp_path / "stock.pt")
    found = convert(capsys, tmp_path / "stock.pt", "larger", tmp_path / "new.pt", configs)
    assert found["resized"] == ["visual.positional_embedding: 17 → 37 tokens"]
    assert found["towers"][0]["layers"][0]["factors"] == [2 / 37]
    assert found["images"]["cosine_mean"] > found["images"]["between_samples"]


def test_texts_that_cannot_be_compared_are_named(tmp_path, configs, capsys):
    torch.save(trained(clip(text_cfg={"vocab_size": 100})).state_dict(), tmp_path / "stock.pt")
    found = convert(capsys, tmp_path / "stock.pt", "words", tmp_path / "new.pt", configs)
    assert found["texts"] is None
    assert found["missing"] == [
        "text features were not compared: its vocabulary of 100 is smaller than the tokenizer's"
    ]
    assert found["needs_training"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "there/new.pt"], "the output's folder there does not exist"),
        (["--output", "/proc/new.pt"], "the output's folder /proc cannot be written to"),
        (["--output", "new.ckpt"], r"must end in one of .pt, .pth, .bin, .safetensors"),
        (["--output", "stock.pt"], "is the file the weights come from"),
        (["--output", "link.pt"], "is the file the weights come from"),
        (["--output", "folder.pt"], "is a folder"),
        (["--to-model", "ViT-B-16-eq8"], r"'ViT-B-16-eq8' is not a registered model \(did you mean 'ViT-B-16-eq7'"),
        (["--to-model", "local-dir:/tmp"], "not a registered model"),
        (["--from", "no.pt"], "no.pt does not exist"),
        (["--model-configs", "nowhere"], "--model-configs: model configs nowhere: no such folder"),
        (["--images", "stock.pt"], "--images stock.pt: cannot be read as a picture"),
    ],
)
def test_refusals_come_before_any_work(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    torch.save(clip().state_dict(), "stock.pt")
    os.symlink("stock.pt", "link.pt")
    os.mkdir("folder.pt")

    def fail(*_):
        raise AssertionError("the file was read")

    monkeypatch.setattr("open_clip_linear.convert.load_weights", fail)
    defaults = ["--from", "stock.pt", "--to-model", "tiny-emoji-eq7", "--output", "new.pt"]
    assert main([*defaults, *words]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("error: ")
    assert re.search(message, error)
    assert error.count("\n") == 1


def test_another_models_weights_are_refused_and_nothing_is_written(tmp_path, capsys, configs):
    torch.save(clip(vision_cfg={"width": 64}).state_dict(), tmp_path / "wide.pt")
    (tmp_path / "new.pt").write_text("mine")
    assert main(options(tmp_path / "wide.pt", "eq7", tmp_path / "new.pt", configs)) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert "error: these weights are another model's: " in error
    assert (tmp_path / "new.pt").read_text() == "mine"


def test_the_command_line(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "convert --from stock.pt --to-model ViT-B-16-eq7 --output" in capsys.readouterr().out
    for wrong in ([], ["--from", "a.pt"], ["--from", "a.pt", "--to-model", "m", "--output", "b.pt", "--rwa"]):
        with pytest.raises(SystemExit) as end:
            main(wrong)
        assert end.value.code == 2


def test_an_interrupt_ends_in_a_sentence(tmp_path, monkeypatch, capsys, configs):
    def interrupt(*_):
        raise KeyboardInterrupt

    torch.save(clip().state_dict(), tmp_path / "stock.pt")
    monkeypatch.setattr("open_clip_linear.convert.save_weights", interrupt)
    assert main(options(tmp_path / "stock.pt", "eq7", tmp_path / "new.pt", configs)) == 130
    assert "interrupted" in capsys.readouterr().err
    assert not (tmp_path / "new.pt").exists()
