"""Numbers in sentences for a person.

many(1, "shard"), many(20_000, "shard")     # "1 shard", "20,000 shards"
"""


def many(number: int, noun: str) -> str:
    """The number and what is counted; a unit such as "MB" has no plural."""
    return f"{number:,} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """The noun as it stands after this number."""
    return noun if number == 1 or not noun.islower() else f"{noun}s"
