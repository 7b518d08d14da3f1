"""X-Robots-Tag as owners write it. The grammar is Google's specification of the header."""

import pytest

from data_prep.laion.robots import opted_out


@pytest.mark.parametrize(
    "value",
    [
        "noai",
        "NoAI",
        "no-ai",
        "noimageai",
        "noindex, nofollow",
        "none",
        "max-image-preview:large, noai",
        "max-image-preview : none , noimageindex",
        "max-snippet:-1 noai",
        "unavailable_after: 25 Jun 2010 15:00:00 PST, noindex",
        "img2dataset: noai",
        "otherbot: noarchive, img2dataset: noai",
        "*: noai",
        "noarchive; noai",
        "noarchive noai",
        "noai: true",
    ],
)
def test_an_opt_out_is_seen(value: str) -> None:
    assert opted_out({"x-ROBOTS-tag": ["all", value]}, "Img2Dataset")


@pytest.mark.parametrize(
    "value",
    [
        "all",
        "",
        "nofollow, noarchive",
        "max-image-preview:none",
        "otherbot: noai, noindex",
        "unavailable_after: 25 Jun 2010 15:00:00 PST",
        "noaiming",
    ],
)
def test_other_words_are_none(value: str) -> None:
    assert not opted_out({"X-Robots-Tag": [value]}, "img2dataset")


def test_text_and_data_mining_reservation() -> None:
    assert opted_out({"tdm-reservation": [" 1 "]}, "img2dataset")
    assert not opted_out({"tdm-reservation": ["0"], "Robots": ["noai"]}, "img2dataset")
