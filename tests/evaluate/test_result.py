"""The JSON's parts, the table, and where it may be written."""

from pathlib import Path

import pytest

from evaluate.data.emoji import ClassEntry, Folder
from evaluate.data.sets import EMOJI
from evaluate.errors import RefusedError
from evaluate.result import check_writable, command_line, duplicate_names, notes, table, versions

ROW = {
    "top1": 12.345,
    "top5": 40.0,
    "mean_per_class": 11.0,
    "n": 200,
    "classes": 50,
    "chance": 2.0,
    "interval": [8.5, 17.6],
    "ties": 0,
}


def result(**changes: object) -> dict:
    concepts = ROW | {"per_vendor": {"one": ROW, "two": ROW}}
    return {
        "model": "m",
        "kind": "eq7",
        "image_size": 64,
        "images_per_s": 10.0,
        "duplicate_names": {"heldout-vendor": {}},
        "bad_images": [],
        "results": {"heldout_vendor": ROW, "heldout_vendor_noflags": ROW, "heldout_concepts": concepts},
    } | changes


def test_table_has_a_line_a_set_and_a_vendor() -> None:
    lines = table(result(), EMOJI).splitlines()
    assert len(lines) == 2 + 3 + 2 + 1
    assert lines[2].split() == ["Held-out", "vendor", "12.35", "8.5-17.6", "40.00", "11.00", "2.00", "200", "50"]
    assert lines[5].split() == ["one", "12.35", "8.5-17.6", "40.00", "11.00", "200"]
    assert len({len(line) for line in lines[:5]}) == 1, "columns line up"


def test_notes_name_what_a_reader_must_know() -> None:
    assert notes(result()) == []
    said = notes(
        result(
            duplicate_names={"heldout-vendor": {"sunglasses": ["1F576", "1F60E"]}},
            bad_images=[{"folder": "heldout-vendor", "shard": "0.tar", "key": "k", "reason": "r"}],
            results={"heldout_vendor": ROW | {"ties": 3}},
        )
    )
    assert "1 names belong to several classes (sunglasses)" in said[0]
    assert "1 unreadable pictures were left out: heldout-vendor/0.tar:k" in said[1]
    assert "3 of 200 pictures have another class exactly tied" in said[2]


def test_duplicate_names_list_their_concepts() -> None:
    classes = [ClassEntry(c, n, "g", "s", False) for c, n in (("1", "a"), ("2", "b"), ("3", "a"))]
    assert duplicate_names(Folder(Path("f"), classes, [], "")) == {"a": ["1", "3"]}


def test_command_line_can_be_typed() -> None:
    assert command_line(["zero-shot", "--root", "my data"]) == "python -m evaluate zero-shot --root 'my data'"


def test_versions_name_what_the_figures_depend_on() -> None:
    assert {"python", "torch", "open_clip_torch", "timm", "open_clip_linear"} <= set(versions())


def test_output_is_checked_by_trying(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder" / "result.json")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match="cannot write in"):
        check_writable(tmp_path / "file" / "result.json")
    with pytest.raises(RefusedError, match=r"is a folder\. Give a file name"):
        check_writable(tmp_path)
    with pytest.raises(RefusedError, match="cannot write in /proc"):
        check_writable(Path("/proc/result.json"))
