"""Linear probe and neighbours against scikit-learn called directly, what is refused, and the command."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.neighbors import KNeighborsClassifier

from data_prep.shards import ShardWriter
from evaluate import probe
from evaluate.__main__ import main
from evaluate.errors import RefusedError
from evaluate.probe import Features, linear_probe, nearest_neighbours

from .conftest import class_entry, png, write_set


def clusters(classes: int, each: int, seed: int, noise: float = 0.7) -> Features:
    """Unit features around one centre a class, the centres the same for every seed."""
    centres = np.random.default_rng(99).normal(size=(classes, 16))
    labels = np.repeat(np.arange(classes), each)
    rows = centres[labels] + noise * np.random.default_rng(seed).normal(size=(len(labels), 16))
    return Features((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels, [])


@pytest.mark.parametrize("classes", [2, 9])
def test_the_linear_probe_is_scikit_learns(classes: int) -> None:
    train, test = clusters(classes, 30, 0, noise=1.5), clusters(classes, 11, 1, noise=1.5)
    found = linear_probe(train, test, seed=3)
    direct = LogisticRegression(C=found["c"], max_iter=1000, tol=1e-8).fit(train.rows, train.labels)
    assert found["top1"] == pytest.approx(100 * direct.score(test.rows, test.labels))
    guesses = direct.predict(test.rows)
    assert found["mean_per_class"] == pytest.approx(100 * balanced_accuracy_score(test.labels, guesses))
    best_five = direct.predict_proba(test.rows).argsort(axis=1)[:, -5:]
    if classes > 5:
        right = [label in five for label, five in zip(test.labels, best_five, strict=True)]
        assert found["top5"] == pytest.approx(100 * np.mean(right))
    assert found["n"] == 11 * classes
    assert found["converged"]
    low, high = found["interval"]
    assert low < found["top1"] < high


def test_c_is_the_best_on_the_pictures_set_aside() -> None:
    """Each value of the grid fitted anew gives the accuracy that the grid of the result says."""
    train = clusters(6, 20, 0, noise=2.0)
    found = linear_probe(train, clusters(6, 5, 1), seed=7)
    drawn = np.random.default_rng(7).permutation(120)
    aside, rest = drawn[:24], drawn[24:]
    assert found["validation"] == 24
    assert list(found["grid"]) == [f"{c:g}" for c in probe.GRID]
    for c in probe.GRID[1:6]:
        direct = LogisticRegression(C=c, max_iter=1000, tol=1e-8).fit(train.rows[rest], train.labels[rest])
        score = 100 * direct.score(train.rows[aside], train.labels[aside])
        assert found["grid"][f"{c:g}"] == pytest.approx(score, abs=100 / 24 + 1e-6), "one picture at most is on an edge"
    best = max(found["grid"].values())
    assert found["c"] == min(c for c in probe.GRID if found["grid"][f"{c:g}"] == best)
    assert linear_probe(train, clusters(6, 5, 1), seed=7) == found


def test_many_classes_are_learnt_too() -> None:
    """scikit-learn's own tolerance would end such a fit before its first step."""
    found = linear_probe(clusters(200, 5, 0, noise=0.2), clusters(200, 1, 1, noise=0.2), seed=0)
    assert found["top1"] > 80
    assert found["iterations"] > 20


def test_neighbours_are_those_by_cosine() -> None:
    train, test = clusters(7, 8, 0, noise=1.0), clusters(7, 6, 1, noise=1.0)
    found = nearest_neighbours(train, test)
    assert list(found) == ["k1", "k5", "k20"]
    for k in (1, 5, 20):
        direct = KNeighborsClassifier(k, metric="cosine", algorithm="brute").fit(train.rows, train.labels)
        assert found[f"k{k}"]["top1"] == pytest.approx(100 * direct.score(test.rows, test.labels))
    nearest = (test.rows.astype(np.float64) @ train.rows.astype(np.float64).T).argmax(axis=1)
    assert found["k1"]["top1"] == pytest.approx(100 * (train.labels[nearest] == test.labels).mean())
    few = Features(train.rows[::10], train.labels[::10], [])
    assert list(nearest_neighbours(few, test)) == ["k1", "k5"]


@pytest.mark.filterwarnings("error")
def test_one_picture_a_class_is_enough_for_neighbours() -> None:
    assert nearest_neighbours(clusters(30, 1, 0, noise=0.1), clusters(30, 2, 1, noise=0.1))["k1"]["top1"] == 100


def test_classes_without_training_pictures_are_wrong_and_no_error() -> None:
    train, test = clusters(6, 10, 0, noise=0.1), clusters(6, 4, 1, noise=0.1)
    seen = train.labels % 2 == 1
    some = Features(train.rows[seen], train.labels[seen], [])
    assert linear_probe(some, test, seed=0)["top1"] == 50
    assert nearest_neighbours(some, test)["k5"]["top1"] == 50


def test_too_few_training_pictures_are_refused() -> None:
    one_class = Features(clusters(1, 20, 0).rows, np.zeros(20, dtype=np.int64), [])
    with pytest.raises(RefusedError, match="20 training pictures of 1 classes are too few"):
        linear_probe(one_class, one_class, seed=0)


def drawn(seed: int, vendor: int) -> bytes:
    """The noise of a class, by one of its vendors."""
    image = Image.open(io.BytesIO(png(seed)))
    buffer = io.BytesIO()
    image.point(lambda value: min(value + vendor, 255)).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def emoji_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An emoji set whose vendors draw the same noise a class, a little lighter each; features tell them apart."""
    root = tmp_path_factory.mktemp("parts")
    classes = [class_entry(i) for i in range(12)]
    for name, vendors, first in (("train", ("a", "b", "c"), 0), ("heldout-vendor", ("d",), 3)):
        write_set(
            root / name, classes, vendors, image=lambda place, first=first: drawn(place % 12, first + place // 12)
        )
    write_set(root / "heldout-concepts", [class_entry(i) for i in range(30, 33)], ("a",))
    return root


def arguments(nano: tuple[str, Path], root: Path, output: Path, *more: str) -> list[str]:
    places = ["--train-root", str(root), "--root", str(root), "--output", str(output)]
    return ["probe", "--model", nano[0], "--pretrained", str(nano[1]), "--dataset", "emoji", *places, *more]


def test_the_command_writes_json_and_a_table(
    nano: tuple[str, Path], emoji_parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(nano, emoji_parts, tmp_path / "r.json", "--device", "cpu")) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert {name: row["top1"] for name, row in result["results"].items()} == {
        "linear": 100, "k1": 100, "k5": 100, "k20": result["results"]["k20"]["top1"],
    }  # fmt: skip
    assert result["pictures"] == {"training": 36, "test": 12}
    assert result["classes"] == 12
    assert result["bad_images"] == {"training": [], "test": []}
    assert {"scikit-learn", "torch"} <= set(result["versions"])
    table = capsys.readouterr().out
    assert "linear         100.00" in table
    assert "36 training and 12 test pictures of 12 classes" in table

    assert (
        main(arguments(nano, emoji_parts, tmp_path / "k.json", "--device", "cpu", "--method", "knn", "--limit", "24"))
        == 0
    )
    result = json.loads((tmp_path / "k.json").read_text())
    assert (result["pictures"], result["limit"]) == ({"training": 24, "test": 12}, 24)
    assert list(result["results"]) == ["k1", "k5", "k20"]
    assert "A quick look at 24 pictures" in capsys.readouterr().out


def test_pictures_in_both_parts_are_named_and_many_of_them_refused(
    nano: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = [class_entry(i) for i in range(12)]
    write_set(tmp_path / "train", classes, ("a", "b", "c"), image=lambda place: drawn(place % 12, place // 12))
    write_set(tmp_path / "heldout-concepts", [class_entry(i) for i in range(30, 33)], ("a",))
    for shared, code in ((1, 0), (2, 1)):  # of 12, where a tenth is let pass
        shutil.rmtree(tmp_path / "heldout-vendor", ignore_errors=True)
        write_set(
            tmp_path / "heldout-vendor",
            classes,
            ("d",),
            image=lambda place, shared=shared: drawn(place, 2 if place < shared else 9),
        )
        assert main(arguments(nano, tmp_path, tmp_path / "r.json", "--method", "knn")) == code
        said = capsys.readouterr()
        if code == 0:
            (name,) = json.loads((tmp_path / "r.json").read_text())["shared"]
            assert f"1 test pictures are also training pictures, first {name}." in said.out
        else:
            assert "2 of the 12 test pictures are also training pictures of their class" in said.err


def test_parts_that_do_not_fit_are_refused(
    nano: tuple[str, Path], emoji_parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    write_set(other / "train", [class_entry(i) for i in range(1, 13)])
    same = tmp_path / "same"
    same.mkdir()
    (same / "train").symlink_to(emoji_parts / "heldout-vendor")
    for root, message in (
        (other, "not the same ones in the same order"),
        (same, "12 of the 12 test pictures are also training"),
    ):
        words = arguments(nano, emoji_parts, tmp_path / "r.json")
        words[words.index("--train-root") + 1] = str(root)
        assert main(words) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()


def test_training_pictures_are_the_train_split_of_clip_benchmarks_layout(
    nano: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split, pictures in (("train", 15), ("test", 10)):
        (tmp_path / split).mkdir()
        with ShardWriter(tmp_path / split / "0.tar") as writer:
            for number in range(pictures):
                picture = drawn(number % 5, number // 5 + (split == "test") * 7)
                writer.write(f"s{number:07d}", {"png": picture, "cls": str(number % 5).encode()})
        (tmp_path / split / "nshards.txt").write_text("1")
    (tmp_path / "classnames.txt").write_text("a\nb\nc\nd\ne\n")
    words = arguments(nano, tmp_path, tmp_path / "r.json", "--method", "knn")
    words[words.index("emoji")] = "wds/mine"
    assert main(words) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["pictures"] == {"training": 15, "test": 10}
    assert result["results"]["k1"]["top1"] == 100

    (tmp_path / "train" / "nshards.txt").unlink()
    capsys.readouterr()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "error: training pictures: " in said
    assert "has test/nshards.txt and no train/nshards.txt" in said
