"""Class lists and prompts against CLIP_benchmark's own, and against what is known of the lists.

The hashes were computed from CLIP_benchmark 48de38c: en_classnames.json and en_zeroshot_classification_templates.json
(imagenet1k, with {c} written as {}), and all_imagenet_wordnet_ids, imagenet_a_wnids, imagenet_r_wnids and
imagenet_o_wnids of its builder.py, each sorted.
"""

import hashlib
from collections.abc import Iterable

import pytest
from timm.data import ImageNetInfo

from evaluate.data.classes import class_list, shared_names
from evaluate.data.sets import IMAGENET_TEMPLATES


def sha256(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.mark.parametrize(
    ("subset", "size", "expected"),
    [
        ("", 1000, "385e0240499426c022b773be1ae4da780f057b89c9694c7f47199f62746b6edd"),
        ("a", 200, "f6aa4b23244554d9b864fd715ae20048f6a9686388911b2dfbf1ada01bf0f520"),
        ("r", 200, "e19a59d84e3746fafd34d2ccf6ae604a44e9a0500a596f343c878a89e30ce624"),
        ("o", 200, "39f8e64e8f89efad8fd9615c061abc61695ffbd27793e87199181cb4fb340083"),
    ],
)
def test_ids_are_clip_benchmarks_in_the_order_of_their_wnids(subset: str, size: int, expected: str) -> None:
    classes = class_list("imagenet-1k", subset)
    assert len(classes) == len(classes.names) == len(set(classes.ids)) == size
    assert list(classes.ids) == sorted(classes.ids)
    assert sha256(classes.ids) == expected


def test_names_and_prompts_are_clip_benchmarks() -> None:
    names = class_list("imagenet-1k").names
    assert sha256(names) == "571ae1c583b4be7da87519494c52bf405a46af05d5815627c7a0dee997068b60"
    full = IMAGENET_TEMPLATES["full"].texts
    assert (len(full), len(IMAGENET_TEMPLATES["simple"].texts)) == (80, 7)
    assert sha256(full) == "4f976686fb651bb5803d4689dcd849f75efe0ef19a3c801355bc9a6f03c8a5af"
    assert IMAGENET_TEMPLATES["photo"].texts == ("a photo of a {}.",)


def test_a_subset_keeps_each_class_its_name() -> None:
    whole = class_list("imagenet-1k")
    name_of = dict(zip(whole.ids, whole.names, strict=True))
    for subset in "aro":
        chosen = class_list("imagenet-1k", subset)
        assert list(chosen.names) == [name_of[wnid] for wnid in chosen.ids]
    assert class_list("imagenet-1k", "a").names[0] == "stingray"


def test_two_pairs_of_the_thousand_share_a_name() -> None:
    names = class_list("imagenet-1k").names
    assert shared_names(names) == {"missile": 2, "sunglasses": 2}
    assert [i for i, name in enumerate(names) if name in ("missile", "sunglasses")] == [657, 744, 836, 837]


@pytest.mark.parametrize(
    ("name", "size", "sharing", "shared"),
    [("imagenet-22k", 21_841, 3_186, 1_444), ("imagenet-21k-miil", 11_221, 1_519, 708)],
)
def test_the_larger_lists_have_first_lemmas(name: str, size: int, sharing: int, shared: int) -> None:
    classes = class_list(name)
    assert len(classes) == size
    assert list(classes.ids) == sorted(set(classes.ids))  # not the unsorted order of imagenet-22k-ms
    common = shared_names(classes.names)
    assert (sum(common.values()), len(common)) == (sharing, shared)
    assert not any("," in name or not name.strip() for name in classes.names)
    assert dict(zip(classes.ids, classes.names, strict=True))["n01440764"] == "tench"  # of "tench, Tinca tinca"


def test_the_list_of_21843_classes_is_another_one() -> None:
    goog, ours = ImageNetInfo("imagenet-21k-goog").label_names(), class_list("imagenet-22k").ids
    assert next(row for row, wnid in enumerate(ours) if wnid != goog[row]) == 9_205
