"""CLIP_benchmark's layout: what its own exporter writes is read as its own builder reads it, and damage is refused."""

import io
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import webdataset as wds

from evaluate.data.classes import class_list
from evaluate.data.read import Readied, read_dataset
from evaluate.data.sets import Dataset, get_dataset
from evaluate.errors import RefusedError

from ..conftest import png

OWN = "wds/three"
LABELS = (0, 2, 1, 1, 0, 2, 0)
Members = dict[str, bytes]


def samples(labels: Sequence[int] = LABELS) -> list[tuple[str, Members]]:
    return [(f"s{i:07d}", {"png": png(i, 8), "cls": str(label).encode()}) for i, label in enumerate(labels)]


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def write_set(root: Path, names: Sequence[str], labels: Sequence[int] = LABELS, per_shard: int = 3) -> Path:
    """A set as CLIP_benchmark's exporter lays it out."""
    (root / "test").mkdir(parents=True)
    listed = samples(labels)
    shards = [listed[i : i + per_shard] for i in range(0, len(listed), per_shard)]
    for number, shard in enumerate(shards):
        write_tar(root / "test" / f"{number}.tar", [(f"{key}.{s}", c) for key, m in shard for s, c in m.items()])
    (root / "test" / "nshards.txt").write_text(f"{len(shards)}\n")
    (root / "classnames.txt").write_text("".join(f"{name}\n" for name in names))
    (root / "zeroshot_classification_templates.txt").write_text("a photo of a {c}.\na {c}, the {c}.\n")
    return root


def read(root: Path | str, dataset: str = OWN) -> tuple[Dataset, Readied]:
    read, (folder,) = read_dataset(get_dataset(dataset), str(root), limit=None, per_class=None, seed=0)
    return read, folder


def refusal(root: Path, dataset: str = OWN) -> str:
    with pytest.raises(RefusedError) as refused:
        read(root, dataset)
    return str(refused.value)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", ["cat", "dog", "bird"])


def test_a_set_with_its_own_names_and_prompts(root: Path) -> None:
    dataset, folder = read(root)
    assert [folder.pictures.names[i] for i in (0, 3, 6)] == ["0.tar:s0000000", "1.tar:s0000003", "2.tar:s0000006"]
    assert folder.pictures.labels == list(LABELS)
    assert [place.read() for place in folder.pictures.places] == [png(i, 8) for i in range(7)]
    assert folder.class_names == ["cat", "dog", "bird"]
    assert folder.columns == {OWN: [0, 1, 2]}
    assert folder.pictures.root == str(root)
    assert dataset.templates["full"].texts == ("a photo of a {}.", "a {0}, the {0}.")
    assert set(dataset.templates) == {"full", "simple", "photo"}
    assert dataset.templates["full"].texts[1].format("cat") == "a cat, the cat."
    assert dataset.about == ()


def test_webdataset_reads_the_same(root: Path) -> None:
    """webdataset's reader with the calls of CLIP_benchmark's build_wds_dataset."""
    urls = str(root / "test" / "{0..2}.tar")
    handler = wds.autodecode.ImageHandler("pil", extensions=["webp", "png", "jpg", "jpeg"])
    theirs = list(wds.WebDataset(urls, nodesplitter=lambda src: src, shardshuffle=False).decode(handler))
    _, folder = read(root)
    assert [sample["cls"] for sample in theirs] == folder.pictures.labels
    assert [sample["__key__"] for sample in theirs] == [name.split(":")[1] for name in folder.pictures.names]


def test_clip_benchmarks_exporter_and_builder(tmp_path: Path) -> None:
    exporter = pytest.importorskip("clip_benchmark.webdataset_builder")
    builder = sys.modules["clip_benchmark.datasets.builder"]

    class Pictures(list):  # type: ignore[type-arg]
        classes = ("cat", "dog", "bird")
        templates = ("a photo of a {c}.", "{c}")

    pictures = Pictures((png(i, 8), label) for i, label in enumerate(LABELS))
    exporter.convert_dataset(pictures, "test", str(tmp_path), image_format="png", max_count=3, verbose=False)
    theirs = builder.build_wds_dataset("three", transform=lambda image: image.size, data_dir=str(tmp_path))
    dataset, folder = read(tmp_path)
    assert [label for _, label in theirs] == folder.pictures.labels == list(LABELS)
    assert folder.class_names == theirs.classes
    assert (
        dataset.templates["full"].texts
        == ("a photo of a {}.", "{}")
        == tuple(template.replace("{c}", "{}") for template in theirs.templates)
    )


def test_a_known_set_keeps_its_names_and_prompts(tmp_path: Path) -> None:
    names = list(class_list("imagenet-1k", "a").names)
    root = write_set(tmp_path / "a", names, labels=range(200), per_shard=100)
    dataset, folder = read(root, "imagenet-a")
    assert folder.class_names == names
    assert folder.pictures.classes == list(class_list("imagenet-1k", "a").ids)
    assert (len(dataset.templates["full"].texts), dataset.about) == (80, ())
    (root / "classnames.txt").write_text("".join(f"{name}\n" for name in ["ray", *names[1:]]))
    dataset, folder = read(root, "imagenet-a")
    assert folder.class_names == names
    assert (
        "1 class names differ from the classnames.txt beside the pictures, first 'stingray' (used) and 'ray'"
        in (dataset.about[0])
    )
    assert read(root, "wds/imagenet-a")[1].class_names[0] == "ray"
    assert read(root, "wds/imagenet-a")[0].official == 7_500
    (root / "classnames.txt").unlink()
    assert read(root, "imagenet-a")[1].class_names == names
    assert "has no classnames.txt" in refusal(root, "wds/imagenet-a")


def test_a_known_set_of_other_classes(root: Path, tmp_path: Path) -> None:
    assert "classnames.txt has 3 classes, expected 200" in refusal(root, "imagenet-a")
    few = write_set(tmp_path / "few", class_list("imagenet-1k", "a").names, labels=range(150))
    assert "50 of 200 classes have no picture" in refusal(few, "imagenet-a")
    assert "they take part as wrong guesses" in read(few, "wds/few")[0].about[0]


def test_without_prompts_the_short_ones_are_left(root: Path) -> None:
    (root / "zeroshot_classification_templates.txt").unlink()
    assert set(read(root)[0].templates) == {"simple", "photo"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a photo.", "must hold {c} where the class name goes"),
        ("a {}.", "must hold {c}"),
        ("a {c} of {d}.", "no other field"),
        ("a {c!r}.", "no other field"),
        ("a {c:>9}.", "no other field"),
        ("a {c.", "is no format string"),
        ("  ", "line 2 is blank"),
    ],
)
def test_prompts_that_are_none(root: Path, line: str, said: str) -> None:
    (root / "zeroshot_classification_templates.txt").write_text(f"{{c}}\n{line}\n{{c}}\n")
    assert said in refusal(root)


def test_braces_in_prompts_and_names(root: Path) -> None:
    (root / "zeroshot_classification_templates.txt").write_text("{{x}} {c}\n")
    (root / "classnames.txt").write_text("\ufeffcat {c}\r\n dog \nbird\n", encoding="utf-8")
    dataset, folder = read(root)
    assert folder.class_names == ["cat {c}", "dog", "bird"]
    assert dataset.templates["full"].texts[0].format(folder.class_names[0]) == "{x} cat {c}"


def shard_of(*members: tuple[str, bytes]) -> Callable[[Path], None]:
    return lambda root: write_tar(root / "test" / "1.tar", members)


def cut(root: Path) -> None:
    shard = root / "test" / "1.tar"
    shard.write_bytes(shard.read_bytes()[:1536])  # after the first member, where no header is torn


def torn(root: Path) -> None:
    shard = root / "test" / "1.tar"
    shard.write_bytes(shard.read_bytes()[:700])


def with_link(kind: bytes) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        with tarfile.open(root / "test" / "1.tar", "w") as tar:
            info = tarfile.TarInfo("a.png")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)

    return damage


def text(name: str, content: str) -> Callable[[Path], None]:
    return lambda root: (root / name).write_text(content) and None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "is cut short"),
        (torn, "is cut short, damaged or no tar"),
        (lambda root: (root / "test" / "1.tar").unlink(), "0.tar to 2.tar; found 2 without 1.tar"),
        (text("test/nshards.txt", "2"), "0.tar to 1.tar; found 3 and 2.tar"),
        (text("test/nshards.txt", "three"), "must hold the number of shards, found 'three'"),
        (text("test/nshards.txt", "100000000"), "must hold the number of shards, found '100000000'"),
        (text("test/nshards.txt", "0"), "must hold the number of shards, found '0'"),
        (lambda root: (root / "test" / "1.tar").rename(root / "test" / "001.tar"), "without 1.tar"),
        (text("classnames.txt", "cat\n\nbird\n"), "line 2 is blank"),
        (text("classnames.txt", ""), "is empty"),
        (text("dataset_type.txt", "retrieval\n"), "`python -m evaluate retrieval`"),
        (text("dataset_type.txt", "multilabel\n"), "several labels a picture"),
        (text("classnames.txt", "cat\ndog\n"), "0.tar:s0000001.cls: label 2 is out of range, the set has 2 classes"),
        (shard_of(("a.png", b""), ("a.cls", b"-1")), "1.tar:a.cls: label -1 is out of range"),
        (shard_of(("a.png", b""), ("a.cls", b"one")), "must be a class index as digits, found b'one'"),
        (shard_of(("a.png", b""), ("a.cls", b"")), "must be a class index as digits, found b''"),
        (shard_of(("a.png", b""), ("a.cls", bytes(1 << 21))), "'a.cls' has 2,097,152 bytes, no label or caption"),
        (shard_of(("a.png", b""), ("a.txt", b"a cat")), "1.tar:a has no label (.cls), found png, txt"),
        (shard_of(("a.cls", b"1"), ("a.json", b"{}")), "must have one picture (webp, png, jpg, jpeg), found json"),
        (shard_of(("a.cls", b"1"), ("a.png", b""), ("a.jpg", b"")), "must have one picture"),
        (shard_of(("a.png", b""), ("a.PNG", b""), ("a.cls", b"1")), "sample 'a' has .png twice"),
        (shard_of(("a.png", b""), ("a.cls", b"1"), ("a.cls", b"2")), "sample 'a' has .cls twice"),
        (
            shard_of(("a.png", b""), ("a.cls", b"1"), ("b.png", b""), ("b.cls", b"1"), ("a.jpg", b""), ("a.cls", b"1")),
            "sample 'a' comes twice",
        ),
        (with_link(tarfile.SYMTYPE), "is a link or no plain file"),
        (with_link(tarfile.LNKTYPE), "is a link or no plain file"),
        (with_link(tarfile.FIFOTYPE), "is a link or no plain file"),
        (lambda root: (root / "test" / "1.tar").write_bytes(b"\x1f\x8b" + bytes(3000)), "no tar"),
    ],
)
def test_damaged_sets(root: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(root)
    assert said in refusal(root)


def test_what_is_no_sample_is_passed_over(root: Path) -> None:
    members = [
        ("__meta__/x.png", b""),
        ("._a.png", b""),
        ("./dir/a.JPEG", b"12"),
        ("./dir/a.cls", b" 1\n"),
        ("README", b""),
    ]
    write_tar(root / "test" / "1.tar", members)
    _, folder = read(root)
    assert folder.pictures.names[3] == "1.tar:./dir/a"
    assert (folder.pictures.labels[3], folder.pictures.places[3].read()) == (1, b"12")


def test_the_folder_that_was_meant(root: Path, tmp_path: Path) -> None:
    for dataset in (OWN, "imagenet1k"):
        assert refusal(root / "test", dataset).endswith(f"Probably meant: {root}")
        assert refusal(tmp_path, dataset).endswith(f"Probably meant: {root}")
    (root / "test").rename(root / "train")
    assert "has train/nshards.txt and no test/nshards.txt" in refusal(root)
    (root / "train").rename(root / "other")
    assert "no set in CLIP_benchmark's webdataset layout" in refusal(root)
