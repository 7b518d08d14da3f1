"""Every feature of OpenCLIP for every registered model: ViT-S and the tiny models as they are, B and L with two layers.

Each test takes one model name from the registry; a new kind or config is in the sweep by being registered. All tests
of one name run one after another, so that each model is built once.
"""

import copy
import pickle
from functools import lru_cache

import open_clip
import pytest
import torch
from open_clip.loss import ClipLoss, SigLipLoss
from open_clip.push_to_hf_hub import save_for_hf

import open_clip_linear
from open_clip_linear.attention import Attention

MODELS = open_clip_linear.register().models
WHOLE = [name for name in MODELS if name.startswith(("ViT-S", "tiny"))]
SHORT = [name for name in MODELS if name not in WHOLE]
# What is the same code in every tower of a kind is shown on the small ones.
EVERY = pytest.mark.parametrize("name", MODELS, scope="module")
SMALL = pytest.mark.parametrize("name", WHOLE, scope="module")


def config_of(name):
    """The registered config; B and L with two layers."""
    config = copy.deepcopy(open_clip.get_model_config(name))
    if name in SHORT:
        config["vision_cfg"]["layers"] = config["text_cfg"]["layers"] = 2
    return config


@lru_cache(maxsize=1)
def built(name):
    torch.manual_seed(0)
    return open_clip.CLIP(**config_of(name))


def model_of(name):
    """A model of the test's own, in training mode."""
    return copy.deepcopy(built(name))


def batch(model, B=2):
    height, width = model.visual.image_size
    texts = open_clip.SimpleTokenizer(context_length=model.context_length)
    return torch.randn(B, 3, height, width), texts(["a photo of a cat", "two dogs", "a red square on blue"][:B])


def sizes(name):
    """Square and not, other than trained."""
    side = open_clip.get_model_config(name)["vision_cfg"]["patch_size"]
    return [side * 5, (side * 3, side * 8)]


def both_features(model, images, texts):
    with torch.no_grad():
        return torch.cat([model.encode_image(images), model.encode_text(texts)])


@EVERY
def test_forward_and_backward_with_and_without_checkpointing(name):
    model = model_of(name)
    images, texts = batch(model)
    gradients = []
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)
        model.zero_grad()
        ClipLoss()(*model(images, texts)).backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    for parameter, plain in gradients[0].items():
        assert plain is not None, parameter
        assert plain.isfinite().all(), parameter
        assert torch.equal(plain, gradients[1][parameter]), parameter


@SMALL
def test_compiles_as_one_graph(name):
    """No graph break, and the same features; every layer is in the graph, as a tower has no loop but over them."""
    config = config_of(name)
    for tower in ("vision_cfg", "text_cfg"):
        if "*" not in str(config[tower].get("block_type")):
            config[tower]["layers"] = 2
    model = open_clip.CLIP(**config).eval()
    images, texts = batch(model)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(images, texts), model(images, texts), strict=True):
        assert torch.allclose(found, expected, atol=1e-5)
    sum(t.square().sum() for t in compiled(images, texts)[:2]).backward()


@EVERY
def test_amp_bf16(name):
    model = model_of(name)
    images, texts = batch(model)
    expected = both_features(model, images, texts)
    with torch.autocast("cpu", torch.bfloat16):
        loss = ClipLoss()(*model(images, texts))
        found = both_features(model, images, texts).float()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
    assert torch.cosine_similarity(found, expected).min() > 0.99


@SMALL
@pytest.mark.parametrize("which", [0, 1])
def test_another_image_size(name, which):
    size = sizes(name)[which]
    model = open_clip.create_model(name, force_image_size=size)
    assert tuple(model.visual.image_size) == ((size, size) if isinstance(size, int) else size)
    images, texts = batch(model)
    assert both_features(model, images, texts).isfinite().all()


@SMALL
def test_tower_locking_freezes_what_it_freezes_in_stock_models(name):
    config = open_clip.get_model_config(name)
    ours = model_of(name)
    for tower in ("vision_cfg", "text_cfg"):
        config[tower].pop("block_type", None)
    stock = open_clip.CLIP(**config)
    for groups in (0, 1, 3):
        frozen = []
        for model in (ours, stock):
            model.requires_grad_(True)
            model.lock_image_tower(unlocked_groups=groups)
            model.lock_text_tower(unlocked_layers=groups)
            frozen.append({n for n, p in model.named_parameters() if not p.requires_grad and "log_gain" not in n})
        assert frozen[0] == frozen[1]
    images, texts = batch(ours)
    ClipLoss()(*ours(images, texts)).backward()
    assert all((p.grad is not None) == p.requires_grad for n, p in ours.named_parameters())


class NoTokenizer:
    """OpenCLIP saves a Hugging Face tokenizer, which would have to be downloaded."""

    def save_pretrained(self, folder):
        pass


@SMALL
def test_prepared_for_the_hub_and_loaded_from_the_folder(name, tmp_path):
    model = open_clip.create_model(name).eval()  # the factory adds what the transform needs
    save_for_hf(model, NoTokenizer(), open_clip.get_model_config(name), tmp_path)
    loaded, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{tmp_path}")
    images, texts = batch(model)
    assert torch.equal(both_features(loaded.eval(), images, texts), both_features(model, images, texts))
    assert preprocess is not None


@SMALL
def test_forward_intermediates(name):
    model = model_of(name).eval()
    images, texts = batch(model)
    found = model.forward_intermediates(images, texts, image_indices=2, text_indices=1, normalize=False)
    rows, columns = model.visual.grid_size
    assert [t.shape[2:] for t in found["image_intermediates"]] == [(rows, columns)] * 2
    assert found["text_intermediates"][0].shape[:2] == texts.shape
    features = torch.cat([found["image_features"], found["text_features"]])
    assert torch.allclose(features, both_features(model, images, texts), atol=1e-6)


@SMALL
def test_siglip_init(name):
    model = open_clip.create_model(name, init_logit_bias=-10.0, init_logit_scale=2.302585)
    out = model(*batch(model))
    assert (out[2].item(), out[3].item()) == pytest.approx((10, -10), rel=1e-5)
    SigLipLoss()(*out).backward()
    assert model.logit_bias.grad is not None


@SMALL
def test_patch_dropout_is_refused_for_sema_and_runs_for_the_rest(name):
    if "sema" in name:
        with pytest.raises(open_clip_linear.SpecError, match=r"patch_dropout=0\.5"):
            open_clip.create_model(name, force_patch_dropout=0.5)
        return
    model = open_clip.create_model(name, force_patch_dropout=0.5)
    ClipLoss()(*model.train()(*batch(model))).backward()


@EVERY
def test_custom_text_and_coca(name):
    config = config_of(name)
    custom = open_clip.CustomTextCLIP(**copy.deepcopy(config))
    custom.load_state_dict(open_clip.model.convert_to_custom_text_state_dict(built(name).state_dict()))
    images, texts = batch(custom)
    assert torch.allclose(both_features(custom, images, texts), both_features(built(name), images, texts), atol=1e-6)
    width, context = config["text_cfg"]["width"], config["text_cfg"]["context_length"]
    config["embed_dim"] = width
    for tower in ("vision_cfg", "text_cfg"):
        if "*" not in str(config[tower].get("block_type")):
            config[tower]["layers"] = 1
        config[tower]["output_tokens"] = True
    config["vision_cfg"] |= {"attentional_pool": True, "attn_pooler_heads": 8}
    config["text_cfg"] |= {"embed_cls": True}
    decoder = {"context_length": context, "width": width, "heads": 8, "layers": 1}
    decoder |= {"block_type": config["text_cfg"].get("block_type")}
    coca = open_clip.CoCa(**config, multimodal_cfg=decoder)
    torch.nn.init.normal_(coca.text_decoder.text_projection, std=0.02)  # OpenCLIP leaves it uninitialised
    out = coca(*batch(custom))
    sum(t.square().mean() for t in out.values() if t.is_floating_point()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in coca.parameters())


@SMALL
def test_deepcopy_pickle_and_state_dict(name):
    model = model_of(name).eval()
    images, texts = batch(model)
    expected = both_features(model, images, texts)
    other = open_clip.create_model(name)
    other.load_state_dict(model.state_dict(), strict=True)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), other.eval()):
        assert torch.equal(both_features(same, images, texts), expected)


@EVERY
def test_int8_is_refused_and_low_precision_weights_are_not(name):
    model = model_of(name)
    with pytest.raises(NotImplementedError, match="no int8 form"):
        open_clip.utils.replace_linear(model, torch.nn.Linear)
    open_clip.model.convert_weights_to_lp(model, torch.bfloat16)
    ours = [module for module in model.modules() if isinstance(module, Attention)]
    assert ours
    assert all(module.in_proj_weight.dtype == torch.bfloat16 for module in ours)


@pytest.mark.parametrize("name", ["ViT-S-16-eq7", "ViT-S-16-sema-both"])
def test_the_factory_makes_low_precision_models_that_run(name):
    model = open_clip.create_model(name, precision="bf16", force_image_size=64)
    images, texts = batch(model)
    with torch.no_grad():
        assert model.encode_image(images.bfloat16()).isfinite().all()
        assert model.encode_text(texts).isfinite().all()
