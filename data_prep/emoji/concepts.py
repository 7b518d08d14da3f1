"""The concepts: one per emoji without skin tone, with Unicode's name, tags and groups; and which are held out."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SHORTCODES = ("emojibase", "iamcal", "github", "joypixels", "cldr")  # in the order they are trusted
_TAGS_A_CAPTION = 3
_TAGGED_CAPTIONS = 4


@dataclass(frozen=True)
class Concept:
    """One emoji as Unicode CLDR describes it.

    Attributes:
        hexcode: its code points, e.g. "1F600"; unique.
        name: CLDR label; unique, and the class name.
        aliases: other names it has gone by, most trusted first; for finding its picture only.
    """

    hexcode: str
    name: str
    tags: tuple[str, ...]
    group: str
    subgroup: str
    aliases: tuple[tuple[str, ...], ...] = ()

    @property
    def flag(self) -> bool:
        """Whether it is a flag: flags look alike across vendors, so results are given with and without them."""
        return self.group == "flags"


def read_concepts(files: Mapping[str, bytes]) -> list[Concept]:
    """The concepts of an emojibase-data package, sorted by hexcode.

    Regional indicators and components (skin tones, hair) are no concepts of their own.
    """
    data = json.loads(files["en/data.json"])
    names = json.loads(files["meta/groups.json"])
    unicode_names = json.loads(files["meta/unicode-names.json"])
    shortcodes = [json.loads(files[f"en/shortcodes/{source}.json"]) for source in _SHORTCODES]
    concepts = []
    for record in data:
        if "group" not in record or names["groups"][str(record["group"])] == "component":
            continue
        hexcode, label = record["hexcode"], record["label"]
        unicode_name = unicode_names.get(hexcode) or unicode_names.get(hexcode.removesuffix("-FE0F"), "")
        kinds = (label, label.replace("&", ""), unicode_name, label.replace("flag: ", "flag for "))
        aliases: list[tuple[str, ...]] = [(name,) for name in kinds]
        aliases += [_as_tuple(source.get(hexcode, ())) for source in shortcodes]
        concepts.append(
            Concept(
                hexcode,
                label,
                tuple(record.get("tags", ())),
                names["groups"][str(record["group"])],
                names["subgroups"][str(record["subgroup"])],
                tuple(aliases),
            )
        )
    return sorted(concepts, key=lambda concept: concept.hexcode)


def _as_tuple(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def held_out(concepts: Sequence[Concept], share: float, seed: int) -> set[str]:
    """The hexcodes of the `share` of the concepts with the lowest hash: the same for everyone with the same seed."""
    ranked = sorted(concepts, key=lambda concept: stable_hash(f"{seed}/{concept.hexcode}"))
    return {concept.hexcode for concept in ranked[: round(share * len(concepts))]}


def stable_hash(text: str) -> int:
    """A number that depends on `text` alone, on every machine and Python."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def captions(concept: Concept) -> list[str]:
    """What a picture of the concept may be called: its name, then its name with a few of its tags at a time."""
    said = set(_words(concept.name))
    tags = [tag for tag in concept.tags if not set(_words(tag)) <= said]
    parts = [tags[start : start + _TAGS_A_CAPTION] for start in range(0, len(tags), _TAGS_A_CAPTION)]
    return [concept.name, *(", ".join([concept.name, *part]) for part in parts[:_TAGGED_CAPTIONS])]


def training_caption(key: str, choices: Sequence[str]) -> str:
    """The caption of one training picture: the bare name for half of the pictures, else one with tags, by hash."""
    number = stable_hash(f"caption/{key}")
    if len(choices) == 1 or number % 2 == 0:
        return choices[0]
    return choices[1 + number // 2 % (len(choices) - 1)]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def slug(text: str) -> str:
    """A name as icon sets spell it: "Bosnia & Herzegovina" -> "bosnia-and-herzegovina"."""
    text = text.replace("&", " and ").replace("’", "").replace("'", "")
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
