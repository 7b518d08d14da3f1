"""Reading a folder, and every reason to refuse it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.manifest import read_manifest, write_manifest
from data_prep.shards import ShardWriter
from evaluate.data.emoji import read_folder
from evaluate.errors import RefusedError

FOLDER = "heldout-vendor"


def test_reads_every_sample_with_its_class(emoji_root: Path) -> None:
    folder = read_folder(emoji_root, FOLDER)
    assert len(folder.classes) == len(folder.samples) == 20
    assert [s.label for s in folder.samples] == list(range(20))
    assert [c.flag for c in folder.classes].count(True) == 3
    first = folder.samples[0]
    assert (first.shard, first.key, first.vendor) == ("00000.tar", "drawn-by-one-1F300", "drawn-by-one")
    assert first.credit == "drawn-by-one (CC-BY-4.0)"
    assert len(folder.manifest_sha256) == 64


def test_several_vendors_share_a_class(emoji_root: Path) -> None:
    folder = read_folder(emoji_root, "heldout-concepts")
    assert len(folder.classes) == 6
    assert sorted((s.vendor, s.label) for s in folder.samples) == [(v, i) for v in ("one", "two") for i in range(6)]


def edit_classes(change: Callable[[list], list]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        file = path / "classes.json"
        file.write_text(json.dumps(change(json.loads(file.read_text()))))

    return damage


def rewrite_first_shard(path: Path, members: dict[str, bytes]) -> None:
    entries = read_manifest(path)
    with ShardWriter(path / entries[0].shard) as writer:
        writer.write("one", members)
    write_manifest(path, [writer.close(), *entries[1:]])


def damage_bytes(path: Path) -> None:
    shard = path / "00001.tar"
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)


def wrong_count(path: Path) -> None:
    lines = [json.loads(line) for line in (path / "manifest.jsonl").read_text().splitlines()]
    lines[0]["samples"] += 1
    (path / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


REFUSALS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda p: (p / "manifest.jsonl").unlink(), r"manifest\.jsonl does not exist"),
    "no shard": (lambda p: (p / "00001.tar").unlink(), r"00001\.tar is named in the manifest and missing"),
    "changed shard": (damage_bytes, r"00001\.tar is not the file its manifest describes"),
    "wrong count": (wrong_count, r"holds 7 samples, its manifest says 8"),
    "no classes": (lambda p: (p / "classes.json").unlink(), r"classes\.json is missing"),
    "classes no JSON": (lambda p: (p / "classes.json").write_text("{"), r"not a list of classes"),
    "classes of another form": (edit_classes(lambda c: [{"name": "x"}]), r"not a list of classes \(KeyError"),
    "classes empty": (edit_classes(lambda c: []), r"lists no class"),
    "classes unsorted": (edit_classes(lambda c: c[::-1]), r"not sorted by concept"),
    "class twice": (edit_classes(lambda c: [c[0], *c]), r"names one twice"),
    "unknown concept": (edit_classes(lambda c: c[:-1]), r"'1F313', which is not in classes\.json"),
    "empty class": (
        edit_classes(lambda c: [*c, c[-1] | {"concept": "1FFFF", "name": "nothing"}]),
        r"1 classes have no picture: 1FFFF \(nothing\)",
    ),
    "no png": (lambda p: rewrite_first_shard(p, {"jpg": b"x", "json": b"{}"}), r"'one' has no \.png \(found \['jpg'"),
    "no concept": (lambda p: rewrite_first_shard(p, {"png": b"x", "json": b"{}"}), r"gives no concept and vendor"),
    "json no JSON": (lambda p: rewrite_first_shard(p, {"png": b"x", "json": b"}"}), r"gives no concept and vendor"),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refuses(own_root: Path, reason: str) -> None:
    damage, message = REFUSALS[reason]
    damage(own_root / FOLDER)
    with pytest.raises(RefusedError, match=message) as error:
        read_folder(own_root, FOLDER)
    assert "python -m data_prep emoji" in str(error.value)


def test_a_missing_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no such folder"):
        read_folder(tmp_path / "nothing", FOLDER)
    with pytest.raises(RefusedError, match=r"holds nothing"):
        read_folder(tmp_path, FOLDER)


def test_the_folder_probably_meant_is_named(emoji_root: Path) -> None:
    with pytest.raises(RefusedError, match=f"Probably meant: --root {emoji_root}"):
        read_folder(emoji_root / FOLDER, FOLDER)
    with pytest.raises(RefusedError, match=f"Probably meant: --root {emoji_root}"):
        read_folder(emoji_root.parent, FOLDER)
