"""Writes the README.md of a built emoji set: what is in it, whose work it is, and what not to conclude from it."""

from collections.abc import Mapping, Sequence
from typing import Any

from data_prep.emoji.vendors import Package, Vendor

_LICENCE_PAGES = {
    "Apache-2.0": "https://www.apache.org/licenses/LICENSE-2.0",
    "MIT": "https://spdx.org/licenses/MIT.html",
    "CC-BY-4.0": "https://creativecommons.org/licenses/by/4.0/",
    "CC-BY-SA-4.0": "https://creativecommons.org/licenses/by-sa/4.0/",
}

_PAGE = """# Emoji artwork with Unicode names, {size} px

Made by `{command}`.

The same concepts drawn by several artists: train on some vendors, then name the pictures of a vendor never seen.

| set | pictures | concepts | of them flags | identical pictures |
|---|---|---|---|---|
{sets}

- `train`: {training}. The caption is the concept's name, or the name and a few tags.
- `heldout-vendor`: {heldout}, only concepts that also have a training picture. The caption is the name.
- `heldout-concepts`: every vendor's pictures of concepts that have none in `train`. The caption is the name.
  Where a vendor has one picture for a held-out concept and another, `train` has it under neither name.

Each set is a folder of tar shards (`KEY.png`, `KEY.txt`, `KEY.json`), `manifest.jsonl` (size, SHA-256 and number of
samples of each shard) and `classes.json` (the concepts, sorted by code point). `KEY.json` lists every possible caption
under `captions`, the name first. Pictures are RGB on white, centred in a square.

## Pictures per vendor

{vendors}

{failed}

## What not to conclude from it

- Held-out concepts have siblings in `train`: "woman police officer" may be held out while "police officer" and "man
  police officer" are not. A good result there is no proof of understanding a new concept.
- Flags look alike across vendors: report results with and without them (`flag` in `classes.json`).
- Some vendors have one picture for several concepts (column "identical pictures" counts each of them), most of all for
  families and for flags such as Norway's and Svalbard's. No model can tell these apart.
- A concept has several pictures in `train`: within one batch they are each other's false negatives unless the loss or
  the sampler knows (`concept` in `KEY.json`).

## Licences and attributions

Names, tags and groups: {concepts} by Miles Johnson, MIT, from Unicode CLDR (Unicode License v3).
The artwork was changed in this way: drawn at {size} px on a white square.

{licences}

{share_alike}Copyright notices for the parts under MIT: © Microsoft Corporation (Fluent Emoji); © Miles Johnson
(emojibase). Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction, including without
limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software,
and to permit persons to whom the Software is furnished to do so, subject to the following conditions: the above
copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

The PNG bytes depend on {made_with}.
"""

_SHARE_ALIKE = """OpenMoji is share-alike: what is derived from its pictures is to be shared under CC-BY-SA-4.0 as well.
`--no-share-alike` builds the set without it.

"""


def readme(command: str, vendors: Sequence[Vendor], concepts: Package, stats: Mapping[str, Any]) -> str:
    """The page for a set built by `command` from `vendors` (the held-out one last) with the outcome `stats`."""
    sets = stats["sets"]
    return _PAGE.format(
        size=stats["settings"]["image_size"],
        command=command,
        sets="\n".join(_row(name, *(part[c] for c in _COLUMNS)) for name, part in sets.items()),
        training=", ".join(vendor.name for vendor in vendors[:-1]),
        heldout=vendors[-1].name,
        vendors=_vendor_table(vendors, sets),
        failed=_failed(stats["failed"]),
        concepts=concepts.spec,
        licences=_licence_table(vendors),
        share_alike=_SHARE_ALIKE if any(vendor.share_alike for vendor in vendors) else "",
        made_with=", ".join(f"{name} {number}" for name, number in stats["made_with"].items()),
    )


_COLUMNS = ("pictures", "concepts", "flags", "identical")


def _vendor_table(vendors: Sequence[Vendor], sets: Mapping[str, Any]) -> str:
    """Pictures by vendor and set."""
    rows = [_row("vendor", *sets), _row(*["---"] * (1 + len(sets)))]
    rows += [_row(v.name, *(part["vendors"].get(v.name, 0) for part in sets.values())) for v in vendors]
    return "\n".join(rows)


def _licence_table(vendors: Sequence[Vendor]) -> str:
    """Whose pictures they are and under which terms."""
    rows = [_row("vendor", "package", "licence", "attribution"), _row(*["---"] * 4)]
    for vendor in vendors:
        licence = f"[{vendor.licence}]({_LICENCE_PAGES[vendor.licence]})"
        rows.append(_row(vendor.name, f"`{vendor.package.spec}`", licence, vendor.attribution))
    return "\n".join(rows)


def _failed(problems: Mapping[str, str]) -> str:
    """The pictures that are not in the set, by name."""
    if not problems:
        return "Every picture rendered."
    return "Not rendered, and left out:\n\n" + "\n".join(f"- `{key}`: {why}" for key, why in problems.items())


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"
