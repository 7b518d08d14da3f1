"""Why a shard or a sample is not good, in words that stay: they are counted, and read by programs.

Damage is of a shard: one finding makes it unsound. So does a broken sample, which training would pass over, unless a
share of them is allowed. Flaws come with pictures from the web, and would come again with another download: they are
counted, and make a shard unsound only where they are so many that something else made them (verify.FLAWED), and no
manifest names the shard as it is. Who wrote the manifest took them in; `run` takes in any number.
"""

from collections import Counter
from dataclasses import dataclass, field

UNREADABLE = "cannot be read"
TAR = "tar cut or damaged"
MEMBER = "member is no plain file"
NAME = "member not named KEY.SUFFIX"
CLIMBS = "member leaves its folder"
EXECUTABLE = "member that readers would run"
HUGE = "member over 256 MB"
TWICE = "two members of one suffix"
APART = "members of a sample are apart"
EMPTY = "no sample"
COUNT = "another number of samples than recorded"
KEYS = "other keys than the table has"
RECORD = "table or statistics of the download missing"
OTHER_BYTES = "other bytes than the manifest has"
DAMAGE = (
    UNREADABLE,
    TAR,
    MEMBER,
    NAME,
    CLIMBS,
    EXECUTABLE,
    HUGE,
    TWICE,
    APART,
    EMPTY,
    COUNT,
    KEYS,
    RECORD,
    OTHER_BYTES,
)

NO_PICTURE = "no picture"
PICTURES_TWO = "several pictures"
UNDECODABLE = "picture cannot be decoded"
NO_CAPTION = "no caption"
NOT_UTF8 = "caption is not UTF-8"
NO_JSON = "no JSON"
BAD_JSON = "JSON cannot be read"
OTHER_JSON = "JSON of another sample"
BROKEN = (NO_PICTURE, PICTURES_TWO, UNDECODABLE, NO_CAPTION, NOT_UTF8, NO_JSON, BAD_JSON, OTHER_JSON)

ONE_COLOUR = "picture of one colour"
LYING = "picture to be turned by its EXIF tag"
ROTATION_LOST = "picture lies: its EXIF tag is lost"
SIXTEEN_BITS = "picture of 16 bits"
ASPECT = "picture too long and thin"
DUPLICATE = "picture is in this shard before"
EMPTY_CAPTION = "caption is empty"
CONTROL = "caption has control characters"
LONG_CAPTION = "caption over 1000 characters"
COPY = "most pictures are in earlier shards"
FLAWS = (ONE_COLOUR, LYING, ROTATION_LOST, SIXTEEN_BITS, ASPECT, DUPLICATE, EMPTY_CAPTION, CONTROL, LONG_CAPTION, COPY)

REPAIRABLE = (LYING, ROTATION_LOST, SIXTEEN_BITS)  # by `verify --reencode`


@dataclass
class Found:
    """How often each reason was found in a shard, and the first example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: str, count: int = 1) -> None:
        self.counts[reason] += count
        self.examples.setdefault(reason, printable(example))


def printable(text: str) -> str:
    """Text of anybody's making as it may stand on a terminal: short, and without control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:300])
