"""Where the shards of a data set lie, below its folder: as downloaded, verified, and put aside.

collected_as("parts/00001-retry2/00000.tar")     # "shards/00001r2-00000.tar"
"""

import re

PARTS, SHARDS, QUARANTINE = "parts", "shards", "quarantine"
_COLLECTED = re.compile(rf"{SHARDS}/(\d+)(?:r(\d+))?-(\d+\.tar)")


def collected_as(name: str) -> str:
    """The name of a shard of a part when it is among the verified ones: parts/00001/00002.tar, shards/00001-00002.tar.

    A part of what was tried again, 00001-retry2, becomes 00001r2, so that names stay in the parts' order.
    """
    _, part, shard = name.split("/")
    return f"{SHARDS}/{part.replace('-retry', 'r')}-{shard}"


def downloaded_as(name: str) -> str | None:
    """The name under which a collected shard was downloaded, None where it was not by us."""
    found = _COLLECTED.fullmatch(name)
    if not found:
        return None
    number, retry, shard = found.groups()
    return f"{PARTS}/{number}{f'-retry{retry}' if retry else ''}/{shard}"
