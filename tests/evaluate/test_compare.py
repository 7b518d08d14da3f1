"""Two results beside each other: McNemar's test on what was measured by hand, and results that cannot be compared."""

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluate.__main__ import main
from evaluate.compare import compare, differences, mcnemar, read_result, table
from evaluate.errors import RefusedError
from evaluate.result import TOP_FIGURES, packed_hits, unpacked_hits
from evaluate.zero_shot import figures_of

from .measured import folder_of, measured_of

LABELS = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
NAMES = [f"class {index}" for index in range(8)]
RIGHT, FIFTH, WRONG = 0, 1, 2


def guesses(kinds: list[int]) -> dict[int, list[int]]:
    """Five guesses a picture: right at once, right at last, or wrong."""
    made = {}
    for number, (label, kind) in enumerate(zip(LABELS, kinds, strict=True)):
        others = [index for index in range(8) if index != label]
        made[number] = {RIGHT: [label, *others[:4]], FIFTH: [*others[:4], label], WRONG: others[:5]}[kind]
    return made


def result(path: Path, kinds: list[int], bad: tuple[int, ...] = (), name: str = "set", **changes: Any) -> Path:
    measured = measured_of(folder_of(LABELS, NAMES), guesses(kinds), bad)
    figures = figures_of(measured, "set")
    content = {
        "format": 1,
        "model": path.stem,
        **{key: figures[key] for key in TOP_FIGURES},
        "results": {name: figures},
        "root": "here",
        "limit": None,
        "lists": {"": measured.folder.pictures.list_sha256},
        "classes": {"list": "mine", "count": 8, "sha256": "0"},
        "hits": {name: packed_hits(measured, "set")},
    }
    path.write_text(json.dumps(content | changes))
    return path


A = [RIGHT, RIGHT, RIGHT, RIGHT, RIGHT, RIGHT, WRONG, WRONG, WRONG, FIFTH]
B = [RIGHT, WRONG, WRONG, FIFTH, WRONG, WRONG, RIGHT, WRONG, WRONG, WRONG]


def test_hits_come_back_as_they_were_packed() -> None:
    measured = measured_of(folder_of(LABELS, NAMES), guesses(A), bad=(4, 9))
    found = unpacked_hits(json.loads(json.dumps(packed_hits(measured, "set"))))
    assert found["labels"].tolist() == LABELS
    assert np.flatnonzero(~found["readable"]).tolist() == [4, 9]
    assert np.flatnonzero(found["top1"]).tolist() == [0, 1, 2, 3, 5]
    assert np.flatnonzero(found["top5"]).tolist() == [0, 1, 2, 3, 5]


def test_hits_are_of_the_sets_pictures_alone() -> None:
    folder = folder_of(LABELS, NAMES, {"set": [1, 2, 3, 4]})
    measured = measured_of(folder, {n: g for n, g in guesses(A).items() if LABELS[n] > 0}, bad=(2,))
    found = unpacked_hits(packed_hits(measured, "set"))
    assert found["labels"].tolist() == LABELS[2:]
    assert found["readable"].tolist() == [False] + [True] * 7
    assert found["top1"].tolist() == [False, True, True, True, False, False, False, False]


def test_figures_and_test_by_hand(tmp_path: Path) -> None:
    a, b = (read_result(result(tmp_path / f"{n}.json", kinds)) for n, kinds in (("a", A), ("b", B)))
    row = compare(a, b)["set"]
    assert row["n"] == 10
    # Six of A's first guesses are right and two of B's; five pictures are A's alone, one is B's alone.
    assert row["top1"] == {
        "a": 60.0,
        "b": 20.0,
        "difference": -40.0,
        "only_a": 5,
        "only_b": 1,
        "p": pytest.approx(14 / 64),
    }
    assert (row["top5"]["only_a"], row["top5"]["only_b"]) == (5, 1)
    assert row["mean_per_class"] == {
        "a": pytest.approx(60.0),
        "b": pytest.approx(20.0),
        "difference": pytest.approx(-40.0),
    }
    assert "-40.00" in table({"set": row}, a, b)


def test_pictures_that_either_could_not_read_are_left_out(tmp_path: Path) -> None:
    a = read_result(result(tmp_path / "a.json", A, bad=(1, 2)))
    b = read_result(result(tmp_path / "b.json", B, bad=(2, 6)))
    row = compare(a, b)["set"]
    assert (row["n"], row["top1"]["only_a"], row["top1"]["only_b"]) == (7, 3, 0)
    assert row["top1"]["a"] == pytest.approx(100 * 4 / 7)


def test_mcnemar_is_a_fair_coin() -> None:
    for ours, theirs in ((0, 0), (0, 5), (7, 3), (12, 1)):
        n, most = ours + theirs, max(ours, theirs)
        tail = sum(math.comb(n, k) for k in range(most, n + 1)) / 2**n
        assert mcnemar(ours, theirs) == pytest.approx(min(1.0, 2 * tail) if n else 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lists": {"": "f" * 64}, "root": "there", "limit": 10},
            r"about other pictures .*there .--limit 10.*Evaluate both",
        ),
        ({"classes": {"list": "other"}}, "guess among other classes"),
        ({"name": "other"}, "no set in common"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    a, b = read_result(result(tmp_path / "a.json", A)), read_result(result(tmp_path / "b.json", B, **changes))
    with pytest.raises(RefusedError, match=message):
        compare(a, b)


def test_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    with pytest.raises(RefusedError, match="cannot be read: No such file"):
        read_result(file)
    for content, message in (
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "has no hits"),
        ('{"model": "m"}', "has no hits, lists, classes, results"),
    ):
        file.write_text(content)
        with pytest.raises(RefusedError, match=message):
            read_result(file)
    packed = json.loads(result(file, A).read_text())["hits"]["set"]
    counts = ({"count": 11}, {"count": 1}, {"count": math.inf})
    for damage in ({"top1": "!"}, {"labels": packed["top1"]}, {"top5": None}, *counts):
        result(file, A, hits={"set": packed | damage})
        with pytest.raises(RefusedError, match=r"is damaged or was edited .*Evaluate the checkpoint again"):
            read_result(file)
    for changes, message in (
        ({"format": 99}, "has format 99, this version reads 1"),
        ({"results": []}, "not as `evaluate zero-shot` writes it"),
        ({"results": {"set": [1]}}, "is damaged or was edited"),
        ({"results": {"set": {}}}, "is damaged or was edited"),
        ({"results": {}}, "its figures of"),
        ({"top1": 61.0}, "not those of its first set"),
    ):
        result(file, A, **changes)
        with pytest.raises(RefusedError, match=message):
            read_result(file)


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(result(tmp_path / f"{n}.json", kinds)) for n, kinds in (("a", A), ("b", B))]
    assert main(["compare", *files]) == 0
    assert "McNemar p" in capsys.readouterr().out
    assert main(["compare", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sets"]["set"]["top1"]["difference"] == -40.0
    assert main(["compare", files[0], str(tmp_path / "none.json")]) == 1


def flipped(bits: str) -> str:
    return base64.b64encode(bytes(255 - octet for octet in base64.b64decode(bits))).decode()


@pytest.mark.parametrize("how", ["all top-1 bits flipped", "cut", "other figures", "another mean", "no lists"])
def test_a_result_that_contradicts_itself_is_refused(tmp_path: Path, how: str) -> None:
    path = result(tmp_path / "a.json", A)
    assert read_result(path)["model"] == "a"
    content = json.loads(path.read_text())
    match how:
        case "all top-1 bits flipped":
            content["hits"]["set"]["top1"] = flipped(content["hits"]["set"]["top1"])
        case "cut":
            content["hits"]["set"]["top1"] = base64.b64encode(b"\x00").decode()
        case "other figures":
            content["results"]["set"]["top1"] = 61.0
        case "another mean":
            content["results"]["set"]["mean_per_class"] += 1
        case "no lists":
            content["lists"] = None
    path.write_text(json.dumps(content))
    with pytest.raises(RefusedError, match=r"Evaluate the checkpoint again"):
        read_result(path)


def test_other_labels_are_refused_and_another_protocol_is_said(tmp_path: Path) -> None:
    ours, theirs = {"name": "full", "texts": ["a {}", "the {}"]}, {"name": "full", "texts": ["a {}", "{}!"]}
    a = read_result(result(tmp_path / "a.json", A, decoder="pillow", templates=ours))
    b = read_result(result(tmp_path / "b.json", B, decoder="torchvision", templates=theirs))
    said = [
        "templates: full (2 texts) in a and full (2) in b, one of them has 'the {}'.",
        "decoder: pillow in a and torchvision in b.",
    ]
    assert differences(a, b) == said
    assert table(compare(a, b), a, b).endswith("\n".join(said))
    assert differences(a, a) == []
    b["hits"]["set"]["labels"] = b["hits"]["set"]["labels"][::-1]
    with pytest.raises(RefusedError, match="other classes"):
        compare(a, b)
