"""The seam into OpenCLIP's towers: what it builds, what it refuses, and what it assumes of upstream."""

import copy
import inspect
import json
import random
import string
import subprocess
import sys

import open_clip
import open_clip.coca_model
import open_clip.model
import open_clip.transformer
import pytest
import torch
from torch import nn

import open_clip_linear
from open_clip_linear import KindMismatchError, SpecError
from open_clip_linear.attention import naive
from open_clip_linear.checkpoint import MARK, read_mark
from open_clip_linear.towers.vit import CUSTOM_BLOCK_OPTIONS

MODELS = open_clip_linear.register().models
SPECS = [
    "softmax",
    "eq4",
    "eq4:norm=off,gain=half_n",
    "eq7",
    "eq7:scale=mean",
    "eq7:scale=learned,init=literal",
    "sema:window=3",
    "sema:window=2,local=eq4",
    "sema:window=2,local=eq7",
    "inline",
]
VISION = {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
TEXT = {"context_length": 8, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}


def small(spec, **vision):
    config = {"embed_dim": 32, "vision_cfg": VISION | {"block_type": spec} | vision, "text_cfg": TEXT}
    return open_clip.CLIP(**copy.deepcopy(config))


@pytest.mark.parametrize("name", MODELS)
def test_every_registered_model_builds(name):
    """On the meta device, where L costs nothing, with the kind its name says."""
    with torch.device("meta"):
        model = open_clip.CLIP(**open_clip.get_model_config(name))
    kind = name.removesuffix("-both").rsplit("-", 1)[1]
    for transformer in (model.visual.transformer, *([model.transformer] if name.endswith("-both") else [])):
        kinds = [block.attn.kind for block in transformer.resblocks]
        if kind == "hybrid":
            assert kinds == ["eq7"] * 4 + ["softmax"] * 2
        else:
            assert all(kind.startswith(found) for found in kinds)
            assert len(set(kinds)) == 1


@pytest.mark.parametrize("name", [n for n in MODELS if n.startswith(("ViT-S", "tiny"))])
def test_small_registered_models_run_forward_and_backward(name):
    model, _, _ = open_clip.create_model_and_transforms(name)
    size = model.visual.image_size[0]
    image, text, scale = model(torch.randn(2, 3, size, size), open_clip.get_tokenizer(name)(["a cat", "a dog"]))
    (scale * image @ text.T).trace().backward()
    trained = [p for p in model.visual.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)


@pytest.mark.parametrize("size", [32, (24, 40), (40, 16), 48])
@pytest.mark.parametrize("spec", SPECS)
def test_image_sizes_square_and_not(spec, size):
    visual = small(spec, image_size=size).visual
    height, width = (size, size) if isinstance(size, int) else size
    features = visual(torch.randn(2, 3, height, width))
    assert features.shape == (2, 32)
    assert features.isfinite().all()


@pytest.mark.parametrize("spec", ["softmax", "eq7:scale=mean", "sema", "inline", "eq4"])
@pytest.mark.parametrize("size", [96, (32, 80)])
def test_force_image_size(spec, size):
    suffix = spec.replace(":scale=", "")
    model = open_clip.create_model(f"tiny-emoji-{suffix}", force_image_size=size)
    assert model.visual.image_size == ((size, size) if isinstance(size, int) else size)
    assert model.encode_image(torch.randn(1, 3, *model.visual.image_size)).isfinite().all()


def reference_features(model, image, attend):
    """The vision tower written out in float64 around a naive kernel: an implementation of its own."""
    visual = model.visual
    x = visual.conv1(image).flatten(2).mT
    x = torch.cat([visual.class_embedding.expand(len(x), 1, -1), x], dim=1) + visual.positional_embedding
    x = visual.ln_pre(x)
    for block in visual.transformer.resblocks:
        B, N, C = x.shape
        q, k, v = (block.ln_1(x) @ block.attn.in_proj_weight.mT + block.attn.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (t.view(B, N, -1, VISION["head_width"]).transpose(1, 2) for t in (q, k, v))
        log_gain = getattr(block.attn, "log_gain", None)
        o = attend(q, k, v) if log_gain is None else attend(q, k, v, log_gain=log_gain)
        x = x + block.attn.out_proj(o.transpose(1, 2).reshape(B, N, C))
        x = x + block.mlp(block.ln_2(x))
    return visual.ln_post(x)[:, 0] @ visual.proj


@pytest.mark.parametrize(
    ("spec", "attend"),
    [
        ("softmax", naive.softmax),
        ("eq4", naive.eq4),
        ("eq4:norm=off", lambda q, k, v: naive.eq4(q, k, v, norm="off")),
        ("eq4:gain=half_n", lambda q, k, v: naive.eq4(q, k, v, gain="half_n")),
        ("eq7", naive.eq7),
        ("eq7:scale=mean", lambda q, k, v: naive.eq7(q, k, v, scale="mean")),
        ("eq7:scale=learned", lambda q, k, v, log_gain: naive.eq7(q, k, v, "learned", log_gain)),
        ("sema:window=3", lambda q, k, v: naive.sema(q, k, v, grid=(4, 5), window=3)),
        ("sema:window=2,local=eq7", lambda q, k, v: naive.sema(q, k, v, grid=(4, 5), window=2, local="eq7")),
        ("inline", naive.inline),
    ],
)
def test_tower_equals_the_float64_reference_with_its_gradients(spec, attend):
    model = small(spec, image_size=(32, 40)).double()
    image = torch.randn(2, 3, 32, 40, dtype=torch.float64)
    parameters = dict(model.visual.named_parameters())
    found = model.encode_image(image)
    expected = reference_features(model, image, attend)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    cotangent = torch.randn_like(found)
    gradients = [torch.autograd.grad(f, parameters.values(), cotangent) for f in (found, expected)]
    for name, ours, theirs in zip(parameters, *gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-9), name


@pytest.mark.parametrize("suffix", ["softmax", "softmax-both"])
@pytest.mark.parametrize("base", ["ViT-S-16", pytest.param("ViT-B-16", marks=pytest.mark.slow)])
def test_softmax_equals_stock_from_the_same_weights(base, suffix):
    stock = open_clip.create_model(base).eval()
    ours = open_clip.create_model(f"{base}-{suffix}").eval()
    ours.load_state_dict(stock.state_dict(), strict=True)
    assert list(ours.state_dict()) == list(stock.state_dict())
    image, text = torch.randn(2, 3, 224, 224), open_clip.get_tokenizer(base)(["a cat", "two dogs"])
    with torch.no_grad():
        for found, expected in zip(ours(image, text), stock(image, text), strict=True):
            assert (found - expected).abs().max() < 1e-5


def test_the_large_tower_has_stock_keys_and_shapes():
    with torch.device("meta"):
        stock = open_clip.CLIP(**open_clip.get_model_config("ViT-L-16")).state_dict()
        ours = open_clip.CLIP(**open_clip.get_model_config("ViT-L-16-softmax-both")).state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in stock.items()}


# --- the kind in the state dict ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("source", SPECS)
@pytest.mark.parametrize("target", SPECS)
def test_weights_load_into_their_own_kind_only(source, target, strict):
    weights, model = small(source).state_dict(), small(target)
    same = open_clip_linear.parse_spec(source).function() == open_clip_linear.parse_spec(target).function()
    if same:
        model.load_state_dict(weights, strict=strict)
        return
    before = copy.deepcopy(model.visual.transformer.state_dict())
    with pytest.raises(KindMismatchError) as caught:
        model.load_state_dict(weights, strict=strict)
    assert repr(open_clip_linear.parse_spec(source).function()) in str(caught.value)
    assert repr(open_clip_linear.parse_spec(target).function()) in str(caught.value)
    after = model.visual.transformer.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_stock_tower_beside_the_plugin_refuses_marked_weights():
    stock = small(None)
    for strict in (True, False):
        with pytest.raises(KindMismatchError):
            stock.load_state_dict(small("eq7").state_dict(), strict=strict)


def test_partial_weights_of_other_modules_load():
    model = small("eq7")
    weights = {k: v for k, v in model.state_dict().items() if not k.startswith("visual.transformer.")}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing
    assert not unexpected


def test_the_mark_survives_a_checkpoint_file_casts_and_copies(tmp_path):
    model = small("sema:window=3")
    torch.save({"state_dict": {"module." + k: v for k, v in model.bfloat16().state_dict().items()}}, tmp_path / "c.pt")
    weights = open_clip.factory.load_state_dict(str(tmp_path / "c.pt"))
    assert bytes(weights[f"visual.transformer.{MARK}"].tolist()) == b"sema:window=3"
    small("sema:window=3").load_state_dict(weights)
    with pytest.raises(KindMismatchError):
        small("sema:window=2").load_state_dict(weights)
    assert MARK not in small("softmax").visual.transformer.state_dict()
    assert copy.deepcopy(model).visual.transformer.specs == model.visual.transformer.specs


def test_averaging_weights_keeps_the_mark():
    """WiSE-FT makes floats of the mark, an EMA truncates its bytes: it still reads, and is written whole."""
    one, two = small("eq7:scale=mean"), small("eq7:scale=mean")
    for alpha in (0.3, 0.5, 0.9):
        mixed = {k: (1 - alpha) * v + alpha * two.state_dict()[k] for k, v in one.state_dict().items()}
        one.load_state_dict(mixed)
        with pytest.raises(KindMismatchError):
            small("eq7").load_state_dict(mixed)
    getattr(one.visual.transformer, MARK).sub_(1)
    assert read_mark(one.state_dict()[f"visual.transformer.{MARK}"]) == "eq7:scale=mean"


@pytest.mark.parametrize("damaged", [torch.tensor([300]), torch.tensor([-1]), torch.tensor([255, 254]), "eq7", None])
def test_a_damaged_mark_is_refused_as_such(damaged):
    weights = small("eq7").state_dict() | {f"visual.transformer.{MARK}": damaged}
    with pytest.raises(KindMismatchError):
        small("eq7").load_state_dict(weights)


def test_weights_without_attention_load_into_any_kind():
    weights = {k: v for k, v in small("eq7").state_dict().items() if ".mlp." in k}
    assert small("eq4").load_state_dict(weights, strict=False).missing_keys


def test_stock_open_clip_without_the_plugin_refuses_marked_weights(tmp_path):
    """A real process that never imports the plugin."""
    torch.save(open_clip.create_model("ViT-S-16-eq7").state_dict(), tmp_path / "eq7.pt")
    code = (
        "import sys, open_clip\n"
        "try: open_clip.create_model('ViT-S-16', pretrained=sys.argv[1])\n"
        "except RuntimeError as error: print(error); sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "eq7.pt"], capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert "Unexpected key" in done.stdout
    assert MARK in done.stdout


# --- refusals ---------------------------------------------------------------------------------------------------


def test_an_unknown_block_type_never_becomes_softmax():
    """Two hundred words that are no spec, in both towers."""
    draw = random.Random(0)
    for _ in range(200):
        word = "".join(draw.choices(string.ascii_lowercase + "0123456789:=,_", k=draw.randint(1, 12)))
        with pytest.raises(SpecError):
            small(word)
        with pytest.raises(SpecError):
            open_clip.model.CLIPTextCfg(block_type=word)


@pytest.mark.parametrize("wrong", [7, 1.5, True, ["eq7"], {"kind": "eq7"}, "eq7" * 1000, "softmax ", "eq７", ""])
@pytest.mark.parametrize("tower", ["vision_cfg", "text_cfg"])
def test_a_wrong_block_type_in_a_json_config_fails_at_model_creation(tmp_path, tower, wrong):
    config = {"embed_dim": 32, "vision_cfg": dict(VISION), "text_cfg": dict(TEXT)}
    config[tower]["block_type"] = wrong
    name = f"wrong-{tower}-{abs(hash(str(wrong)))}"
    (tmp_path / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path)
    with pytest.raises(SpecError, match=rf"^{tower}\.block_type") as caught:
        open_clip.create_model(name)
    assert len(str(caught.value)) < 400


def test_stock_block_types_are_handed_through():
    for block_type in (None, "default", "custom"):
        model = small(block_type)
        assert not isinstance(model.visual.transformer.resblocks[0].attn, open_clip_linear.attention.Attention)
        assert MARK not in model.visual.transformer.state_dict()


def test_an_attention_that_no_tower_would_read_is_refused():
    with pytest.raises(SpecError, match="timm tower 'vit_tiny_patch16_224'"):
        small("eq7", timm_model_name="vit_tiny_patch16_224")
    with pytest.raises(SpecError, match="ResNet tower"):
        small("eq7", layers=[1, 1, 1, 1])
    with pytest.raises(SpecError, match="qk_norm"):
        small("eq7", qk_norm=True)


def test_a_transformer_alone_is_refused():
    with pytest.raises(SpecError, match="does not say how its tokens lie"):
        open_clip.transformer.Transformer(64, 1, 2, block_type="eq7")


@pytest.mark.parametrize(("spec", "counts"), [("eq7+softmax+eq4", "1 eq7 . 1 softmax . 1 eq4"), ("eq7*3", "3 eq7")])
def test_a_pattern_for_another_number_of_layers_is_refused(spec, counts):
    with pytest.raises(SpecError, match=rf"^vision_cfg.block_type: .* for 3 layers \({counts}\), but the tower has 2"):
        small(spec)


def test_a_pattern_builds_its_layers_in_order_and_is_marked():
    visual = small("(eq7:scale=learned,init=literal+softmax)*2", layers=4).visual
    assert [block.attn.kind for block in visual.transformer.resblocks] == ["eq7", "softmax"] * 2
    assert read_mark(getattr(visual.transformer, MARK)) == "eq7:scale=learned+softmax+eq7:scale=learned+softmax"
    weights = small("eq7*2+softmax*2", layers=4).state_dict()
    small("(eq7*1)*2+softmax+softmax", layers=4).load_state_dict(weights)
    for other in ("softmax*2+eq7*2", "eq7", "softmax", "eq7*3+softmax"):
        with pytest.raises(KindMismatchError, match=r"eq7\*2\+softmax\*2"):
            small(other, layers=4).load_state_dict(weights)
    small("softmax", layers=4).load_state_dict(small("softmax*4", layers=4).state_dict())
    small("eq7", layers=4).load_state_dict(small("eq7*4", layers=4).state_dict())


def test_sema_with_patch_dropout_is_refused_and_others_run():
    with pytest.raises(SpecError, match=r"patch_dropout=0\.5"):
        small("sema", patch_dropout=0.5)
    for spec in ("eq4", "eq7", "inline", "softmax"):
        assert small(spec, patch_dropout=0.5).train().visual(torch.randn(2, 3, 32, 32)).isfinite().all()


def test_a_mask_and_cross_attention_are_refused():
    block = small("eq7").visual.transformer.resblocks[0]
    x = torch.randn(1, 17, 64)
    with pytest.raises(ValueError, match=r"built for no mask over 17 tokens .* float32 \(17, 17\)"):
        block(x, attn_mask=torch.zeros(17, 17))
    with pytest.raises(ValueError, match="its own tokens"):
        block.attention(x, k_x=x, v_x=x)


def test_int8_conversion_is_refused_rather_than_half_done():
    model = small("eq7")
    before = list(model.state_dict())
    with pytest.raises(NotImplementedError, match=r"no int8 form.*--use-bnb-linear"):
        open_clip.utils.replace_linear(model, nn.Linear)
    assert list(model.state_dict()) == before
    open_clip.utils.replace_linear(small(None), nn.Linear)


# --- other ways OpenCLIP builds and runs a tower ----------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_autocast_and_pure_low_precision_weights(spec):
    model = small(spec)
    image = torch.randn(2, 3, 32, 32)
    expected = model.encode_image(image)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model.encode_image(image)
    open_clip.model.convert_weights_to_lp(model, torch.bfloat16)
    assert model.visual.transformer.resblocks[0].attn.in_proj_weight.dtype == torch.bfloat16
    assert nn.functional.cosine_similarity(mixed.float(), expected).min() > 0.99


def test_coca_and_custom_text_models_take_a_kind():
    config = {"embed_dim": 32, "vision_cfg": VISION | {"block_type": "eq7"}, "text_cfg": TEXT}
    image = torch.randn(1, 3, 32, 32)
    assert open_clip.CustomTextCLIP(**config).encode_image(image).shape == (1, 32)
    decoder = {"context_length": 8, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    pooled = config["vision_cfg"] | {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
    coca = open_clip.CoCa(**config | {"vision_cfg": pooled}, multimodal_cfg=decoder)
    assert coca.encode_image(image).shape == (1, 32)


def test_gradient_checkpointing_changes_no_gradient():
    model = small("eq7:scale=mean")
    image = torch.randn(2, 3, 32, 32)
    plain = torch.autograd.grad(model.encode_image(image).sum(), model.visual.conv1.weight)
    model.set_grad_checkpointing()
    checkpointed = torch.autograd.grad(model.encode_image(image).sum(), model.visual.conv1.weight)
    assert torch.equal(plain[0], checkpointed[0])


def test_fixed_positions_equal_openclips_and_serve_grids_that_are_not_square():
    stock, ours = small(None, pos_embed_type="sin_cos_2d").visual, small("eq7", pos_embed_type="sin_cos_2d").visual
    assert torch.equal(ours.positional_embedding, stock.positional_embedding)
    assert not ours.positional_embedding.requires_grad
    wide = small("eq7", pos_embed_type="sin_cos_2d", image_size=(24, 40)).visual.positional_embedding
    grid = wide[1:].view(3, 5, 64)
    assert torch.equal(grid[:, :3], ours.positional_embedding[1:].view(4, 4, 64)[:3, :3])
    assert len({tuple(row.tolist()) for row in wide[1:]}) == 15


# --- what the seam assumes of upstream --------------------------------------------------------------------------


def test_upstream_still_has_the_seam():
    transformer = inspect.signature(open_clip.transformer.Transformer).parameters
    assert list(transformer)[:3] == ["width", "layers", "heads"]
    assert {"mlp_ratio", "ls_init_value", "act_layer", "norm_layer", "block_type"} <= set(transformer)
    vision = inspect.signature(open_clip.transformer.VisionTransformer).parameters
    assert {"image_size", "patch_size", "patch_dropout", "block_type", "pos_embed_type", "width"} <= set(vision)
    assert open_clip.coca_model.CLIPVisionCfg is open_clip.model.CLIPVisionCfg
    assert open_clip.model.VisionTransformer is open_clip.transformer.VisionTransformer
    block = inspect.signature(open_clip.transformer.ResidualAttentionBlock).parameters
    assert list(block)[:2] == ["d_model", "n_head"]
    assert {"mlp_ratio", "ls_init_value", "act_layer", "norm_layer"} <= set(block)
    assert hasattr(open_clip.transformer.ResidualAttentionBlock(64, 2), "attention")
    text = inspect.signature(open_clip.transformer.TextTransformer).parameters
    assert {"context_length", "embed_cls", "no_causal_mask", "use_pad_mask", "block_type"} <= set(text)
    assert open_clip.coca_model.MultimodalTransformer is open_clip.transformer.MultimodalTransformer
    assert "multimodal_cfg" in inspect.signature(open_clip.coca_model._build_text_decoder_tower).parameters
    assert issubclass(open_clip.transformer.MultimodalTransformer, open_clip.transformer.Transformer)
    custom = tuple(name for name in transformer if name.startswith(("qk_norm", "scale")))
    assert custom == CUSTOM_BLOCK_OPTIONS


IMPORTS = """
import pickle, sys, copy, open_clip, torch
config = {"embed_dim": 32, "vision_cfg": %r, "text_cfg": %r}
before = open_clip.CLIP(**copy.deepcopy(config))
if sys.argv[1] == "without":
    pickle.dump(before, open(sys.argv[2], "wb"))
    sys.exit()
import open_clip_linear
pickle.loads(pickle.dumps(before))
assert isinstance(before.visual, open_clip.transformer.VisionTransformer)
open_clip.model.convert_weights_to_lp(copy.deepcopy(before), torch.bfloat16).__class__
older = pickle.load(open(sys.argv[2], "rb"))
older.load_state_dict(before.state_dict())
config["vision_cfg"]["block_type"] = "eq7"
marked = open_clip.CLIP(**config).state_dict()
for stock in (before, older):
    try: stock.load_state_dict(marked, strict=False)
    except open_clip_linear.KindMismatchError: continue
    sys.exit("a stock model made before the import took marked weights")
after = open_clip.CLIP(embed_dim=32, vision_cfg=%r, text_cfg=%r)
assert b"open_clip_linear" not in pickle.dumps(after)
"""


def test_stock_models_do_not_notice_the_plugin(tmp_path):
    """Made before the import, after it, or in a process without it: the same classes, pickles and checks."""
    code = IMPORTS % (VISION, TEXT, VISION, TEXT)
    for which in ("without", "with"):
        done = subprocess.run([sys.executable, "-c", code, which, tmp_path / "p"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
