"""A tiny catalogue in place of the npm registry: real tarballs, real SVG, 26 concepts, four vendors.

"letters" has a chars.json, "named" has an empty one, "photos" ships picture files, and "twemoji" is the test vendor.
"""

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from data_prep.emoji import npm
from data_prep.emoji.concepts import Concept, held_out, read_concepts, slug
from data_prep.emoji.settings import Catalogue
from data_prep.emoji.vendors import Package, Vendor

NAMES = [f"thing {chr(97 + number)}" for number in range(24)] + ["flag: Here & There", "woman’s hat"]
HEXCODES = {name: f"1F{600 + number}" for number, name in enumerate(NAMES)}


def tarball(path: Path, files: dict[str, bytes]) -> Path:
    """An npm package: everything lies under package/."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def emojibase() -> dict[str, bytes]:
    """What read_concepts reads of emojibase-data, with a regional indicator and a skin tone that are no concepts."""
    records: list[dict[str, Any]] = [
        {
            "label": name,
            "hexcode": code,
            "tags": ["thing", f"tag {code}", "odd", "rare", "new"],
            "group": 0,
            "subgroup": 5,
        }
        for name, code in HEXCODES.items()
    ]
    records[24].update(group=9, tags=["HT"])
    del records[25]["tags"]
    records.append({"label": "regional indicator A", "hexcode": "1F1E6"})
    records.append({"label": "dark skin tone", "hexcode": "1F3FF", "group": 2, "subgroup": 5})
    groups = {"groups": {"0": "objects", "2": "component", "9": "flags"}, "subgroups": {"5": "tool"}}
    shortcodes: dict[str, dict[str, Any]] = {
        source: {} for source in ("emojibase", "iamcal", "github", "joypixels", "cldr")
    }
    shortcodes["github"] = {HEXCODES["thing b"]: ["bee", "b"]}
    files: dict[str, Any] = {"en/data.json": records, "meta/groups.json": groups, "meta/unicode-names.json": {}}
    files |= {f"en/shortcodes/{source}.json": codes for source, codes in shortcodes.items()}
    return {name: json.dumps(content).encode() for name, content in files.items()}


def body(name: str, dark: int) -> str:
    """A drawing that no other concept or vendor has."""
    number = NAMES.index(name)
    return f'<rect width="16" height="16" fill="rgb({9 * number},{dark},{255 - 9 * number})"/>'


def iconify(dark: int, with_chars: bool) -> dict[str, bytes]:
    """An Iconify set with every concept, 32 wide and 16 high."""
    icons = {slug(name): {"body": body(name, dark)} for name in NAMES}
    chars = {HEXCODES[name].lower(): slug(name) for name in NAMES} if with_chars else {}
    whole = {"prefix": "x", "width": 32, "height": 16, "icons": icons, "aliases": {}}
    return {"icons.json": json.dumps(whole).encode(), "chars.json": json.dumps(chars).encode()}


def photos() -> dict[str, bytes]:
    """Half-transparent WebP files for the first half of the concepts."""
    files = {}
    for number, name in enumerate(NAMES[:13]):
        buffer = io.BytesIO()
        Image.new("RGBA", (20, 10), (200, 9 * number, 0, 128)).save(buffer, "WEBP", lossless=True)
        files[f"assets/{HEXCODES[name].lower()}-fe0f.webp"] = buffer.getvalue()
    return files


@dataclass
class Shop:
    """A cache folder that holds every package of a catalogue, and what the packages are made with.

    Tests reach all of it through the fixture, as test folders are no packages to import from.
    """

    cache: Path
    catalogue: Catalogue
    names = NAMES
    hexcodes = HEXCODES
    iconify = staticmethod(iconify)
    photos = staticmethod(photos)

    @property
    def base(self) -> Path:
        """The folder to build in."""
        return self.cache.parent

    @property
    def concepts(self) -> list[Concept]:
        """The catalogue's concepts."""
        return read_concepts(emojibase())

    @property
    def unseen(self) -> set[str]:
        """The two concepts held out by default."""
        return held_out(self.concepts, 0.08, 0)

    def vendor(self, name: str) -> Vendor:
        """A vendor's row."""
        return next(vendor for vendor in self.catalogue.vendors if vendor.name == name)

    def restock(self, vendor: str, files: dict[str, bytes], **changes: Any) -> None:
        """Give a vendor other files, with a matching hash, and change its row."""
        old = self.vendor(vendor)
        new = replace(old, package=stock(self.cache, old.package.name, files), **changes)
        vendors = tuple(new if v.name == vendor else v for v in self.catalogue.vendors)
        self.catalogue = replace(self.catalogue, vendors=vendors)


def stock(cache: Path, name: str, files: dict[str, bytes]) -> Package:
    """Put a package into the cache; returns its row of the table."""
    package = Package(name, "1.0.0", "")
    path = tarball(cache / npm.file_name(package), files)
    return replace(package, sha512=npm.sha512(path))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """The four vendors, openmoji-like terms on "named"."""
    cache = tmp_path / "npm"
    rows = [
        ("letters", "iconify", iconify(10, with_chars=True), "Apache-2.0", 26),
        ("named", "iconify", iconify(90, with_chars=False), "CC-BY-SA-4.0", 26),
        ("photos", "files", photos(), "MIT", 13),
        ("twemoji", "iconify", iconify(170, with_chars=True), "CC-BY-4.0", 26),
    ]
    vendors = tuple(
        Vendor(name, stock(cache, f"@test/{name}", files), layout, least, licence, f"by {name}", name == "named")
        for name, layout, files, licence, least in rows
    )
    return Shop(cache, Catalogue(stock(cache, "emojibase-data", emojibase()), vendors))


@pytest.fixture
def stocked() -> Callable[[Path, str, dict[str, bytes]], Package]:
    """A function that puts a package into a folder."""
    return stock


@pytest.fixture
def no_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to download fails the test."""

    def refuse() -> list[str]:
        raise AssertionError("npm was called")

    monkeypatch.setattr(npm, "_npm_command", refuse)
