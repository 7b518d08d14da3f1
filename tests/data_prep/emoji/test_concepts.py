"""Tests of data_prep.emoji.concepts."""

from typing import Any

from data_prep.emoji.concepts import Concept, captions, held_out, slug, training_caption


def concept(name: str = "grinning face", tags: tuple[str, ...] = (), hexcode: str = "1F600") -> Concept:
    return Concept(hexcode, name, tags, "smileys-emotion", "face-smiling")


def test_concepts_are_emoji_without_parts_of_emoji(shop: Any) -> None:
    concepts = shop.concepts
    assert [c.hexcode for c in concepts] == sorted(shop.hexcodes.values())
    flag = next(c for c in concepts if c.name.startswith("flag"))
    assert flag.flag
    assert (flag.tags, flag.group, flag.subgroup) == (("HT",), "flags", "tool")
    assert next(c for c in concepts if c.name == "woman’s hat").tags == ()


def test_held_out_is_a_share_fixed_by_the_seed() -> None:
    concepts = [concept(hexcode=str(number)) for number in range(1914)]
    chosen = held_out(concepts, 0.08, seed=0)
    assert len(chosen) == 153
    assert held_out(list(reversed(concepts)), 0.08, seed=0) == chosen
    assert held_out(concepts, 0.08, seed=1) != chosen


def test_captions_start_with_the_name_and_do_not_repeat_it() -> None:
    tags = ("face", "Grinning", "cheerful", "happy", "smile", "laugh", "nice face")
    assert captions(concept(tags=tags)) == [
        "grinning face",
        "grinning face, cheerful, happy, smile",
        "grinning face, laugh, nice face",
    ]
    assert captions(concept(tags=())) == ["grinning face"]


def test_training_captions_are_fixed_and_differ_between_pictures() -> None:
    choices = ["a", "a, b", "a, c"]
    drawn = [training_caption(f"vendor-{number}", choices) for number in range(400)]
    assert drawn == [training_caption(f"vendor-{number}", choices) for number in range(400)]
    assert 160 < drawn.count("a") < 240
    assert min(drawn.count("a, b"), drawn.count("a, c")) > 60
    assert training_caption("vendor-1", ["a"]) == "a"


def test_slug() -> None:
    assert slug("flag: Bosnia & Herzegovina") == "flag-bosnia-and-herzegovina"
    assert slug("woman’s hat") == "womans-hat"
    assert slug("flag: Åland Islands") == "flag-aland-islands"
    assert slug("keycap: #") == "keycap"
