"""Finds each vendor's picture of each concept.

Trap: some icon sets ship an empty chars.json (code point -> icon name), and mapping by code points then gives nothing
without a word. Those are mapped by name, and every vendor must reach its least count.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.emoji.concepts import Concept, slug
from data_prep.emoji.vendors import Vendor
from data_prep.errors import DataError

_SHORTEST_ALIAS = 3  # two letters are country codes and arrows: "om" is a religion's sign and Oman's flag


@dataclass(frozen=True)
class Artwork:
    """One vendor's drawing of one concept, not yet rendered: SVG text or the bytes of a picture file."""

    vendor: Vendor
    concept: Concept
    source: str | bytes

    @property
    def key(self) -> str:
        """The sample's key, unique in the whole set: "noto-1f600"."""
        return f"{self.vendor.name}-{self.concept.hexcode.lower()}"


def artworks(vendor: Vendor, files: Mapping[str, bytes], concepts: Sequence[Concept]) -> list[Artwork]:
    """All drawings a vendor's package has of the concepts.

    Raises:
        DataError: fewer than the vendor's least count, or artwork stored in a way this does not know.
    """
    read = _LAYOUTS[vendor.layout]
    found = read(vendor, files, concepts)
    if len(found) < vendor.least:
        raise DataError(
            f"{vendor.name} ({vendor.package.spec}) gave {len(found)} pictures, at least {vendor.least} were expected: "
            "its names or code points no longer match emojibase-data; correct the mapping before using it"
        )
    return found


def _from_files(vendor: Vendor, files: Mapping[str, bytes], concepts: Sequence[Concept]) -> list[Artwork]:
    """Pictures stored as assets/HEXCODE.webp."""
    by_code = {
        code(path.rpartition("/")[2].removesuffix(".webp")): content
        for path, content in files.items()
        if path.endswith(".webp")
    }
    return [
        Artwork(vendor, concept, by_code[code(concept.hexcode)])
        for concept in concepts
        if code(concept.hexcode) in by_code
    ]


def _from_iconify(vendor: Vendor, files: Mapping[str, bytes], concepts: Sequence[Concept]) -> list[Artwork]:
    """SVG bodies in icons.json, found by code point where chars.json has any, else by name."""
    icons = json.loads(files["icons.json"])
    chars = {code(point): name for point, name in json.loads(files["chars.json"]).items()}
    names = set(icons["icons"]) | set(icons.get("aliases", {}))
    if chars:
        matched = {c.hexcode: chars[code(c.hexcode)] for c in concepts if chars.get(code(c.hexcode)) in names}
    else:
        matched = match_names(concepts, names, vendor.renames)
    return [Artwork(vendor, c, svg(icons, matched[c.hexcode])) for c in concepts if c.hexcode in matched]


def code(hexcode: str) -> str:
    """Code points in small letters without the variation selector, which vendors write or leave out at will."""
    return "-".join(point for point in hexcode.lower().split("-") if point != "fe0f")


def match_names(concepts: Sequence[Concept], icons: Iterable[str], renames: Mapping[str, str]) -> dict[str, str]:
    """Match concepts to icon names by what the concepts are called, most trusted kind of name first.

    An icon is given away once, and a name two concepts share in one kind is used for neither.

    Returns:
        hexcode -> icon name.
    """
    known = {concept.hexcode for concept in concepts}
    matched = {hexcode: icon for icon, hexcode in renames.items() if hexcode in known}
    free = {_compact(icon): icon for icon in sorted(set(icons) - set(renames), reverse=True)}
    for kind in range(max((len(concept.aliases) for concept in concepts), default=0)):
        owners: dict[str, list[Concept]] = defaultdict(list)
        for concept in concepts:
            for name in {_compact(slug(alias)) for alias in concept.aliases[kind]}:
                owners[name].append(concept)
        for name, sharing in owners.items():
            usable = name in free and len(name) >= _SHORTEST_ALIAS and len(sharing) == 1
            if usable and sharing[0].hexcode not in matched:
                matched[sharing[0].hexcode] = free.pop(name)
    return matched


def _compact(name: str) -> str:
    """Some sets write words together: "alien-monster" is "alienmonster" there."""
    return name.replace("-", "")


def svg(icons: Mapping[str, Any], name: str) -> str:
    """A whole SVG document for one icon of an Iconify set, following an alias to its parent.

    Raises:
        DataError: the icon is turned in a way this does not know.
    """
    icon = dict(icons["icons"].get(name, {}))
    flipped = False
    if not icon:
        alias = icons["aliases"][name]
        unknown = set(alias) - {"parent", "hFlip", "hidden"}
        if unknown or alias["parent"] not in icons["icons"]:
            raise DataError(f"icon {name!r} is an alias this does not know how to draw: {alias}")
        icon, flipped = icons["icons"][alias["parent"]], bool(alias.get("hFlip"))
    left, top = icon.get("left", 0), icon.get("top", 0)
    width = icon.get("width", icons.get("width", 16))
    height = icon.get("height", icons.get("height", 16))
    body = icon["body"]
    if flipped:
        body = f'<g transform="translate({2 * left + width} 0) scale(-1 1)">{body}</g>'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{left} {top} {width} {height}">{body}</svg>'
    )


_LAYOUTS = {"files": _from_files, "iconify": _from_iconify}
