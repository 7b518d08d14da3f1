"""Loading a checkpoint, and every reason to refuse it."""

import json
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from data_prep.manifest import sha256_file
from evaluate.errors import RefusedError
from evaluate.models import load_model, size_warning, unread_warning
from open_clip_linear.listing import attention_kind


def test_loads_the_weights_of_the_file(nano: tuple[str, Path]) -> None:
    name, checkpoint = nano
    loaded = load_model(name, checkpoint)
    stored = torch.load(checkpoint)["state_dict"]
    for key, value in loaded.model.state_dict().items():
        assert torch.equal(value, stored[key]), key
    assert loaded.sha256 == sha256_file(checkpoint)
    assert loaded.image_size == 32
    counted = loaded.parameters
    assert counted["total"] == counted["vision"] + counted["text"] + 1  # logit_scale


def test_another_image_size_reaches_model_and_transform(nano: tuple[str, Path]) -> None:
    loaded = load_model(*nano, image_size=64)
    assert loaded.image_size == 64
    assert loaded.preprocess.transforms[1].size == (64, 64)  # type: ignore[attr-defined]


def test_pixels_over_whole_patches_are_said(nano: tuple[str, Path]) -> None:
    assert unread_warning(load_model(*nano)) is None
    said = unread_warning(load_model(*nano, image_size=(32, 50)))
    assert said == "50 pixels are 3 patches of 16 and 2 more, which the tower does not read."


def test_unknown_model_names_the_nearest(nano: tuple[str, Path]) -> None:
    with pytest.raises(RefusedError, match=r"'ViT-B-61' is not a registered model .did you mean 'ViT-"):
        load_model("ViT-B-61", nano[1])
    with pytest.raises(RefusedError, match="not a registered model"):
        load_model("hf-hub:someone/something", nano[1])


def test_missing_checkpoint_is_refused(nano: tuple[str, Path], tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="found nothing"):
        load_model(nano[0], tmp_path / "checkpoint.pt")
    with pytest.raises(RefusedError, match="found a folder"):
        load_model(nano[0], tmp_path)


def test_a_download_tag_is_not_taken() -> None:
    with pytest.raises(RefusedError, match="found nothing"):
        load_model("ViT-B-32", Path("laion2b_s34b_b79k"))


def test_a_file_that_is_no_checkpoint_is_refused(nano: tuple[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    for content in (b"", b"hello", nano[1].read_bytes()[:1000]):
        file.write_bytes(content)
        with pytest.raises(RefusedError, match="cannot be loaded into"):
            load_model(nano[0], file)


def test_weights_of_another_shape_are_refused(nano: tuple[str, Path], tmp_path: Path) -> None:
    state = torch.load(nano[1])["state_dict"]
    state["text_projection"] = torch.zeros(3, 3)
    torch.save({"state_dict": state}, tmp_path / "other.pt")
    with pytest.raises(RefusedError, match="text_projection"):
        load_model(nano[0], tmp_path / "other.pt")


def test_weights_of_another_kind_are_refused(tmp_path: Path) -> None:
    torch.save(open_clip.create_model("tiny-emoji-softmax").state_dict(), tmp_path / "softmax.pt")
    with pytest.raises(RefusedError, match="cannot be loaded into tiny-emoji-eq7"):
        load_model("tiny-emoji-eq7", tmp_path / "softmax.pt")


def test_attention_kind_of_a_tower() -> None:
    assert attention_kind({"block_type": "eq7"}) == "eq7"
    assert attention_kind({}) == attention_kind({"block_type": "default"}) == "softmax"
    assert attention_kind({"timm_model_name": "sema_tiny"}) == "sema_tiny"


@pytest.mark.parametrize(
    ("kind", "grows"),
    [("eq7", True), ("eq4half", True), ("eq7mean", False), ("eq7learned", False), ("softmax", False), ("sema", False)],
)
def test_a_gain_that_depends_on_the_size_is_said(kind: str, grows: bool, tmp_path: Path) -> None:
    name = f"tiny-emoji-{kind}"
    torch.save({"state_dict": open_clip.create_model(name).state_dict()}, tmp_path / "c.pt")
    trained = load_model(name, tmp_path / "c.pt")
    assert size_warning(trained) is None
    tokens = len(trained.model.visual.positional_embedding)
    assert trained.stored_tokens == tokens
    other = load_model(name, tmp_path / "c.pt", image_size=(trained.image_size, 2 * trained.image_size))
    seen = len(other.model.visual.positional_embedding)
    said = size_warning(other)
    assert (said is not None) == grows
    if grows:
        assert f"trained on {tokens} tokens a picture and see {seen} here" in said
        assert f"is {seen / tokens:.3g} times as large" in said


def test_the_trained_size_is_the_files_and_not_the_configs(tmp_path: Path) -> None:
    """A checkpoint that was trained at another size than its config's says so when that is left out here."""
    model = open_clip.create_model("tiny-emoji-eq7", force_image_size=96)
    tokens = len(model.visual.positional_embedding)
    weights = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(weights, tmp_path / "c.safetensors")
    torch.save({"state_dict": {f"module.{key}": value for key, value in weights.items()}}, tmp_path / "ddp.pt")
    torch.save(weights, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for file in ("c.safetensors", "ddp.pt", "old.pt"):
        loaded = load_model("tiny-emoji-eq7", tmp_path / file)
        assert loaded.stored_tokens == tokens
        assert f"trained on {tokens} tokens" in size_warning(loaded)
        assert size_warning(load_model("tiny-emoji-eq7", tmp_path / file, image_size=96)) is None


def test_a_checkpoint_of_another_text_tower_is_refused(tmp_path: Path) -> None:
    name = "ViT-S-16-eq7"
    config = open_clip.get_model_config(name)
    small = {key: value | {"layers": 1, "width": 64} for key, value in config.items() if key.endswith("_cfg")}
    small["vision_cfg"] |= {"head_width": 32}
    for text, file in (("eq7", "one"), ("softmax", "other")):
        made = config | small | {"text_cfg": small["text_cfg"] | {"block_type": text, "heads": 2}}
        (tmp_path / f"test-text-{file}.json").write_text(json.dumps(made))
    open_clip.add_model_config(tmp_path)
    torch.save(open_clip.create_model("test-text-one").state_dict(), tmp_path / "one.pt")
    assert load_model("test-text-one", tmp_path / "one.pt").name == "test-text-one"
    with pytest.raises(RefusedError, match=r"one\.pt cannot be loaded into test-text-other.*eq7"):
        load_model("test-text-other", tmp_path / "one.pt")


def test_what_is_no_checkpoint_is_said_in_our_words(nano: tuple[str, Path], tmp_path: Path) -> None:
    name, checkpoint = nano
    weights = {key: value.contiguous() for key, value in torch.load(checkpoint)["state_dict"].items()}
    save_file(weights, tmp_path / "tensors.pt")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "text.pt").write_text("these are no weights")
    torch.save({"state_dict": weights, "args": Path("x")}, tmp_path / "objects.pt")
    torch.save({}, tmp_path / "nothing.pt")
    for file, message in (
        ("tensors.pt", r"it is in the safetensors format; rename it to end in \.safetensors"),
        ("empty.pt", "it is no checkpoint of tensors alone"),
        ("text.pt", "it is no checkpoint of tensors alone"),
        ("objects.pt", "it is no checkpoint of tensors alone"),
        ("nothing.pt", "it is no checkpoint of tensors alone"),
    ):
        with pytest.raises(RefusedError, match=message) as refused:
            load_model(name, tmp_path / file)
        assert "weights_only" not in str(refused.value)
