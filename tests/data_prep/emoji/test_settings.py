"""Tests of data_prep.emoji.settings: who takes part, and what makes two sets different."""

from typing import Any

import pytest

from data_prep.emoji.settings import Catalogue, Settings, differences
from data_prep.errors import DataError


def test_test_vendor_is_never_trained_on() -> None:
    catalogue = Catalogue()
    for held in [vendor.name for vendor in catalogue.vendors]:
        *training, last = [vendor.name for vendor in Settings(heldout_vendor=held).vendors(catalogue)]
        assert last == held
        assert "twemoji" not in training
        assert len(training) == (7 if held == "twemoji" else 6)


def test_share_alike_can_be_left_out() -> None:
    names = [vendor.name for vendor in Settings(share_alike=False).vendors(Catalogue())]
    assert "openmoji" not in names
    assert len(names) == 7


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (Settings(heldout_vendor="apple"), "'apple' is none of letters, named, photos, twemoji"),
        (Settings(heldout_vendor="named", share_alike=False), "named is share-alike"),
        (Settings(image_size=0), "--image-size must be 8 to 1024, found 0"),
    ],
)
def test_what_cannot_be_built(shop: Any, settings: Settings, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        settings.check(shop.catalogue)


def test_differences_name_what_differs(shop: Any) -> None:
    one, other = Settings().identity(shop.catalogue), Settings(seed=3, share_alike=False).identity(shop.catalogue)
    assert differences(one, one) == []
    assert differences(one, other) == [
        "packages @test/named@1.0.0",
        "seed was 0 and is now 3",
        "share_alike was True and is now False",
    ]
    assert differences({}, {"recipe": 1}) == ["recipe was None and is now 1"]


def test_command_builds_the_same_set() -> None:
    assert Settings(64, "noto", False, 7).command("data/x") == (
        "python -m data_prep emoji --output data/x --image-size 64 --heldout-vendor noto --seed 7 --no-share-alike"
    )
