"""Tests of data_prep.emoji.build: the whole set, built from real tarballs with real rendering."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_prep.emoji.build import STATS, build
from data_prep.emoji.sets import SETS
from data_prep.emoji.settings import Catalogue, Settings
from data_prep.errors import DataError
from data_prep.manifest import read_manifest, sha256_file
from data_prep.shards import decode_image, read_samples

pytestmark = pytest.mark.usefixtures("no_npm")
SMALL = Settings(image_size=16)


def build_here(shop: Any, name: str = "set", settings: Settings = SMALL, workers: int = 1) -> dict[str, Any]:
    return build(shop.base / name, shop.cache, settings, workers, shop.catalogue)


def samples(folder: Path) -> list[dict[str, Any]]:
    """Every sample that the manifest names, its JSON read."""
    found = []
    for entry in read_manifest(folder):
        of_shard = list(read_samples(folder / entry.shard))
        assert len(of_shard) == entry.samples
        assert sha256_file(folder / entry.shard) == entry.sha256
        found += [{**sample, "json": json.loads(sample["json"])} for sample in of_shard]
    return found


def shard_hashes(folder: Path) -> list[tuple[str, str]]:
    return [(entry.shard, entry.sha256) for name in SETS for entry in read_manifest(folder / name)]


def test_sets_hold_what_they_promise(shop: Any) -> None:
    stats = build_here(shop)
    folder = shop.base / "set"
    unseen = shop.unseen
    assert len(unseen) == 2
    by_set = {name: samples(folder / name) for name in SETS}
    train, vendor, concepts = (by_set[name] for name in SETS)

    assert {s["json"]["vendor"] for s in train} == {"letters", "named", "photos"}
    assert not unseen & {s["json"]["concept"] for s in train}
    assert {s["json"]["vendor"] for s in vendor} == {"twemoji"}
    assert {s["json"]["concept"] for s in vendor} == {s["json"]["concept"] for s in train}
    assert {s["json"]["concept"] for s in concepts} == unseen
    assert {s["json"]["vendor"] for s in concepts} >= {"letters", "named", "twemoji"}
    keys = [s["__key__"] for part in by_set.values() for s in part]
    assert len(keys) == len(set(keys)) == 26 * 3 + 13 == sum(part["pictures"] for part in stats["sets"].values())

    for name, part in by_set.items():
        classes = json.loads((folder / name / "classes.json").read_text(encoding="utf-8"))
        assert [c["concept"] for c in classes] == sorted({s["json"]["concept"] for s in part})
        assert [c["name"] for c in classes if c["flag"]] in ([], ["flag: Here & There"])
        for sample in part:
            assert decode_image(sample["png"]).size == (16, 16)
            assert sample["json"]["captions"][0] == sample["json"]["name"]
            assert sample["txt"].decode() in (
                sample["json"]["captions"] if name == "train" else [sample["json"]["name"]]
            )
    assert len({s["txt"] for s in train if s["json"]["name"] != s["txt"].decode()}) > 5


def test_sample_json_and_readme_name_the_source(shop: Any) -> None:
    build_here(shop)
    sample = next(s for s in samples(shop.base / "set" / "train") if s["json"]["vendor"] == "named")
    assert sample["json"]["license"] == "CC-BY-SA-4.0"
    assert sample["json"]["package"] == "@test/named@1.0.0"
    page = (shop.base / "set" / "README.md").read_text(encoding="utf-8")
    for words in ("by named", "CC-BY-SA-4.0", "share-alike", "--image-size 16", "siblings", "Every picture rendered"):
        assert words in page


def test_two_builds_are_equal_whatever_the_workers(shop: Any) -> None:
    build_here(shop, "one", workers=1)
    build_here(shop, "two", workers=2)
    base = shop.base
    assert shard_hashes(base / "one") == shard_hashes(base / "two")
    for name in SETS:
        assert (base / "one" / name / "classes.json").read_bytes() == (
            base / "two" / name / "classes.json"
        ).read_bytes()


def test_another_vendor_held_out_leaves_the_test_vendor_out(shop: Any) -> None:
    stats = build_here(shop, settings=Settings(16, "letters"))
    assert set(stats["sets"]["heldout-vendor"]["vendors"]) == {"letters"}
    assert set(stats["sets"]["train"]["vendors"]) == {"named", "photos"}
    assert "twemoji" not in json.dumps(stats["sets"])
    assert "@test/twemoji" not in json.dumps(stats["settings"]["packages"])


def test_without_share_alike(shop: Any) -> None:
    stats = build_here(shop, settings=Settings(16, share_alike=False))
    assert set(stats["sets"]["train"]["vendors"]) == {"letters", "photos"}
    assert "share-alike" not in (shop.base / "set" / "README.md").read_text().replace("--no-share-alike", "")


def test_drawing_shared_with_a_held_out_concept_is_not_trained_on(shop: Any) -> None:
    hidden = sorted(shop.unseen)[0].lower()
    sibling = next(code for code in shop.hexcodes.values() if code not in shop.unseen).lower()
    files = shop.iconify(10, with_chars=True)
    chars = json.loads(files["chars.json"])
    chars[sibling] = chars[hidden]
    shop.restock("letters", {**files, "chars.json": json.dumps(chars).encode()})
    build_here(shop)
    trained = {s["__key__"].decode() for s in samples(shop.base / "set" / "train")}
    assert f"letters-{sibling}" not in trained
    assert f"named-{sibling}" in trained


# ---------------------------------------------------------------- what goes wrong


def test_built_set_is_found_again(shop: Any) -> None:
    assert build_here(shop)["built"]
    before = shard_hashes(shop.base / "set")
    (shop.cache / "test-letters-1.0.0.tgz").unlink()  # not needed any more
    again = build_here(shop)
    assert not again["built"]
    assert shard_hashes(shop.base / "set") == before


def test_other_settings_are_refused(shop: Any) -> None:
    build_here(shop)
    with pytest.raises(
        DataError, match=r"other settings \(seed was 0 and is now 1\); give another --output, or remove"
    ):
        build_here(shop, settings=Settings(16, seed=1))


def test_damaged_set_is_refused(shop: Any) -> None:
    build_here(shop)
    (shop.base / "set" / "train" / "00000.tar").unlink()
    with pytest.raises(DataError, match=r"is damaged \(.*00000\.tar is named in the manifest and missing.*remove it"):
        build_here(shop)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_foreign_folder_is_refused_and_kept(shop: Any, content: str | None) -> None:
    folder = shop.base / "set"
    folder.mkdir()
    (folder / "precious").touch()
    if content is not None:
        (folder / STATS).write_text(content)
    with pytest.raises(DataError, match="exists and is no emoji set"):
        build_here(shop)
    assert (folder / "precious").exists()


def broken(shop: Any, count: int) -> dict[str, bytes]:
    """An Iconify set in which `count` drawings are no SVG."""
    files = shop.iconify(10, with_chars=True)
    icons = json.loads(files["icons.json"])
    for name in sorted(icons["icons"])[:count]:
        icons["icons"][name]["body"] = "<unclosed"
    return {**files, "icons.json": json.dumps(icons).encode()}


def test_many_pictures_that_fail_stop_the_build(shop: Any) -> None:
    shop.restock("letters", broken(shop, 3))
    with pytest.raises(DataError, match="3 of 91 pictures failed to render, more than 1%; the first is letters-1f"):
        build_here(shop)
    assert [path.name for path in shop.base.iterdir()] == ["npm"]


def test_few_pictures_that_fail_are_named(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.emoji.build._MOST_FAILED", 0.05)
    shop.restock("letters", broken(shop, 1))
    stats = build_here(shop)
    (key,) = stats["failed"]
    assert key.startswith("letters-1f")
    assert "ValueError" in stats["failed"][key]
    assert key not in {s["__key__"].decode() for name in SETS for s in samples(shop.base / "set" / name)}
    assert f"`{key}`" in (shop.base / "set" / "README.md").read_text()


def test_vendor_below_its_least_count_leaves_nothing(shop: Any) -> None:
    shop.restock("named", {"icons.json": b'{"icons": {}}', "chars.json": b"{}"})
    with pytest.raises(DataError, match=r"named .* gave 0 pictures, at least 26 were expected"):
        build_here(shop)
    assert [path.name for path in shop.base.iterdir()] == ["npm"]


def test_too_few_concepts(shop: Any) -> None:
    with pytest.raises(DataError, match="no picture is left for train"):
        build(
            shop.base / "set",
            shop.cache,
            SMALL,
            1,
            Catalogue(shop.catalogue.concepts, shop.catalogue.vendors[3:]),
        )


_KILLED_BUILD = """
import os, pickle, signal, sys
from pathlib import Path
from data_prep.emoji import build, sets
from data_prep.emoji.settings import Settings

class KilledAtSecondSet(sets.ShardWriter):
    def close(self):
        if self.path.parent.name == "heldout-vendor":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().close()

if __name__ == "__main__":
    sets.ShardWriter = KilledAtSecondSet
    output, cache, catalogue = (Path(word) for word in sys.argv[1:])
    build.build(output, cache, Settings(image_size=16), 2, pickle.loads(catalogue.read_bytes()))
"""


def test_killed_build_leaves_no_half_set_and_the_next_one_is_whole(shop: Any) -> None:
    base = shop.base
    script, catalogue = base / "killed.py", base / "catalogue.pickle"
    script.write_text(_KILLED_BUILD)
    catalogue.write_bytes(pickle.dumps(shop.catalogue))
    command = [sys.executable, str(script), str(base / "set"), str(shop.cache), str(catalogue)]
    # Rendering processes hold the pipes: this returns only when all of them have ended too.
    killed = subprocess.run(
        command, env={"PYTHONPATH": str(Path(__file__).parents[3])}, capture_output=True, timeout=60, check=False
    )
    assert killed.returncode == -9, killed.stderr.decode()
    assert not (base / "set").exists()
    assert (base / ".set.building" / "train" / "00000.tar").exists()

    build_here(shop)
    build_here(shop, "other")
    assert not (base / ".set.building").exists()
    assert shard_hashes(base / "set") == shard_hashes(base / "other")
