"""Building, starting from weights, locking, compiling and averaging; over two processes in test_parallel.py."""

import math

import open_clip
import pytest
import tiny_clip
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch._dynamo.utils import counters

from open_clip_linear.convert.state_dict import ConversionError
from training.distributed import World
from training.initial import resized, source_grid
from training.model import Ema, build, parallel
from training.settings import Settings, SettingsError

CPU = torch.device("cpu")
POSITIONS = "visual.positional_embedding"


@pytest.fixture(scope="module", autouse=True)
def _configs(tmp_path_factory):
    tiny_clip.register(tmp_path_factory.mktemp("configs"))


def built(model="grad-eq7", **kwargs):
    return build(Settings(model=model, **kwargs), CPU)


def saved(tmp_path, content, name="weights.pt"):
    torch.save(content, tmp_path / name)
    return str(tmp_path / name)


def test_settings_reach_the_model():
    model = built(force_image_size=[16, 56], force_patch_dropout=0.25, grad_checkpointing=True)
    assert model.visual.grid_size == (2, 7)
    assert model.visual.patch_dropout.prob == 0.25
    assert model.visual.transformer.grad_checkpointing
    assert model.training
    assert model.output_dict
    assert built(force_image_size=[48]).visual.grid_size == (6, 6)


def test_siglip_starts_as_openclip_starts_it_and_sharding_needs_no_scalar():
    model = built(siglip=True, fsdp=True)
    assert model.logit_bias.item() == -10
    assert model.logit_scale.item() == pytest.approx(math.log(10))
    assert model.logit_scale.shape == model.logit_bias.shape == (1,)
    assert built().logit_bias is None
    assert built().logit_scale.shape == ()


def test_a_model_that_cannot_be_built_is_refused_with_a_sentence():
    with pytest.raises(SettingsError, match="grad-eq7 has patches larger than pictures of"):
        built(force_image_size=[32, 4])
    with pytest.raises(SettingsError, match="--model grad-none cannot be built: Model config for"):
        built("grad-none")


@pytest.mark.parametrize("form", ["plain", "openclip", "module", "safetensors"])
def test_weights_of_every_form_are_loaded(form, tmp_path):
    state = built().state_dict()
    if form == "safetensors":
        save_file(state, tmp_path / "weights.safetensors")
        path = str(tmp_path / "weights.safetensors")
    else:
        prefixed = {f"module.{key}": value for key, value in state.items()}
        content = {"plain": state, "openclip": {"epoch": 3, "state_dict": state}, "module": {"state_dict": prefixed}}
        path = saved(tmp_path, content[form])
    for key, value in built(init_from=path).state_dict().items():
        assert torch.equal(value, state[key]), key


def test_positions_are_resized_as_openclip_resizes_square_ones(tmp_path):
    path = saved(tmp_path, built().state_dict())
    ours = built(init_from=path, force_image_size=[48])
    theirs = open_clip.create_model("grad-eq7", pretrained=path, force_image_size=48)
    assert torch.allclose(ours.visual.positional_embedding, theirs.visual.positional_embedding, atol=1e-6)


@pytest.mark.parametrize("size", [[16, 64], [56, 24]])
def test_a_picture_resized_in_two_steps_keeps_what_is_linear(size, tmp_path):
    """Positions that grow linearly with the row and the column keep doing so on a grid of another shape."""
    model = built(force_image_size=[48, 80])
    rows, columns = torch.meshgrid((torch.arange(6) + 0.5) / 6, (torch.arange(10) + 0.5) / 10, indexing="ij")
    with torch.no_grad():
        model.visual.positional_embedding[1:] = (rows + 10 * columns).reshape(-1, 1)
    recorded = {"model": "grad-eq7", "force_image_size": [48, 80]}
    path = saved(tmp_path, {"state_dict": model.state_dict(), "settings": recorded})
    found = built(init_from=path, force_image_size=size).visual
    (height, width), patches = found.grid_size, found.positional_embedding[1:, 0]
    assert torch.equal(found.positional_embedding[0], model.visual.positional_embedding[0])
    wanted = ((torch.arange(height) + 0.5) / height)[:, None] + 10 * ((torch.arange(width) + 0.5) / width)[None]
    error = (patches.reshape(height, width) - wanted).abs()
    assert error.max() < 1.0  # the edges bend
    assert error.mean() < 0.3


def test_equally_many_patches_of_another_grid_are_resized_and_not_copied(tmp_path):
    path = saved(tmp_path, built().state_dict())  # 4 by 4
    found = built(init_from=path, force_image_size=[16, 64]).visual.positional_embedding
    wanted = resized(built(init_from=path).visual.positional_embedding, (4, 4), (2, 8))
    assert torch.equal(found, wanted)


def test_a_grid_that_nothing_tells_is_refused_and_a_config_can_tell_it(tmp_path):
    wide = built(force_image_size=[16, 56]).state_dict()  # 14 patches
    path = saved(tmp_path, wide)
    with pytest.raises(SettingsError, match=r"14 patches, which make no square.*Name a model config"):
        built(init_from=path)
    found = built("grad-wide", init_from=path, force_image_size=[32]).visual.positional_embedding
    assert torch.equal(found, resized(wide[POSITIONS], (2, 7), (4, 4)))


def test_fixed_positions_are_those_of_the_new_grid(tmp_path):
    path = saved(tmp_path, built("grad-fixed").state_dict())
    new = {"force_image_size": [16, 64]}
    found = built("grad-fixed", init_from=path, **new)
    assert torch.equal(found.visual.positional_embedding, built("grad-fixed", **new).visual.positional_embedding)
    assert torch.equal(found.visual.conv1.weight, torch.load(path)["visual.conv1.weight"])


def test_text_positions_take_another_context_length(tmp_path):
    state = built().state_dict()
    longer = F.interpolate(state["positional_embedding"].T[None], size=12, mode="linear")[0].T
    state["positional_embedding"], known = longer, state["positional_embedding"]
    found = built(init_from=saved(tmp_path, state)).positional_embedding
    assert found.shape == known.shape
    assert torch.allclose(found, F.interpolate(longer.T[None], size=8, mode="linear")[0].T)


def test_weights_that_cannot_start_a_run_are_refused_with_a_sentence(tmp_path):
    with pytest.raises(SettingsError, match=r"--init-from .*none\.pt does not exist"):
        built(init_from=str(tmp_path / "none.pt"))
    softmax = saved(tmp_path, built("grad-softmax").state_dict(), "softmax.pt")
    with pytest.raises(SettingsError, match="trained with 'softmax' attention"):
        built(init_from=softmax)
    with pytest.raises(SettingsError, match="trained with 'eq7:scale=mean' attention"):
        built("grad-softmax", init_from=saved(tmp_path, built().state_dict()))
    with pytest.raises(SettingsError, match="another model's"):
        built("grad-softmax", init_from=saved(tmp_path, built("grad-teacher").state_dict()))
    whole = (tmp_path / "softmax.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SettingsError, match=r"--init-from \S+cut\.pt is damaged or its end is missing"):
        built(init_from=str(tmp_path / "cut.pt"))


@given(rows=st.integers(1, 40), columns=st.integers(1, 40))
def test_a_known_grid_comes_before_the_square(rows, columns):
    count, side = rows * columns, math.isqrt(rows * columns)
    assert source_grid(count, [(count + 1, 1), (rows, columns)]) == (rows, columns)
    if side * side == count:
        assert source_grid(count, []) == (side, side)
    else:
        with pytest.raises(ConversionError):
            source_grid(count, [])


def test_locking_leaves_what_is_asked_for_and_never_trains_fixed_positions():
    model = built("grad-fixed", lock_image=True, lock_image_unlocked_groups=9, lock_text=True)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert POSITIONS not in trained
    assert "visual.conv1.weight" in trained
    assert not any(name.startswith(("transformer", "token", "positional", "text", "ln_final")) for name in trained)
    assert "logit_scale" in trained


def test_patch_dropout_is_refused_where_openclip_would_drop_it_silently():
    with pytest.raises(SettingsError, match="force-patch-dropout does nothing with --model grad-resnet, a ResNet"):
        built("grad-resnet", force_patch_dropout=0.5)
    built("grad-resnet", force_patch_dropout=0.0)


def test_only_blocks_are_compiled_and_names_stay(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(self))
    model = built(torchcompile=True)
    assert parallel(model, Settings(torchcompile=True), World(0, 1, CPU)) is model
    assert compiled == [*model.visual.transformer.resblocks, *model.transformer.resblocks]


@pytest.mark.slow
def test_a_compiled_model_computes_the_same():
    """With torch.compile's own code generator; gradient checkpointing around the compiled blocks."""
    model = built(grad_checkpointing=True)
    images, texts = tiny_clip.batch(2)
    wanted = model(images.float(), texts)["image_features"]
    wanted.sum().backward()
    gradients = tiny_clip.gradients(model)
    names = list(model.state_dict())
    model.zero_grad()
    replica = parallel(model, Settings(torchcompile=True), World(0, 1, CPU))
    found = replica(images.float(), texts)["image_features"]
    found.sum().backward()
    assert torch.allclose(found, wanted, atol=1e-5)
    assert list(replica.state_dict()) == names
    for name, gradient in tiny_clip.gradients(model).items():
        assert torch.allclose(gradient, gradients[name], rtol=1e-3, atol=1e-4), name


@pytest.mark.slow
def test_no_graph_of_a_hybrid_tower_is_given_up(monkeypatch):
    """Three kinds of attention with and without gradients, and in evaluation."""
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)
    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_(self, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    model = built("grad-hybrid", torchcompile=True)
    replica = parallel(model, Settings(torchcompile=True), World(0, 1, CPU))
    images, texts = tiny_clip.batch(6)
    images = images.float()
    replica(images, texts)
    with torch.no_grad():
        replica(images, texts)
        model.eval()
        model.encode_image(images[:3])
    assert counters["stats"]["unique_graphs"] > 8
    assert counters["frames"]["ok"] == counters["frames"]["total"]


@given(decay=st.floats(0, 0.999), steps=st.integers(1, 5))
def test_the_average_follows_its_definition(decay, steps):
    layer = torch.nn.Linear(3, 2).double()
    layer.bias.requires_grad_(False)
    ema, wanted = Ema(layer, decay), layer.weight.detach().clone()
    for _ in range(steps):
        with torch.no_grad():
            layer.weight.add_(torch.randn(2, 3))
        ema.update(layer)
        wanted = decay * wanted + (1 - decay) * layer.weight.detach()
    assert list(ema.state_dict()) == ["weight"]
    assert torch.allclose(ema.state_dict()["weight"], wanted, atol=1e-12)


def test_an_average_is_float32_makes_a_models_weights_and_comes_back():
    model = built()
    ema = Ema(model.bfloat16(), 0.5)
    assert {average.dtype for average in ema.state_dict().values()} == {torch.float32}
    other = built()
    other.load_state_dict(model.state_dict() | ema.state_dict())  # the attention's mark is the model's own
    fresh = Ema(built(), 0.5)
    fresh.load_state_dict(ema.state_dict())
    assert all(torch.equal(fresh.state_dict()[name], average) for name, average in ema.state_dict().items())
    with pytest.raises(ValueError, match="not of the parameters that are trained here"):
        fresh.load_state_dict({"weight": torch.zeros(1)})
    with pytest.raises(ValueError, match="logit_scale has shape"):
        fresh.load_state_dict(ema.state_dict() | {"logit_scale": torch.zeros(3)})
