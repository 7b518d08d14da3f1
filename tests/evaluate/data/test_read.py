"""What every form of a data set comes to: folders, columns, notes, fewer pictures, and more than there should be."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from evaluate.data.classes import class_list
from evaluate.data.emoji import read_folder
from evaluate.data.read import Readied, read_dataset
from evaluate.data.sets import DATASETS, Dataset, get_dataset
from evaluate.errors import RefusedError


def read(
    dataset: Dataset, root: Path, limit: int | None = None, per_class: int | None = None, seed: int = 0
) -> tuple[Dataset, list[Readied]]:
    return read_dataset(dataset, str(root), limit=limit, per_class=per_class, seed=seed)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ImageNet-A's 200 classes with five pictures each; do not change it."""
    root = tmp_path_factory.mktemp("imagenet-a")
    for wnid in class_list("imagenet-1k", "a").ids:
        (root / wnid).mkdir()
        for number in range(5):
            (root / wnid / f"{number}.jpg").write_bytes(b"listed, not opened")
    return root


def test_emoji_folders(emoji_root: Path) -> None:
    dataset, (vendor, concepts) = read(get_dataset("emoji"), emoji_root)
    assert dataset == DATASETS["emoji"]
    old = read_folder(emoji_root, "heldout-vendor")
    assert (vendor.name, len(vendor.pictures), len(vendor.class_names)) == ("heldout-vendor", 20, 20)
    assert vendor.class_names == [entry.name for entry in old.classes]
    assert vendor.pictures.classes == [entry.concept for entry in old.classes]
    assert vendor.pictures.labels == [sample.label for sample in old.samples]
    assert [place.read() for place in vendor.pictures.places] == [sample.image for sample in old.samples]
    assert vendor.pictures.names[0] == "00000.tar:drawn-by-one-1F300"
    assert vendor.columns["heldout_vendor"] == list(range(20))
    assert vendor.columns["heldout_vendor_noflags"] == [i for i in range(20) if i not in (0, 7, 19)]
    assert vendor.manifest_sha256 == old.manifest_sha256
    assert concepts.groups == [sample.vendor for sample in read_folder(emoji_root, "heldout-concepts").samples]
    assert set(concepts.columns) == {"heldout_concepts"}


def test_a_tree(tree: Path) -> None:
    dataset, (folder,) = read(get_dataset("imagenet-a"), tree)
    assert (folder.name, len(folder.pictures), len(folder.class_names)) == ("", 1000, 200)
    assert folder.columns == {"imagenet-a": list(range(200))}
    assert (folder.groups, folder.manifest_sha256, dataset.about) == (None, None, ())


def test_limit_spreads_over_the_list(tree: Path) -> None:
    _, (folder,) = read(get_dataset("imagenet-a"), tree, limit=300)
    assert len(folder.pictures) == 300
    assert folder.pictures.labels == sorted(folder.pictures.labels)
    assert set(Counter(folder.pictures.labels).values()) == {1, 2}
    assert len(set(folder.pictures.names)) == 300
    _, (whole,) = read(get_dataset("imagenet-a"), tree, limit=5000)
    assert len(whole.pictures) == 1000


def test_per_class_is_drawn_by_seed_and_name(tree: Path) -> None:
    _, (folder,) = read(get_dataset("imagenet-a"), tree, per_class=2, seed=1)
    assert set(Counter(folder.pictures.labels).values()) == {2}
    assert folder.pictures.names == sorted(folder.pictures.names)
    _, (again,) = read(get_dataset("imagenet-a"), tree, per_class=2, seed=1)
    _, (other,) = read(get_dataset("imagenet-a"), tree, per_class=2, seed=2)
    assert again.pictures.list_sha256 == folder.pictures.list_sha256 != other.pictures.list_sha256
    one = set(read(get_dataset("imagenet-a"), tree, per_class=1, seed=1)[1][0].pictures.names)
    assert one < set(folder.pictures.names)
    assert len({name.split("/")[1] for name in one}) == 5  # not the first of every class


def test_groups_stay_with_their_pictures(emoji_root: Path) -> None:
    _, (_, concepts) = read(get_dataset("emoji"), emoji_root, limit=5)
    assert concepts.groups == [name.split(":")[1].split("-")[0] for name in concepts.pictures.names]
    assert len(concepts.groups) == 5


@pytest.mark.parametrize("option", ["limit", "per_class"])
def test_no_pictures_at_all_are_refused(tree: Path, option: str) -> None:
    with pytest.raises(RefusedError, match="must be at least 1, found 0"):
        read(get_dataset("imagenet-a"), tree, **{option: 0})


def test_more_than_the_official_pictures_are_refused(tree: Path) -> None:
    assert len(read(replace(DATASETS["imagenet-a"], official=1000), tree)[1][0].pictures) == 1000
    with pytest.raises(RefusedError, match="1,000 pictures, but ImageNet-A has 999"):
        read(replace(DATASETS["imagenet-a"], official=999), tree, limit=10)


def test_names_that_classes_share_are_told(tmp_path: Path) -> None:
    for wnid in class_list("imagenet-1k").ids:
        (tmp_path / wnid).mkdir()
        (tmp_path / wnid / "1.JPEG").write_bytes(b"")
    dataset, _ = read(get_dataset("imagenet1k"), tmp_path)
    assert dataset.about == (
        "Of the 1,000 classes 4 have a name that another has too ('missile', 'sunglasses'): "
        "top-1 cannot tell those apart.",
    )
    with pytest.raises(RefusedError, match="This is probably the training split"):
        read(replace(dataset, official=999), tmp_path)


def test_every_imagenet_entry_has_its_classes() -> None:
    sizes = {name: len(class_list(d.classes, d.subset)) for name, d in DATASETS.items() if name != "emoji"}
    assert sizes == {
        "imagenet1k": 1000,
        "imagenetv2": 1000,
        "imagenetv2-threshold0.7": 1000,
        "imagenetv2-top-images": 1000,
        "imagenet-a": 200,
        "imagenet-r": 200,
        "imagenet-o": 200,
        "imagenet_sketch": 1000,
        "imagenet21k": 21_841,
        "imagenet21k-miil": 11_221,
    }


@pytest.mark.parametrize(
    ("given", "meant", "name"),
    [
        ("imagenet_sketch", "imagenet1k", "ILSVRC2012_val_{:08d}.JPEG"),
        ("imagenet1k", "imagenet_sketch", "sketch_{}.JPEG"),
    ],
)
def test_sets_with_the_same_class_folders_are_told_apart_by_file_names(
    tmp_path: Path, given: str, meant: str, name: str
) -> None:
    for number, wnid in enumerate(class_list("imagenet-1k").ids):
        (tmp_path / wnid).mkdir()
        (tmp_path / wnid / name.format(number)).write_bytes(b"listed, not opened")
    with pytest.raises(RefusedError, match=f"1,000 of 1,000 pictures are named as .* Give --dataset {meant}"):
        read(get_dataset(given), tmp_path)
    assert len(read(get_dataset(meant), tmp_path)[1][0].pictures) == 1000


def test_v2_in_wnid_folders_is_not_the_validation_set(tmp_path: Path) -> None:
    for number, wnid in enumerate(class_list("imagenet-1k").ids):
        (tmp_path / "wnids" / wnid).mkdir(parents=True)
        (tmp_path / "wnids" / wnid / f"ILSVRC2012_val_{number:08d}.JPEG").write_bytes(b"listed")
        (tmp_path / "numbers" / str(number)).mkdir(parents=True)
        (tmp_path / "numbers" / str(number) / f"{number:040x}.jpeg").write_bytes(b"listed")
    with pytest.raises(RefusedError, match="Give --dataset imagenet1k"):
        read(get_dataset("imagenetv2"), tmp_path / "wnids")
    assert len(read(get_dataset("imagenetv2"), tmp_path / "numbers")[1][0].pictures) == 1000
