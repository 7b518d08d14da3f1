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
        '"noai"',
        "[noai, noarchive]",
        "('noarchive' 'noai')",
        "noai=true",
        "noai.",
        "noarchive|noai",
        "noml",
        "noai otherbot: noarchive",
        "User-agent: img2dataset noai",
        "User-agent: otherbot noarchive, User-agent: img2dataset noai",
        "otherbot: noarchive, User-agent img2dataset: noai",
        "User-agent: otherbot, User-agent: img2dataset: noai",
        "User-agent: * noai",
        "img2dataset=noai",
        "img2dataset/1.2: noai",
        "'img2dataset': 'noai'",
        "unavailable_after: 25 Jun 2010 15:00:00 PST",
        "unavailable_after: Friday, 25-Jun-99 15:00:00 UTC",
        "unavailable_after: 2010-06-25T15:00:00+01:00",
        "noarchive, unavailable-after=2010-06-25",
        "unavailable_after: some day",
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
        "unavailable_after: 25 Jun 9999 15:00:00 PST",
        "unavailable_after: Friday, 25-Jun-68 15:00:00 UTC",
        "unavailable_after: 9999-06-25T15:00:00+01:00, noarchive",
        "otherbot: unavailable_after: 25 Jun 2010",
        "User-agent: otherbot noai",
        "User-agent: otherbot: noai",
        "max-image-preview=[none]",
        "noaiming",
    ],
)
def test_other_words_are_none(value: str) -> None:
    assert not opted_out({"X-Robots-Tag": [value]}, "img2dataset")


def test_text_and_data_mining_reservation() -> None:
    for value in (" 1 ", "1; policy=https://a.example/p", '"1"', "0, 1", "true"):
        assert opted_out({"tdm-reservation": [value]}, "img2dataset")
    for value in ("", "0 ; policy=1", "false"):
        assert not opted_out({"TDM-Reservation": [value]}, "img2dataset")
    assert not opted_out({"tdm-reservation": ["0"], "Robots": ["noai"]}, "img2dataset")
