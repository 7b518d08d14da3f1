"""The protocol: equal to OpenCLIP's prediction by prediction, right where the answer is known, loud where it is not."""

import io
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip_train import zero_shot as upstream
from PIL import Image
from torch import Tensor, nn

from evaluate.classifier import class_weights
from evaluate.data.pictures import Pictures, Place
from evaluate.data.read import Readied, read_dataset
from evaluate.data.sets import EMOJI, get_dataset
from evaluate.decode import fast_transform
from evaluate.encode import full_float32
from evaluate.errors import RefusedError
from evaluate.models import LoadedModel, load_model
from evaluate.zero_shot import Measured, figures_of, measure, split_name

from .conftest import png

CPU = torch.device("cpu")
THREE = ("{}", "a drawing of {}", "{} as an icon.")


@pytest.fixture(scope="module")
def loaded(nano: tuple[str, Path]) -> LoadedModel:
    return load_model(*nano)


def measured_by(
    model: nn.Module, preprocess: Any, tokenizer: Any, folder: Readied, texts: Sequence[str] = ("{}",), **options: Any
) -> Measured:
    arguments = {"batch_size": 7, "device": CPU, "threads": 2} | options
    with full_float32(model):
        weights_DC = class_weights(model, tokenizer, folder.class_names, texts, device=CPU)
        return measure(model, preprocess, folder, weights_DC, **arguments)


def emoji_folder(root: Path, number: int = 0) -> Readied:
    return read_dataset(EMOJI, str(root), limit=None, per_class=None, seed=0)[1][number]


# --- agreement with OpenCLIP ---------------------------------------------------------------------------------------


def counted(output: Tensor, target: Tensor, topk: tuple[int, ...] = (1,)) -> list[float]:
    """OpenCLIP's ``accuracy`` with ``.item()`` as the last step: its own ends in ``float`` of an array of one element,
    which numpy 2.4 refuses."""
    correct = output.topk(max(topk), 1, True, True)[1].t().eq(target.view(1, -1).expand(max(topk), -1))
    return [correct[:k].reshape(-1).float().sum().item() for k in topk]


@pytest.mark.parametrize("texts", [("{}",), THREE])
def test_equals_openclip_prediction_by_prediction(
    loaded: LoadedModel, emoji_root: Path, texts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = emoji_folder(emoji_root)
    ours = measured_by(loaded.model, loaded.preprocess, loaded.tokenizer, folder, texts, batch_size=6)

    loaded.model.eval()
    classifier = open_clip.build_zero_shot_classifier(loaded.model, loaded.tokenizer, folder.class_names, texts)
    pictures = [Image.open(io.BytesIO(place.read())).convert("RGB") for place in folder.pictures.places]
    pixels = torch.stack([loaded.preprocess(picture) for picture in pictures])
    labels = torch.tensor(folder.pictures.labels)
    batches = list(zip(pixels.split(6), labels.split(6), strict=True))
    with torch.no_grad():
        theirs = torch.cat([100.0 * loaded.model(image=x)[0] @ classifier for x, _ in batches])
    best = theirs.topk(5, 1, True, True)

    guesses = ours.sets["heldout_vendor"]
    assert torch.equal(guesses.best, best[1])
    torch.testing.assert_close(guesses.scores, best[0], atol=1e-4, rtol=0)
    assert len(set(guesses.best[:, 0].tolist())) >= 4, "a model that always says the same proves nothing"

    monkeypatch.setattr(upstream, "accuracy", counted)
    args = Namespace(device="cpu", precision="fp32", batch_size=6)
    top1, top5 = upstream.run(loaded.model, classifier, batches, args)
    figures = figures_of(ours, "heldout_vendor")
    assert figures["top1"] == pytest.approx(100 * top1)
    assert figures["top5"] == pytest.approx(100 * top5)


def test_a_thousand_classes_of_which_some_share_a_name(nano: tuple[str, Path], tmp_path: Path) -> None:
    """ImageNet's own names and 80 templates on synthetic pictures, one in ten classes; ties fall as OpenCLIP's do."""
    loaded = load_model(*nano)
    names, texts = list(open_clip.IMAGENET_CLASSNAMES), get_dataset("imagenet1k").templates["simple"].texts
    folder = pictures_of(tmp_path, [png(seed) for seed in range(100)], list(range(0, 1000, 10)), names)
    ours = measured_by(loaded.model, loaded.preprocess, loaded.tokenizer, folder, texts, batch_size=32)
    loaded.model.eval()
    theirs = open_clip.build_zero_shot_classifier(
        loaded.model, loaded.tokenizer, names, open_clip.SIMPLE_IMAGENET_TEMPLATES
    )
    pixels = torch.stack([loaded.preprocess(Image.open(io.BytesIO(png(seed)))) for seed in range(100)])
    with torch.no_grad():
        scores = torch.cat([100.0 * loaded.model.encode_image(x, normalize=True) @ theirs for x in pixels.split(32)])
    guesses = ours.sets["set"].best
    assert torch.equal(guesses, scores.topk(5).indices)
    assert names.count("missile") == 2
    assert "merged_top1" in figures_of(ours, "set")


KINDS = ["softmax", "eq4", "eq4half", "eq7", "eq7mean", "eq7learned", "sema", "inline", "hybrid"]


@pytest.mark.parametrize("kind", KINDS)
def test_image_features_do_not_depend_on_the_batch(kind: str, emoji_root: Path) -> None:
    torch.manual_seed(0)
    model = open_clip.create_model(f"tiny-emoji-{kind}")
    preprocess = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(**model.visual.preprocess_cfg), is_train=False
    )
    places = emoji_folder(emoji_root).pictures.places
    pixels = torch.stack([preprocess(Image.open(io.BytesIO(place.read())).convert("RGB")) for place in places])
    with full_float32(model):
        together = model.encode_image(pixels, normalize=True)
        alone = torch.cat([model.encode_image(one, normalize=True) for one in pixels.split(1)])
        backwards = model.encode_image(pixels.flip(0), normalize=True).flip(0)
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=0)
    torch.testing.assert_close(backwards, together, atol=1e-5, rtol=0)


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

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.classes = classes

    def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
        return self.scale * nn.functional.one_hot(image[:, 0, 0, 0].long(), self.classes).float()

    def encode_text(self, text: Tensor, normalize: bool = False) -> Tensor:
        return nn.functional.one_hot(text[:, 0], self.classes).float()


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


def pictures_of(
    root: Path,
    contents: Sequence[bytes],
    labels: Sequence[int],
    names: Sequence[str],
    columns: dict[str, list[int]] | None = None,
    groups: list[str] | None = None,
) -> Readied:
    """Encoded pictures as files of `root`, of one folder and, without `columns`, one set of all classes."""
    places = []
    for number, content in enumerate(contents):
        file = root / f"{number}.png"
        file.write_bytes(content)
        places.append(Place(file, 0, len(content)))
    keys = [f"folder/key{number}" for number in range(len(contents))]
    pictures = Pictures(str(root), [f"{i:04d}" for i in range(len(names))], places, keys, list(labels))
    return Readied("", pictures, list(names), columns or {"set": list(range(len(names)))}, groups)


def greys(root: Path, levels: Sequence[int], labels: Sequence[int], classes: int, **more: Any) -> Readied:
    """Pictures of the given grey level and label; class i is called ``name i``."""
    names = more.pop("names", [f"name {i}" for i in range(classes)])
    return pictures_of(root, [grey(level) for level in levels], labels, names, **more)


def oracle(folder: Readied, model: nn.Module | None = None, **options: Any) -> Measured:
    model = model or Oracle(len(folder.class_names))
    return measured_by(model, read_grey, read_number, folder, **options)


def test_a_model_that_knows_the_answer_gets_100_percent(tmp_path: Path) -> None:
    figures = figures_of(oracle(greys(tmp_path, range(40), range(40), 40)), "set")
    assert (figures["top1"], figures["top5"], figures["mean_per_class"]) == (100.0, 100.0, 100.0)
    assert (figures["n"], figures["classes"], figures["chance"], figures["ties"]) == (40, 40, 2.5, 0)
    assert figures["interval"] == figures["interval_top5"] == pytest.approx([91.24, 100.0], abs=0.01)
    assert figures["interval_mean_per_class"] == [100.0, 100.0]
    assert "merged_top1" not in figures


def test_mean_per_class_weighs_classes_equally(tmp_path: Path) -> None:
    # Nine pictures of class 0, all right; one of class 1, wrong.
    figures = figures_of(oracle(greys(tmp_path, [0] * 9 + [2], [0] * 9 + [1], 10)), "set")
    assert figures["top1"] == 90.0
    assert figures["mean_per_class"] == 50.0
    assert figures["worst_classes"] == [{"class": "0001", "name": "name 1", "n": 1, "top1": 0.0}]
    assert figures["best_classes"] == [{"class": "0000", "name": "name 0", "n": 9, "top1": 100.0}]


def test_a_set_of_fewer_columns_leaves_their_pictures_and_classes_out(tmp_path: Path) -> None:
    # The pictures of 3 look like 2; where 2 is no choice they are ties of zeros.
    columns = {"all": list(range(6)), "some": [0, 1, 3, 4]}
    measured = oracle(greys(tmp_path, [0, 1, 2, 2, 4, 5], range(6), 6, columns=columns))
    every, some = figures_of(measured, "all"), figures_of(measured, "some")
    assert (every["n"], every["classes"]) == (6, 6)
    assert every["top1"] == pytest.approx(100 * 5 / 6)
    assert (some["n"], some["classes"], some["chance"]) == (4, 4, 25.0)
    assert some["top1"] in (75.0, 100.0)
    assert some["ties"] == 1
    assert set(measured.sets["some"].best.flatten().tolist()) == {0, 1, 3, 4}, "class indices of the folder"
    assert measured.sets["some"].numbers.tolist() == [0, 1, 3, 4]


def test_groups_get_a_row_each_only_where_there_are_several(tmp_path: Path) -> None:
    one = greys(tmp_path, [0, 1, 2, 0], [0, 1, 2, 1], 3, groups=list("aaaa"))
    assert "per_vendor" not in figures_of(oracle(one), "set")
    rows = figures_of(oracle(greys(tmp_path, [0, 1, 2, 0], [0, 1, 2, 1], 3, groups=list("aabb"))), "set")["per_vendor"]
    assert list(rows) == ["a", "b"]
    assert (rows["a"]["top1"], rows["b"]["top1"], rows["a"]["n"]) == (100.0, 50.0, 2)


def test_classes_of_one_name_count_as_one_where_merged(tmp_path: Path) -> None:
    # Class 3 is also called "name 0": its pictures tie, and merged they are right whichever of the two is said.
    names = ["name 0", "name 1", "name 2", "name 0"]
    figures = figures_of(oracle(greys(tmp_path, [0, 1, 0, 1], [0, 1, 3, 2], 4, names=names)), "set")
    assert figures["merged_top1"] == 75.0
    assert figures["top1"] == 50.0
    assert figures["ties"] == 2


def test_fewer_classes_than_guesses(tmp_path: Path) -> None:
    figures = figures_of(oracle(greys(tmp_path, [0, 1, 0], [0, 1, 1], 2)), "set")
    assert (figures["top1"], figures["top5"]) == (pytest.approx(100 * 2 / 3), 100.0)


# --- bad pictures, and others --------------------------------------------------------------------------------------


def test_an_unreadable_picture_is_counted_and_named(tmp_path: Path) -> None:
    labels = [n % 10 for n in range(100)]
    folder = greys(tmp_path, labels, labels, 10)
    (tmp_path / "37.png").write_bytes(b"no picture".ljust(folder.pictures.places[37].size))
    (tmp_path / "38.png").write_bytes(b"short")
    (tmp_path / "39.png").unlink()
    measured = oracle(folder, most_bad=0.03)
    assert [(b.shard, b.key) for b in measured.bad] == [("folder", f"key{n}") for n in (37, 38, 39)]
    reasons = [b.reason for b in measured.bad]
    assert "not a readable picture" in reasons[0]
    assert "before the picture's end" in reasons[1]
    assert "No such file" in reasons[2]
    figures = figures_of(measured, "set")
    assert (figures["n"], figures["top1"]) == (97, 100.0)


def test_more_than_one_percent_unreadable_is_an_error(tmp_path: Path) -> None:
    labels = [n % 10 for n in range(100)]
    folder = greys(tmp_path, labels, labels, 10)
    for place in (3, 94):
        file = tmp_path / f"{place}.png"
        file.write_bytes(file.read_bytes()[:40].ljust(folder.pictures.places[place].size, b"\0"))
    with pytest.raises(RefusedError, match=r"2 of 100 pictures cannot be read, more than 1 %: folder: key3 .*key94"):
        oracle(folder)


def test_too_many_bad_pictures_end_it_at_once(tmp_path: Path) -> None:
    class Counting(Oracle):
        calls = 0

        def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
            self.calls += 1
            return super().encode_image(image, normalize)

    model, folder = Counting(10), greys(tmp_path, [0] * 100, [0] * 100, 10)
    for place in range(8):
        (tmp_path / f"{place}.png").unlink()
    with pytest.raises(RefusedError, match="cannot be read"):
        oracle(folder, model, batch_size=1)
    assert model.calls < 10


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 0.0])
def test_image_features_that_say_nothing_are_refused(tmp_path: Path, factor: float) -> None:
    class Broken(Oracle):
        def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
            return super().encode_image(image) * factor

    with pytest.raises(RefusedError, match="image features are NaN, infinite or all zero"):
        oracle(greys(tmp_path, [0, 1], [0, 1], 2), Broken(2))


def test_a_set_whose_pictures_are_all_left_out_is_refused(tmp_path: Path) -> None:
    folder = greys(tmp_path, [0, 1], [0, 1], 3, columns={"set": [0, 1, 2], "third": [2]})
    with pytest.raises(RefusedError, match="third: none of its pictures"):
        oracle(folder)


def test_fast_decoding_gives_nearly_the_same_scores(loaded: LoadedModel, tmp_path: Path) -> None:
    contents = []
    for seed in range(20):
        buffer = io.BytesIO()
        picture = Image.open(io.BytesIO(png(seed, 5))).resize((70, 50), Image.Resampling.BICUBIC)
        picture.save(buffer, "JPEG" if seed % 2 else "PNG", quality=90)
        contents.append(buffer.getvalue())
    folder = pictures_of(tmp_path, contents, [n % 7 for n in range(20)], [f"thing {n}" for n in range(7)])
    tools = (loaded.tokenizer, folder)
    slow = measured_by(loaded.model, loaded.preprocess, *tools).sets["set"]
    fast = measured_by(loaded.model, fast_transform(loaded.preprocess), *tools, fast=True).sets["set"]
    assert not torch.equal(slow.scores, fast.scores)
    torch.testing.assert_close(slow.scores, fast.scores, atol=3.0, rtol=0)


def test_all_sets_are_measured_from_two_folders(loaded: LoadedModel, emoji_root: Path) -> None:
    dataset, folders = read_dataset(EMOJI, str(emoji_root), limit=None, per_class=None, seed=0)
    measured = {f.name: measured_by(loaded.model, loaded.preprocess, loaded.tokenizer, f) for f in folders}
    figures = {s.name: figures_of(measured[s.folder], s.name) for s in dataset.sets}
    assert {k: (v["n"], v["classes"]) for k, v in figures.items()} == {
        "heldout_vendor": (20, 20),
        "heldout_vendor_noflags": (17, 17),
        "heldout_concepts": (12, 6),
    }
    assert list(figures["heldout_concepts"]["per_vendor"]) == ["one", "two"]


def test_names_of_pictures_are_split_where_a_reader_expects() -> None:
    assert split_name("n01440764/x.JPEG") == ("n01440764", "x.JPEG")
    assert split_name("n01440764/deep/x.JPEG") == ("n01440764/deep", "x.JPEG")
    assert split_name("0.tar:s0000012") == ("0.tar", "s0000012")
    assert split_name("x.JPEG") == ("", "x.JPEG")
