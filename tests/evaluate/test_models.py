"""Loading a checkpoint, and every reason to refuse it."""

from pathlib import Path

import open_clip
import pytest
import torch

from data_prep.manifest import sha256_file
from evaluate.errors import RefusedError
from evaluate.models import load_model
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
