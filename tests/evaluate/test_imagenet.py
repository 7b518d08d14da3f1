"""ImageNet's folder: exactly its classes or a refusal that says what is wrong; accuracy equal to OpenCLIP's way."""

from pathlib import Path

import open_clip
import pytest
import torch
from torchvision.datasets import ImageFolder

from evaluate import imagenet
from evaluate.errors import RefusedError
from evaluate.imagenet import Labelled, read_imagenet, wnids, zero_shot
from evaluate.models import LoadedModel, load_model
from evaluate.zero_shot import full_float32

from .conftest import png

CPU = torch.device("cpu")
TEMPLATES = [lambda c: f"a photo of a {c}.", lambda c: f"art of the {c}."]


def tree(root: Path, names: list[str]) -> Path:
    root.mkdir(parents=True)
    for name in names:
        (root / name).mkdir()
        (root / name / "one.JPEG").write_bytes(b"listed, not opened")
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("imagenet") / "val", wnids())


def test_class_index_is_the_rank_of_the_wnid(whole: Path) -> None:
    names = wnids()
    assert (len(names), names) == (len(open_clip.IMAGENET_CLASSNAMES), sorted(names))
    (whole / "n01440764" / "two.png").write_bytes(b"")
    (whole / "n01440764" / "notes.txt").write_bytes(b"")
    (whole / "README").write_bytes(b"")
    images = read_imagenet(whole)
    assert len(images.pictures) == 1001
    assert all(names[label] == Path(path).parent.name for path, label in images.pictures)


def test_other_folders_are_refused_with_what_is_wrong(whole: Path, tmp_path: Path) -> None:
    for root, message in (
        (tmp_path / "none", "no such folder"),
        (whole.parent, f"Probably meant: {whole}"),
        (tree(tmp_path / "empty", []), "found 0 folders, 1000 missing"),
        (tree(tmp_path / "v2", [str(i) for i in range(12)]), "numbers for names"),
        (tree(tmp_path / "some", [*wnids()[3:], "cats"]), r"3 missing \(n01440764, .*1 not ImageNet's \(cats\)"),
    ):
        with pytest.raises(RefusedError, match=message):
            read_imagenet(root)
    (tree(tmp_path / "hole", wnids()) / "n01443537" / "one.JPEG").unlink()
    with pytest.raises(RefusedError, match=r"1 class folders hold no picture \(n01443537\)"):
        read_imagenet(tmp_path / "hole")


def test_accuracy_equals_openclips_way(nano: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: LoadedModel = load_model(*nano)
    monkeypatch.setattr(imagenet, "OPENAI_IMAGENET_TEMPLATES", TEMPLATES)
    names = open_clip.IMAGENET_CLASSNAMES
    tree_root = tmp_path / "val"
    for seed in range(23):
        folder = tree_root / f"class{seed % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{seed}.png").write_bytes(png(seed))
    pixels = torch.stack([loaded.preprocess(image) for image, _ in ImageFolder(str(tree_root))])
    with torch.no_grad():
        classifier = open_clip.build_zero_shot_classifier(loaded.model.eval(), loaded.tokenizer, names, TEMPLATES)
        guesses = (100.0 * loaded.model.encode_image(pixels, normalize=True) @ classifier).topk(5).indices
    # Labels of which some are right at once and some among five, as an untrained model's are not by themselves.
    labels = [int(guesses[i, 0 if i % 3 == 0 else 3]) if i % 2 else 999 for i in range(23)]
    paths = [path for path, _ in ImageFolder(str(tree_root)).samples]
    images = Labelled(tree_root, list(zip(paths, labels, strict=True)))
    with full_float32(loaded.model):
        figures, bad = zero_shot(
            loaded.model, loaded.tokenizer, loaded.preprocess, images, batch_size=5, device=CPU, threads=2
        )
    right = guesses == torch.tensor(labels)[:, None]
    assert bad == []
    assert figures == {
        "top1": 100.0 * int(right[:, 0].sum()) / 23,
        "top5": 100.0 * int(right.any(dim=1).sum()) / 23,
        "images": 23,
        "bad_images": 0,
    }
    assert 0 < figures["top1"] < figures["top5"] < 100
