"""The protocol: equal to OpenCLIP's prediction by prediction, right where the answer is known, loud where it is not."""

import io
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import open_clip
import pytest
import torch
from open_clip_train import zero_shot as upstream
from PIL import Image
from torch import Tensor, nn

from data_prep.shards import decode_image
from evaluate import metrics
from evaluate.data.emoji import ClassEntry, Folder, Sample, read_folder
from evaluate.data.sets import EMOJI, PLAIN_NAME, EvalSet, Templates
from evaluate.errors import RefusedError
from evaluate.models import LoadedModel, load_model
from evaluate.zero_shot import encode_folder, evaluate_folders, full_float32, read_folders, score_set

ALL = EvalSet("all", "All", "folder")
NO_FLAGS = EvalSet("no_flags", "No flags", "folder", flags=False)


@pytest.fixture(scope="module")
def loaded(nano: tuple[str, Path]) -> LoadedModel:
    return load_model(*nano)


# --- agreement with OpenCLIP ---------------------------------------------------------------------------------------


def counted(output: Tensor, target: Tensor, topk: tuple[int, ...] = (1,)) -> list[float]:
    """OpenCLIP's ``accuracy`` with ``.item()`` as the last step: its own ends in ``float`` of an array of one element,
    which numpy 2.4 refuses."""
    correct = output.topk(max(topk), 1, True, True)[1].t().eq(target.view(1, -1).expand(max(topk), -1))
    return [correct[:k].reshape(-1).float().sum().item() for k in topk]


@pytest.mark.parametrize("templates", [PLAIN_NAME, Templates("three", ("{}", "a drawing of {}", "{} as an icon."))])
def test_equals_openclip_prediction_by_prediction(
    loaded: LoadedModel, emoji_root: Path, templates: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = read_folder(emoji_root, "heldout-vendor")
    batch_size = 6
    ours = encode_folder(
        loaded.model, loaded.tokenizer, loaded.preprocess, folder, templates, batch_size=batch_size, device="cpu"
    )

    loaded.model.eval()
    classifier = open_clip.build_zero_shot_classifier(
        loaded.model, loaded.tokenizer, [c.name for c in folder.classes], templates.texts
    )
    pixels = torch.stack([loaded.preprocess(decode_image(s.image)) for s in folder.samples])
    labels = torch.tensor([s.label for s in folder.samples])
    batches = list(zip(pixels.split(batch_size), labels.split(batch_size), strict=True))
    with torch.no_grad():
        theirs = torch.cat([100.0 * loaded.model(image=x)[0] @ classifier for x, _ in batches])

    predicted = metrics.top_k(100.0 * ours.images @ ours.classifier, 5)
    assert torch.equal(predicted, theirs.topk(5, 1, True, True)[1])
    assert len(set(predicted[:, 0].tolist())) >= 4, "a model that always says the same proves nothing"

    monkeypatch.setattr(upstream, "accuracy", counted)
    args = Namespace(device="cpu", precision="fp32", batch_size=batch_size)
    top1, top5 = upstream.run(loaded.model, classifier, batches, args)
    figures = score_set(ours, ALL)
    assert figures["top1"] == pytest.approx(100 * top1)
    assert figures["top5"] == pytest.approx(100 * top5)


def test_one_template_a_class_equals_openclips_older_builder(loaded: LoadedModel, emoji_root: Path) -> None:
    folder = read_folder(emoji_root, "heldout-concepts")
    ours = encode_folder(loaded.model, loaded.tokenizer, loaded.preprocess, folder, PLAIN_NAME)
    loaded.model.eval()
    older = open_clip.build_zero_shot_classifier_legacy(
        loaded.model, loaded.tokenizer, [c.name for c in folder.classes], PLAIN_NAME.texts
    )
    torch.testing.assert_close(ours.classifier, older)


def test_image_features_do_not_depend_on_the_batch(loaded: LoadedModel, emoji_root: Path) -> None:
    folder = read_folder(emoji_root, "heldout-vendor")
    one, all_at_once = (
        encode_folder(loaded.model, loaded.tokenizer, loaded.preprocess, folder, PLAIN_NAME, batch_size=size)
        for size in (1, 64)
    )
    torch.testing.assert_close(one.images, all_at_once.images, atol=1e-6, rtol=1e-5)


def test_mode_and_flags_are_put_back(loaded: LoadedModel) -> None:
    loaded.model.train()
    before = torch.backends.cudnn.allow_tf32

    def fail_inside() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16), full_float32(loaded.model):
            assert not loaded.model.training
            assert not torch.backends.cudnn.allow_tf32
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert loaded.model.training
    assert torch.backends.cudnn.allow_tf32 == before


# --- known answers -------------------------------------------------------------------------------------------------


class Oracle(nn.Module):
    """A model whose feature of a grey picture, and of a class's name, is the unit vector of the class's number."""

    def __init__(self, classes: int, value: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(value))
        self.classes = classes

    def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
        return self.scale * nn.functional.one_hot(image[:, 0, 0, 0].long(), self.classes).float()

    def encode_text(self, text: Tensor, normalize: bool = False) -> Tensor:
        return self.scale * nn.functional.one_hot(text[:, 0], self.classes).float()

    def forward(self, image: Tensor | None = None, text: Tensor | None = None) -> dict[str, Tensor]:
        """What OpenCLIP's newer builder calls."""
        found = {}
        if image is not None:
            found["image_features"] = self.encode_image(image)
        if text is not None:
            found["text_features"] = self.encode_text(text)
        return found


def read_number(names: Sequence[str]) -> Tensor:
    """A tokenizer for names such as ``name 3``."""
    return torch.tensor([[int(name.split()[-1])] for name in names])


def read_grey(picture: Image.Image) -> Tensor:
    """The picture's grey level as a (3, 1, 1) picture."""
    return torch.full((3, 1, 1), float(picture.getpixel((0, 0))[0]))  # type: ignore[index]


def grey(level: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (level, level, level)).save(buffer, format="PNG")
    return buffer.getvalue()


def grey_folder(levels: Sequence[int], labels: Sequence[int], classes: int, flags: Sequence[int] = ()) -> Folder:
    """Pictures of the given grey level and label; class i is called ``name i``."""
    entries = [ClassEntry(f"{i:04d}", f"name {i}", "group", "sub", i in flags) for i in range(classes)]
    samples = [
        Sample("00000.tar", f"key{n}", grey(level), label, "vendor", "vendor")
        for n, (level, label) in enumerate(zip(levels, labels, strict=True))
    ]
    return Folder(Path("folder"), entries, samples, "0" * 64)


def encode(folder: Folder, value: float = 1.0):
    return encode_folder(Oracle(len(folder.classes), value), read_number, read_grey, folder, PLAIN_NAME, batch_size=7)


def test_a_model_that_knows_the_answer_gets_100_percent() -> None:
    figures = score_set(encode(grey_folder(range(40), range(40), 40)), ALL)
    assert (figures["top1"], figures["top5"], figures["mean_per_class"]) == (100.0, 100.0, 100.0)
    assert (figures["n"], figures["classes"], figures["chance"], figures["ties"]) == (40, 40, 2.5, 0)
    assert figures["interval"] == pytest.approx([91.24, 100.0], abs=0.01)


def test_mean_per_class_weighs_classes_equally() -> None:
    # Nine pictures of class 0, all right; one of class 1, wrong.
    figures = score_set(encode(grey_folder([0] * 9 + [2], [0] * 9 + [1], 10)), ALL)
    assert figures["top1"] == 90.0
    assert figures["mean_per_class"] == 50.0


def test_without_flags_their_pictures_and_classes_are_gone() -> None:
    # Class 2 and 5 are flags. The pictures of 3 look like flag 2; once the flags are no choice they are ties of zeros.
    folder = grey_folder([0, 1, 2, 2, 4, 5], [0, 1, 2, 3, 4, 5], 6, flags=(2, 5))
    encoded = encode(folder)
    with_flags, without = score_set(encoded, ALL), score_set(encoded, NO_FLAGS)
    assert (with_flags["n"], with_flags["classes"]) == (6, 6)
    assert with_flags["top1"] == pytest.approx(100 * 5 / 6)
    assert (without["n"], without["classes"], without["chance"]) == (4, 4, 25.0)
    assert without["top1"] in (75.0, 100.0)
    assert without["ties"] == 1


def test_vendors_get_a_row_each_only_where_there_are_several() -> None:
    folder = grey_folder([0, 1, 2, 0], [0, 1, 2, 1], 3)
    assert "per_vendor" not in score_set(encode(folder), ALL)
    mixed = replace(folder, samples=[replace(s, vendor=v) for s, v in zip(folder.samples, "aabb", strict=True)])
    rows = score_set(encode(mixed), ALL)["per_vendor"]
    assert list(rows) == ["a", "b"]
    assert (rows["a"]["top1"], rows["b"]["top1"], rows["a"]["n"]) == (100.0, 50.0, 2)


# --- refusals and bad pictures -------------------------------------------------------------------------------------


def test_an_unreadable_picture_is_counted_and_named() -> None:
    folder = grey_folder([n % 10 for n in range(100)], [n % 10 for n in range(100)], 10)
    folder.samples[37] = replace(folder.samples[37], image=b"no picture")
    encoded = encode(folder)
    assert [(b.shard, b.key) for b in encoded.bad] == [("00000.tar", "key37")]
    assert "not a readable picture" in encoded.bad[0].reason
    figures = score_set(encoded, ALL)
    assert (figures["n"], figures["top1"]) == (99, 100.0)


def test_more_than_one_percent_unreadable_is_an_error() -> None:
    folder = grey_folder([n % 10 for n in range(100)], [n % 10 for n in range(100)], 10)
    for place in (3, 4):
        folder.samples[place] = replace(folder.samples[place], image=folder.samples[place].image[:40])
    with pytest.raises(RefusedError, match=r"2 of 100 pictures cannot be decoded, more than 1%.*key3.*key4"):
        encode(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(RefusedError, match="of the text features are NaN or infinite"):
        encode(grey_folder([0, 1], [0, 1], 2), value)


def test_image_features_that_are_not_finite_are_refused() -> None:
    class Broken(Oracle):
        def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
            return super().encode_image(image) * float("nan")

    with pytest.raises(RefusedError, match="of the image features are NaN or infinite"):
        encode_folder(Broken(2), read_number, read_grey, grey_folder([0, 1], [0, 1], 2), PLAIN_NAME)


def test_all_sets_are_scored_from_two_encodings(loaded: LoadedModel, emoji_root: Path) -> None:
    folders = read_folders(EMOJI, emoji_root)
    figures, encoded = evaluate_folders(loaded.model, loaded.tokenizer, loaded.preprocess, EMOJI, folders)
    assert list(encoded) == ["heldout-vendor", "heldout-concepts"]
    assert {k: (v["n"], v["classes"]) for k, v in figures.items()} == {
        "heldout_vendor": (20, 20),
        "heldout_vendor_noflags": (17, 17),
        "heldout_concepts": (12, 6),
    }
    assert list(figures["heldout_concepts"]["per_vendor"]) == ["one", "two"]


def test_a_damaged_second_folder_is_refused_before_anything_is_encoded(own_root: Path) -> None:
    (own_root / "heldout-concepts" / "classes.json").unlink()
    with pytest.raises(RefusedError, match=r"heldout-concepts/classes\.json is missing"):
        read_folders(EMOJI, own_root)
