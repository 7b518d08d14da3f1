"""How many pictures of each shard are in an earlier one: by hashes of 64 bits, in bounded memory.

400 million hashes are 3.2 GB on the disk and are read once for each 8 million of them. In one of about 230 sets of
that size two different pictures would be taken for one.
"""

from collections.abc import Sequence

import numpy as np

AT_ONCE = 1 << 23  # hashes; sorting them takes about 700 MB


def in_earlier(shards: Sequence[np.ndarray], at_once: int = AT_ONCE) -> list[int]:
    """For each shard's hashes (uint64) the number of different ones that an earlier shard has."""
    rounds = np.uint64(max(1, -(-sum(len(hashes) for hashes in shards) // at_once)))
    found = np.zeros(len(shards), np.int64)
    for turn in range(int(rounds)):
        parts = [np.unique(hashes[hashes % rounds == turn]) for hashes in shards]
        every, owner = np.concatenate([*parts, np.zeros(0, np.uint64)]), _owners(parts)
        del parts
        _, first = np.unique(every, return_index=True)
        repeated = np.ones(len(every), bool)
        repeated[first] = False
        found += np.bincount(owner[repeated], minlength=len(shards))
    return [int(count) for count in found]


def _owners(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The shard of each hash when all are put one after the other."""
    return np.repeat(np.arange(len(parts), dtype=np.uint32), [len(part) for part in parts])
