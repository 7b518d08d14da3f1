"""Gradients in float64 against losses written out by hand; over two processes in test_parallel.py."""

import warnings
from contextlib import nullcontext

import open_clip
import pytest
import tiny_clip
import torch

from training.distributed import World
from training.loss import build_loss, build_teacher, forward_backward
from training.model import build
from training.precision import autocast
from training.settings import Settings, SettingsError

CPU = torch.device("cpu")
ALONE = World(0, 1, CPU)


@pytest.fixture(scope="module", autouse=True)
def _configs(tmp_path_factory):
    tiny_clip.register(tmp_path_factory.mktemp("configs"))


@pytest.fixture
def teacher_file(tmp_path):
    torch.save(open_clip.create_model("grad-teacher").state_dict(), tmp_path / "teacher.pt")
    return str(tmp_path / "teacher.pt")


def built(kind, teacher_file="", **kwargs):
    """A float64 model, its loss, and a teacher where the kind of loss has one."""
    settings = Settings(**{"model": "grad-eq7", "siglip": kind == "siglip"} | kwargs)
    if kind == "distill":
        settings.distill_model, settings.distill_pretrained = "grad-teacher", teacher_file
    model = build(settings, CPU).double()
    teacher = build_teacher(settings, model, ALONE).double() if kind == "distill" else None
    return model, build_loss(settings, ALONE), teacher


def both(kind, model, loss, teacher, batches):
    """Value and gradients: ours, and those of the loss written out, with the same random draws."""
    torch.manual_seed(7)
    value = forward_backward(model, loss, batches, nullcontext, teacher=teacher)
    ours = tiny_clip.gradients(model)
    model.zero_grad()
    torch.manual_seed(7)
    wanted = tiny_clip.written_out(kind, model, batches, teacher)
    wanted.backward()
    assert not value.requires_grad
    assert value.item() == pytest.approx(wanted.item(), rel=1e-12)
    return ours, tiny_clip.gradients(model)


def split(pairs, parts):
    return list(zip(*(side.chunk(parts) for side in pairs), strict=True))


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("kind", ["clip", "siglip", "distill"])
def test_gradients_of_several_batches_are_the_full_batchs(kind, parts, teacher_file):
    """Every parameter, logit scale and bias included; no patch dropout, so the full batch is one forward pass."""
    model, loss, teacher = built(kind, teacher_file)
    pairs = tiny_clip.batch(8)
    ours, _ = both(kind, model, loss, teacher, split(pairs, parts))
    model.zero_grad()
    tiny_clip.written_out(kind, model, [pairs], teacher).backward()
    tiny_clip.assert_close(ours, tiny_clip.gradients(model))
    assert len(ours) == len(list(model.parameters()))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_both_passes_drop_the_same_patches(checkpointing):
    model, loss, _ = built("clip", model="grad-dropout", grad_checkpointing=checkpointing)
    batches = split(tiny_clip.batch(8), 4)
    tiny_clip.assert_close(*both("clip", model, loss, None, batches))

    torch.manual_seed(3)
    forward_backward(model, loss, batches, nullcontext)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    for each in batches:
        model(*each)
    assert torch.equal(drawn, torch.rand(3)), "the generators end as after one forward pass a batch"


@pytest.mark.parametrize("parts", [1, 2])
def test_locked_towers_have_no_gradient_and_the_rest_its_own(parts):
    model, loss, _ = built("clip", lock_image=True, lock_text=True, lock_text_unlocked_layers=2)
    ours, wanted = both("clip", model, loss, None, split(tiny_clip.batch(4), parts))
    tiny_clip.assert_close(ours, wanted)
    assert not any(name.startswith("visual.") for name in ours)
    assert {"logit_scale", "text_projection", "transformer.resblocks.1.ln_1.weight"} <= set(ours)


def test_a_config_with_a_bias_trains_under_clips_loss_which_does_not_see_it():
    model, loss, _ = built("clip", model="grad-bias")
    ours, _ = both("clip", model, loss, None, [tiny_clip.batch(4)])
    assert ours["logit_bias"].abs() < 1e-15


@pytest.mark.parametrize("parts", [1, 2])
def test_float16_scales_gradients_and_not_the_value(parts):
    model, loss, _ = built("clip")
    model = model.float()
    images, texts = tiny_clip.batch(4)
    batches = split((images.float(), texts), parts)
    plain = forward_backward(model, loss, batches, nullcontext)
    wanted = tiny_clip.gradients(model)
    model.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)  # the default overflows at first, as it is meant to
    value = forward_backward(model, loss, batches, lambda: autocast("amp", CPU), scaler)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(plain.item(), rel=1e-2)
    for name, gradient in tiny_clip.gradients(model).items():
        assert (gradient / scaler.get_scale() - wanted[name]).norm() < 0.05 * wanted[name].norm() + 1e-3, name


def test_one_warning_names_what_is_lost_without_gathering_gradients():
    for local, words in ((False, "1/4 of the joint batch's"), (True, "another direction")):
        with pytest.warns(UserWarning, match=words):
            build_loss(Settings(gather_with_grad=False, local_loss=local), World(0, 4, CPU))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_loss(Settings(gather_with_grad=False), World(1, 4, CPU))  # said once, by the first process
        build_loss(Settings(gather_with_grad=False), ALONE)
        build_loss(Settings(local_loss=True), World(0, 4, CPU))


def test_a_teacher_is_frozen(teacher_file):
    _, _, teacher = built("distill", teacher_file)
    assert not teacher.training
    assert not any(p.requires_grad for p in teacher.parameters())


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_process_has_its_teacher_before_the_others_ask_for_theirs(rank, teacher_file, monkeypatch):
    """Then a tag's weights are downloaded once."""
    happened = []

    class Two(World):
        def from_first(self, decide):
            if self.is_first:
                decide()
            happened.append("the first is done")

    create = open_clip.create_model
    model = build(Settings(model="grad-eq7"), CPU)
    monkeypatch.setattr(open_clip, "create_model", lambda *a, **k: happened.append("built") or create(*a, **k))
    settings = Settings(model="grad-eq7", distill_model="grad-teacher", distill_pretrained=teacher_file)
    build_teacher(settings, model, Two(rank, 2, CPU))
    assert happened == (["the first is done", "built"] if rank else ["built", "the first is done"])


def test_teachers_that_cannot_teach_are_refused_with_a_sentence(teacher_file, tmp_path):
    with pytest.raises(SettingsError, match=r"image size \(32, 32\) and the student \(48, 48\); both see"):
        built("distill", teacher_file, force_image_size=[48])
    with pytest.raises(SettingsError, match=r"cannot teach grad-bias: .* no logit bias"):
        built("distill", teacher_file, model="grad-bias")
    with pytest.raises(SettingsError, match=r"--distill-pretrained .*none.pt"):
        built("distill", str(tmp_path / "none.pt"))
    (tmp_path / "text").write_text("root:x:0:0:root:/root:/bin/bash")
    with pytest.raises(SettingsError, match=r"text is no PyTorch checkpoint; it has 31 bytes"):
        built("distill", str(tmp_path / "text"))
    torch.save(open_clip.create_model("grad-eq7").state_dict(), tmp_path / "other.pt")
    with pytest.raises(SettingsError, match="eq7:scale=mean"):
        built("distill", str(tmp_path / "other.pt"))
