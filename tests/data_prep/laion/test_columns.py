"""Columns found by their names, or given."""

import pytest

from data_prep.errors import DataError, UsageError
from data_prep.laion.columns import find_columns, parse_columns

LAION = ["SAMPLE_ID", "URL", "TEXT", "HEIGHT", "WIDTH", "LICENSE", "NSFW", "similarity"]
ALL = {
    "url": "URL",
    "caption": "TEXT",
    "similarity": "similarity",
    "width": "WIDTH",
    "height": "HEIGHT",
    "nsfw": "NSFW",
    "license": "LICENSE",
    "id": "SAMPLE_ID",
}


@pytest.mark.parametrize("given", ["auto", "laion400m"])
def test_laion400m(given: str) -> None:
    assert find_columns(LAION, parse_columns(given), "x") == ALL


def test_relaion400m() -> None:
    names = ["url", "caption", "similarity", "height", "width", "original_width", "exif"]
    found = {"url": "url", "caption": "caption", "similarity": "similarity", "width": "original_width"}
    assert find_columns(names, parse_columns("relaion400m"), "x") == {**found, "height": "height"}
    with pytest.raises(DataError, match="x has no column 'url' for the url; it has 'SAMPLE_ID', 'URL'"):
        find_columns(LAION, parse_columns("relaion400m"), "x")


def test_given_columns_are_the_only_ones() -> None:
    columns = parse_columns("caption=similarity,url=URL")
    assert find_columns(LAION, columns, "x") == {"url": "URL", "caption": "similarity"}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a", "b"], "x: no column is known as the url; say which with --columns, of 'a', 'b'"),
        ([], "of none"),
        (["url", "text", "caption"], "x: caption and text may both be the caption"),
        (["url", "URL", "text"], "x: url and URL may both be the url"),
        (["url", "text", "nsfw", "nsfw"], "x has more than one column 'nsfw' for the nsfw"),
    ],
)
def test_what_cannot_be_found(names: list[str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        find_columns(names, parse_columns("auto"), "x")


@pytest.mark.parametrize("text", ["", "laion", "url=", "url=a", "url=a,caption", "url=a,caption=b,weight=c"])
def test_what_cannot_be_given(text: str) -> None:
    with pytest.raises(UsageError, match="--columns"):
        parse_columns(text)
