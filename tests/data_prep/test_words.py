"""Numbers in sentences."""

import pytest

from data_prep.words import many


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [(0, "shard", "0 shards"), (1, "shard", "1 shard"), (20_000, "row", "20,000 rows"), (2, "MB", "2 MB")],
)
def test_many(number: int, noun: str, said: str) -> None:
    assert many(number, noun) == said
