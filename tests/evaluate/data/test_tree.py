"""The listing equals ImageFolder's, and each way to give a wrong folder is refused: what is wrong, what to do."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

from evaluate.data.classes import ClassList, class_list
from evaluate.data.tree import read_tree
from evaluate.errors import RefusedError

THOUSAND = class_list("imagenet-1k")
FEW = ClassList(("n01", "n02", "n03"), ("tench", "goldfish", "great white shark"))


def tree(root: Path, names: Iterable[str]) -> Path:
    """A folder a name with a file that is listed and never opened."""
    root.mkdir(parents=True)
    for name in names:
        (root / name).mkdir()
        (root / name / "one.JPEG").write_bytes(b"12345")
    return root


def refusal(root: Path, classes: ClassList = THOUSAND, numbered: bool = False) -> str:
    with pytest.raises(RefusedError) as refused:
        read_tree(root, classes, numbered=numbered)
    return str(refused.value)


def test_order_and_labels_are_image_folders(tmp_path: Path) -> None:
    root = tree(tmp_path / "val", FEW.ids)
    for name in ("two.png", "Zero.jpg", "a b.webp", "notes.txt", "10.jpeg", "9.jpeg", "é.bmp", "x.gif"):
        (root / "n02" / name).write_bytes(b"1")
    for nested in ("inner", "inner-2", "inner/deep"):  # sorted by path: "inner-2" stands before "inner/deep"
        (root / "n01" / nested).mkdir()
        (root / "n01" / nested / "picture.PNG").write_bytes(b"123")
    (root / "README.txt").write_bytes(b"")
    (root / "stray.JPEG").write_bytes(b"")
    pictures, expected = read_tree(root, FEW), ImageFolder(str(root))
    assert [str(place.file) for place in pictures.places] == [path for path, _ in expected.samples]
    assert pictures.labels == [label for _, label in expected.samples]
    assert pictures.names == [os.path.relpath(path, root) for path, _ in expected.samples]
    assert [place.size for place in pictures.places] == [os.path.getsize(path) for path, _ in expected.samples]
    assert pictures.classes == list(FEW.ids)
    assert pictures.places[0].read() == b"12345"


def test_hidden_files_and_folders_are_no_pictures_and_no_classes(tmp_path: Path) -> None:
    root = tree(tmp_path / "val", FEW.ids)
    (root / ".cache").mkdir()
    (root / ".DS_Store").write_bytes(b"")
    (root / "n01" / ".DS_Store").write_bytes(b"")
    (root / "n01" / "._one.JPEG").write_bytes(b"what macOS leaves on other disks")
    assert read_tree(root, FEW).names == ["n01/one.JPEG", "n02/one.JPEG", "n03/one.JPEG"]


def test_numbered_folders_are_sorted_as_text_and_labelled_as_numbers(tmp_path: Path) -> None:
    pictures = read_tree(tree(tmp_path / "v2", map(str, range(1000))), THOUSAND, numbered=True)
    assert [name.split("/")[0] for name in pictures.names] == sorted(map(str, range(1000)))
    assert all(label == int(name.split("/")[0]) for name, label in zip(pictures.names, pictures.labels, strict=True))
    assert sum(place == label for place, label in enumerate(pictures.labels)) == 12  # all that string order gets right


def test_numbers_may_have_zeros_before_them_but_each_comes_once(tmp_path: Path) -> None:
    assert read_tree(tree(tmp_path / "v2", ["00", "01", "02"]), FEW, numbered=True).labels == [0, 1, 2]
    assert "found 4 folders" in refusal(tree(tmp_path / "twice", ["0", "1", "2", "02"]), FEW, numbered=True)
    assert "the numbers 0 to 2; found 2 folders, 1 missing (2)" in refusal(
        tree(tmp_path / "b", "01"), FEW, numbered=True
    )


def test_numbered_sets_may_come_with_the_ids(tmp_path: Path) -> None:
    assert read_tree(tree(tmp_path / "v2", FEW.ids), FEW, numbered=True).labels == [0, 1, 2]


def test_missing_and_extra_folders(tmp_path: Path) -> None:
    some = refusal(tree(tmp_path / "some", [*THOUSAND.ids[3:], "cats"]))
    assert "found 998 folders, 3 missing (n01440764, n01443537, n01484850) and 1 not expected (cats)" in some
    assert "1 not expected (n99999999)" in refusal(tree(tmp_path / "more", [*THOUSAND.ids, "n99999999"]))
    assert "1 missing (n15075141)" in refusal(tree(tmp_path / "less", THOUSAND.ids[:-1]))


def test_other_names_than_wnids(tmp_path: Path) -> None:
    assert "--dataset imagenetv2" in refusal(tree(tmp_path / "numbers", map(str, range(1000))))
    assert "cannot be trusted" in refusal(tree(tmp_path / "padded", (f"{i:05d}" for i in range(1000))))
    names = {name.replace(" ", "_") for name in THOUSAND.names if "/" not in name}
    assert "names of classes" in refusal(tree(tmp_path / "names", names))


@pytest.mark.parametrize(("subset", "meant"), [("a", "imagenet-a"), ("r", "imagenet-r"), ("o", "imagenet-o")])
def test_the_folders_of_another_data_set(tmp_path: Path, subset: str, meant: str) -> None:
    chosen = class_list("imagenet-1k", subset)
    assert f"These are the classes of --dataset {meant}." in refusal(tree(tmp_path / "val", chosen.ids))
    assert "These are the classes of --dataset imagenet1k." in refusal(tree(tmp_path / "all", THOUSAND.ids), chosen)


def test_other_releases_of_the_large_list(tmp_path: Path) -> None:
    large = class_list("imagenet-22k")
    root = tmp_path / "winter"
    root.mkdir()
    for wnid in large.ids[:19_167]:
        (root / wnid).mkdir()
    said = refusal(root, large)
    assert "found 19,167 folders, 2,674 missing" in said
    assert "winter 2021" in said


def test_one_or_more_levels_too_high(tmp_path: Path) -> None:
    root = tree(tmp_path / "imagenet" / "ILSVRC" / "Data" / "val", THOUSAND.ids)
    tree(tmp_path / "imagenet" / "ILSVRC" / "Data" / "train", THOUSAND.ids)
    for given in (root.parent, root.parents[1], root.parents[2]):
        assert refusal(given).endswith(f"Probably meant: {root}")


def test_one_or_more_levels_too_deep(tmp_path: Path) -> None:
    root = tree(tmp_path / "val", THOUSAND.ids)
    (root / "n01440764" / "pictures").mkdir()
    for given in (root / "n01443537", root / "n01440764" / "pictures"):
        assert refusal(given).endswith(f"Probably meant: {root}")


def test_a_root_without_class_folders(tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "none")
    (tmp_path / "val.tar").write_bytes(b"")
    assert "a file" in refusal(tmp_path / "val.tar")
    assert "It holds archives (val.tar); unpack them" in refusal(tmp_path)
    (tmp_path / "ILSVRC2012_val_00000001.JPEG").write_bytes(b"")
    assert "It holds 1 pictures (ILSVRC2012_val_00000001.JPEG); sort them" in refusal(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "It holds nothing" in refusal(tmp_path / "empty")


def test_an_empty_class(tmp_path: Path) -> None:
    root = tree(tmp_path / "val", FEW.ids)
    (root / "n02" / "one.JPEG").rename(root / "n02" / "one.txt")
    assert "1 class folders hold no picture (n02)" in refusal(root, FEW)


def test_a_class_folder_inside_another(tmp_path: Path) -> None:
    root = tree(tmp_path / "val", FEW.ids)
    tree(root / "n02" / "val", ["n03"])
    assert "n02 holds class folders of its own (n03)" in refusal(root, FEW)


def test_links(tmp_path: Path) -> None:
    root = tree(tmp_path / "val", FEW.ids)
    (root / "n01" / "gone.JPEG").symlink_to(tmp_path / "gone.JPEG")
    (root / "n01" / "itself.JPEG").symlink_to(root / "n01" / "itself.JPEG")
    pictures = read_tree(root, FEW)
    assert pictures.names[:3] == ["n01/gone.JPEG", "n01/itself.JPEG", "n01/one.JPEG"]
    for place in pictures.places[:2]:
        with pytest.raises(OSError, match=r"gone|itself"):
            place.read()
    (root / "n02" / "all").symlink_to(root)
    assert "is a link to a folder above it" in refusal(root, FEW)


def test_a_linked_class_folder_is_read(tmp_path: Path) -> None:
    root = tree(tmp_path / "val", FEW.ids)
    (root / "n02").rename(tmp_path / "elsewhere")
    (root / "n02").symlink_to(tmp_path / "elsewhere")
    assert read_tree(root, FEW).names[1] == "n02/one.JPEG"
    (root / "n03" / "one.JPEG").unlink()
    (root / "n03").rmdir()
    (root / "n03").symlink_to(root / "n03")
    assert "1 missing (n03)" in refusal(root, FEW)


def test_a_pipe_with_a_pictures_name(tmp_path: Path) -> None:
    root = tree(tmp_path / "val", FEW.ids)
    os.mkfifo(root / "n02" / "pipe.jpg")
    assert "pipe.jpg has a picture's name but is no file" in refusal(root, FEW)
