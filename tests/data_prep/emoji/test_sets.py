"""Tests of data_prep.emoji.sets that need no build (the sets themselves are tested in test_build.py)."""

from pathlib import Path
from typing import Any

import pytest

from data_prep.emoji import sets
from data_prep.emoji.mapping import artworks
from data_prep.emoji.sets import Part, even_slices, split, write_set
from data_prep.manifest import read_manifest


def test_even_slices() -> None:
    for count in (1, 999, 1000, 1001, 9429):
        items = list(range(count))
        slices = even_slices(items, 1000)  # type: ignore[arg-type]
        assert [item for piece in slices for item in piece] == items
        lengths = [len(piece) for piece in slices]
        assert len(slices) == -(-count // 1000)
        assert max(lengths) - min(lengths) <= 1


def test_split_mixes_vendors_and_concepts(shop: Any) -> None:
    drawings = []
    for vendor in (*shop.catalogue.vendors[:2], shop.catalogue.vendors[3]):
        drawings += artworks(vendor, shop.iconify(len(drawings), vendor.name != "named"), shop.concepts)
    train = split(drawings, "twemoji", {"1F600"})[0].drawings
    assert train != sorted(train, key=lambda drawing: drawing.key)
    assert len({drawing.vendor.name for drawing in train[:12]}) == 2
    assert train == split(list(reversed(drawings)), "twemoji", {"1F600"})[0].drawings


def test_heldout_vendor_is_asked_for_trained_concepts_only(shop: Any) -> None:
    everything = artworks(shop.vendor("twemoji"), shop.iconify(170, True), shop.concepts)
    half = artworks(shop.vendor("photos"), shop.photos(), shop.concepts)
    train, vendor, unseen = split(everything + half, "twemoji", {half[0].concept.hexcode})
    known = {drawing.concept.hexcode for drawing in half[1:]}
    assert {drawing.concept.hexcode for drawing in train.drawings} == known
    assert {drawing.concept.hexcode for drawing in vendor.drawings} == known
    assert {drawing.vendor.name for drawing in unseen.drawings} == {"photos", "twemoji"}


def test_progress_is_plain_lines_away_from_a_terminal(
    shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sets, "_SAMPLES_A_SHARD", 10)
    vendor = shop.catalogue.vendors[0]
    part = Part("train", artworks(vendor, shop.iconify(10, True), shop.concepts))
    write_set(tmp_path / "train", part, 16, workers=1)
    assert capsys.readouterr().err.splitlines() == [f"train: shard {number} of 3" for number in (1, 2, 3)]
    assert [entry.samples for entry in read_manifest(tmp_path / "train")] == [8, 9, 9]


def test_identical_pictures_are_counted(shop: Any, tmp_path: Path) -> None:
    drawings = artworks(shop.catalogue.vendors[0], shop.iconify(10, True), shop.concepts)
    twin = sets.Artwork(drawings[0].vendor, drawings[1].concept, drawings[0].source)
    part = Part("train", [drawings[0], twin, drawings[2]])
    write_set(tmp_path / "train", part, 16, workers=1)
    assert part.counts()["identical"] == 2
