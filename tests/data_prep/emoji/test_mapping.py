"""Tests of data_prep.emoji.mapping: the right picture for each concept, and never silently none."""

import json
from typing import Any

import pytest

from data_prep.emoji import npm
from data_prep.emoji.concepts import Concept
from data_prep.emoji.mapping import artworks, match_names, svg
from data_prep.errors import DataError


def concept(hexcode: str, *aliases: tuple[str, ...]) -> Concept:
    return Concept(hexcode, aliases[0][0], (), "objects", "tool", aliases)


@pytest.mark.parametrize("vendor", ["letters", "named", "photos"])
def test_every_layout_finds_its_pictures(shop: Any, vendor: str) -> None:
    row = shop.vendor(vendor)
    found = artworks(row, npm.read(shop.cache / npm.file_name(row.package)), shop.concepts)
    assert len(found) == row.least
    assert len({drawing.source for drawing in found}) == row.least
    assert found[1].key == f"{row.name}-{shop.hexcodes[shop.names[1]].lower()}"


@pytest.mark.parametrize("vendor", ["letters", "named", "photos"])
def test_too_few_pictures_is_an_error_with_the_counts(shop: Any, vendor: str) -> None:
    row = shop.vendor(vendor)
    empty = {"icons.json": json.dumps({"icons": {}}).encode(), "chars.json": b"{}"}
    with pytest.raises(DataError, match=rf"{row.name} \(@test/.*\) gave 0 pictures, at least {row.least}"):
        artworks(row, empty, shop.concepts)


def test_more_trusted_names_go_first_and_an_icon_goes_once() -> None:
    face = concept("1", ("dog face",), ("dog", "puppy"))
    body = concept("2", ("dog",), ("hound",))
    assert match_names([face, body], ["dog"], {}) == {"2": "dog"}
    assert match_names([face, body], ["dog", "puppy"], {}) == {"1": "puppy", "2": "dog"}


def test_name_shared_by_two_concepts_is_used_for_neither() -> None:
    keys = [concept("1", ("keycap: #",)), concept("2", ("keycap: *",))]
    assert match_names(keys, ["keycap"], {}) == {}


def test_short_names_are_no_evidence() -> None:
    assert match_names([concept("1", ("flag: Oman",), ("om",))], ["om"], {}) == {}


def test_words_written_together() -> None:
    assert match_names([concept("1", ("alien monster",))], ["alienmonster"], {}) == {"1": "alienmonster"}
    assert match_names([concept("1", ("alien monster",))], ["alienmonster", "alien-monster"], {}) == {
        "1": "alien-monster"
    }


def test_renames_decide_and_leave_out() -> None:
    face, body = concept("1", ("dog face",)), concept("2", ("dog",))
    assert match_names([face, body], ["dog", "dogside"], {"dog": "1", "dogside": "2"}) == {"1": "dog", "2": "dogside"}
    assert match_names([face, body], ["dog"], {"dog": ""}) == {}


def icon_set(**more: Any) -> dict[str, Any]:
    return {"width": 32, "icons": {"a": {"body": "<a/>", "height": 20}, "b": {"body": "<b/>", "left": 2}}, **more}


def test_svg_takes_sizes_from_icon_set_and_default() -> None:
    assert 'viewBox="0 0 32 20"><a/></svg>' in svg(icon_set(), "a")
    assert 'viewBox="2 0 32 16"><b/></svg>' in svg(icon_set(), "b")


def test_svg_follows_aliases() -> None:
    icons = icon_set(aliases={"c": {"parent": "a"}, "d": {"parent": "b", "hFlip": True}})
    assert svg(icons, "c") == svg(icons, "a")
    assert '<g transform="translate(36 0) scale(-1 1)"><b/></g>' in svg(icons, "d")


@pytest.mark.parametrize("alias", [{"parent": "a", "rotate": 1}, {"parent": "nobody"}])
def test_svg_refuses_aliases_it_would_draw_wrong(alias: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="icon 'c' is an alias this does not know"):
        svg(icon_set(aliases={"c": alias}), "c")
