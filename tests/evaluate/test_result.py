"""The JSON's parts, the table, and where it may be written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluate import page
from evaluate.data.sets import EMOJI, EvalSet, Templates, get_dataset
from evaluate.errors import RefusedError
from evaluate.models import load_model
from evaluate.result import Protocol, bad_name, check_writable, command_line, notes, table, versions, zero_shot_result

from .measured import folder_of, measured_of

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


PARTS = ("title", "kicker", "heading", "summary", "tiles", "sections", "footer")


def result(**changes: object) -> dict[str, Any]:
    concepts = ROW | {"per_vendor": {"one": ROW, "two": ROW}}
    return {
        "model": "m",
        "kind": "eq7",
        "image_size": 64,
        "decoder": "pillow",
        "images_per_s": 10.0,
        "throughput": {"images_per_s": 10.0, "prompts_per_s": None},
        "about": [],
        "partial": False,
        "counts": {"images": 200, "bad_images": 0},
        "bad_images": [],
        "read_otherwise": {},
        "results": {"heldout_vendor": ROW, "heldout_vendor_noflags": ROW, "heldout_concepts": concepts},
    } | changes


def test_table_has_a_line_a_set_and_a_vendor() -> None:
    lines = table(result(), EMOJI.sets).splitlines()
    assert len(lines) == 2 + 3 + 2 + 1
    assert lines[2].split() == ["Held-out", "vendor", "12.35", "8.5-17.6", "40.00", "11.00", "2.00", "200", "50"]
    assert lines[5].split() == ["one", "12.35", "8.5-17.6", "40.00", "11.00", "200"]
    assert len({len(line) for line in lines[:5]}) == 1, "columns line up"
    fast = table(result(decoder="torchvision", throughput={"prompts_per_s": 7.5}), EMOJI.sets)
    assert fast.endswith("m (eq7), 64 px, 10.0 images/s, 7.5 prompts/s, decoded by torchvision")


def test_notes_name_what_a_reader_must_know() -> None:
    assert notes(result()) == []
    said = notes(
        result(
            about=["A sentence."],
            partial=True,
            bad_images=[{"folder": "heldout-vendor", "shard": "0.tar", "key": "k", "reason": "r"}],
            read_otherwise={"heldout-vendor": {"rotation": 2}},
            results={"heldout_vendor": ROW | {"ties": 3, "merged_top1": 13.5}},
        )
    )
    assert said == [
        "A sentence.",
        "Partial: 200 pictures, fewer than the whole set.",
        "Unreadable pictures, left out: 1 (heldout-vendor/0.tar:k).",
        "Read as a person sees them, which OpenCLIP would not: 2 with rotation (--predictions names them).",
        "heldout_vendor: 3 of 200 pictures have another class exactly tied with the right one.",
        "heldout_vendor: top-1 is 13.50 % where classes of one name count as one.",
    ]


def test_a_picture_of_a_tree_is_named_as_it_lies() -> None:
    assert bad_name({"folder": "", "shard": "n01440764", "key": "x.JPEG"}) == "n01440764/x.JPEG"
    assert bad_name({"folder": "", "shard": "0.tar", "key": "s01"}) == "0.tar:s01"


def test_the_document_says_what_was_measured(nano: tuple[str, Path]) -> None:
    folder = folder_of([0, 1, 2, 1], ["cat", "dog", "cow"])
    measured = measured_of(folder, {0: [0, 1, 2], 1: [2, 1, 0], 2: [2, 0, 1], 3: [1, 0, 2]}, bad=(3,))
    protocol = Protocol(Templates("full", ("{}",)), 8, "cpu", 1, False, 0.5, None, None, 0, None)
    dataset = replace(get_dataset("wds/mine"), sets=(EvalSet("set", "Mine"),), about=("Known.",))

    def made(dataset: Any, chosen: bool = False, **changes: Any) -> dict[str, Any]:
        options = replace(protocol, **changes)
        own = {"": replace(measured, folder=replace(folder, chosen=chosen))}
        return zero_shot_result(load_model(*nano), dataset, "root", own, options, prompts=(9, 2.0), argv=["x"])

    found = made(dataset)
    assert (found["top1"], found["top5"], found["n"]) == (pytest.approx(200 / 3), 100.0, 3)
    assert found["mean_per_class"] == pytest.approx(200 / 3)
    assert (found["bad"], found["partial"], found["about"]) == (1, False, ["Known."])
    assert found["bad_images"] == [{"folder": "", "shard": "folder", "key": "3.png", "reason": "broken"}]
    assert found["list_sha256"] == found["lists"][""] == folder.pictures.list_sha256
    assert (found["classes"]["list"], found["classes"]["count"]) == ("classnames.txt", 3)
    assert found["throughput"] == {"images_per_s": 1.5, "prompts_per_s": 4.5}
    assert (found["decoder"], found["precision"], found["max_bad"]) == ("pillow", "fp32", 0.5)
    assert list(found)[-1] == "hits", "what nobody reads comes last"
    # Fewer pictures than the official set, or a choice of them, are marked.
    assert made(replace(dataset, official=5))["partial"]
    assert not made(replace(dataset, official=3))["partial"]
    assert made(replace(dataset, official=4))["partial"], "one of the four cannot be read"
    assert not made(replace(dataset, official=3), limit=4)["partial"], "a limit that leaves none out"
    assert made(dataset, limit=2, chosen=True)["partial"]
    assert not made(dataset, limit=4)["partial"]
    assert made(dataset, per_class=2, seed=7)["seed"] == 7


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


def test_what_no_command_here_wrote_is_not_replaced(tmp_path: Path) -> None:
    for name, content in (
        ("classnames.txt", b"cat\ndog\n"),
        ("classes.json", b'{"format": 1, "classes": []}'),
        ("list.json", b"[1]"),
        ("page.html", b"<!doctype html><p>mine"),
        ("shard.parquet", b"PAR1 url caption PAR1"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RefusedError, match="was not written by `evaluate`"):
            check_writable(tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    for name, content in (
        ("empty", b""),
        ("r.json", b'{"format": 1, "versions": {}, "command": "python -m evaluate probe"}'),
        ("result.json", b'{"checkpoint_sha256": "0", "beside": {}}'),
        ("report.html", page.fill(dict.fromkeys(PARTS, "")).encode()),
        ("p.parquet", b"PAR1 guess_names PAR1"),
    ):
        (tmp_path / name).write_bytes(content)
        check_writable(tmp_path / name)
    for name in ("new.jpg", "0.tar"):
        with pytest.raises(RefusedError, match="has the name of data"):
            check_writable(tmp_path / name)


def test_what_a_command_reads_is_no_place_for_its_output(tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes(b"weights")
    (tmp_path / "linked").symlink_to(tmp_path)
    with pytest.raises(RefusedError, match=r"--output .* reads or writes otherwise"):
        check_writable(tmp_path / "linked" / "checkpoint.pt", keep=(None, checkpoint))
    check_writable(tmp_path / "other.json", keep=(None, checkpoint))


def test_passwords_in_addresses_are_not_written_down() -> None:
    words = ["zero-shot", "--root", "https://user:secret@host/set@2", "--output", "a@b.json"]
    assert command_line(words) == "python -m evaluate zero-shot --root https://host/set@2 --output a@b.json"
