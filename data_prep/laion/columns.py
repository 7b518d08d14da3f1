"""Which column of someone's metadata is what: found by its name, or given.

    find_columns(["SAMPLE_ID", "URL", "TEXT", "similarity"], parse_columns("auto"), "part-0.parquet")
    # {"url": "URL", "caption": "TEXT", "similarity": "similarity", "id": "SAMPLE_ID"}

LAION-400M names its columns SAMPLE_ID, URL, TEXT, HEIGHT, WIDTH, LICENSE, NSFW, similarity. Its safety-revised
re-release relaion400m (gated) is read by `url` and `caption` wherever it is used in public; its other columns are
looked for by the same names as everybody's.
"""

from collections.abc import Mapping, Sequence

from data_prep.errors import DataError, UsageError

REQUIRED = ("url", "caption")
# Names in small letters, the best first: where a file has the size of the original and of a copy, the original counts.
KNOWN: Mapping[str, tuple[str, ...]] = {
    "url": ("url", "image_url"),
    "caption": ("caption", "text"),
    "similarity": ("similarity", "clip_b32_similarity_score"),  # both by CLIP ViT-B/32
    "width": ("original_width", "width"),
    "height": ("original_height", "height"),
    "nsfw": ("nsfw",),
    "license": ("license",),
    "id": ("sample_id", "id", "uid", "key"),
}
MAPS: Mapping[str, Mapping[str, str]] = {
    "auto": {},
    "laion400m": {
        "url": "URL",
        "caption": "TEXT",
        "similarity": "similarity",
        "width": "WIDTH",
        "height": "HEIGHT",
        "nsfw": "NSFW",
        "license": "LICENSE",
        "id": "SAMPLE_ID",
    },
    "relaion400m": {"url": "url", "caption": "caption"},
}
_LOOKED_FOR = ("auto", "relaion400m")  # maps whose other columns are looked for by their known names


class Columns:
    """What the user said of the columns: names by role, and whether the other roles are looked for."""

    def __init__(self, given: Mapping[str, str], search: bool) -> None:
        self.given, self.search = given, search


def parse_columns(text: str) -> Columns:
    """`--columns`: the name of a map, or `role=NAME,role=NAME`, which uses these columns and no others.

    Raises:
        UsageError: anything else; it says what there is.
    """
    if text in MAPS:
        return Columns(MAPS[text], text in _LOOKED_FOR)
    given = {}
    for part in text.split(","):
        role, equals, name = part.partition("=")
        if not equals or not name or role not in KNOWN:
            raise UsageError(
                f"--columns takes {', '.join(MAPS)} or role=NAME,role=NAME with the roles {', '.join(KNOWN)}; "
                f"found {part!r}"
            )
        given[role] = name
    missing = [role for role in REQUIRED if role not in given]
    if missing:
        raise UsageError(f"--columns names no column for {' and '.join(missing)}; add {missing[0]}=NAME")
    return Columns(given, search=False)


def find_columns(names: Sequence[str], wanted: Columns, where: str) -> dict[str, str]:
    """The column of each role that the file `where` has, in the roles' order.

    Raises:
        DataError: a column that was named is not there or there twice, or none or two could be URL or caption.
    """
    found = {}
    for role, known in KNOWN.items():
        if role in wanted.given:
            found[role] = wanted.given[role]
        elif wanted.search:
            candidates = sorted(
                (name for name in names if name.lower() in known), key=lambda name: known.index(name.lower())
            )
            if role in REQUIRED and len(candidates) != 1:
                seen = f"{' and '.join(candidates)} may both be" if candidates else "no column is known as"
                raise DataError(f"{where}: {seen} the {role}; say which with --columns, of {_listed(names)}")
            if candidates:
                found[role] = candidates[0]
    for role, name in found.items():
        if names.count(name) != 1:
            what = "no column" if name not in names else "more than one column"
            raise DataError(
                f"{where} has {what} {name!r} for the {role}; it has {_listed(names)}: give the right ones by "
                "--columns url=NAME,caption=NAME"
            )
    return found


def _listed(names: Sequence[str]) -> str:
    """Column names for a message, not more than a line of them."""
    return ", ".join(repr(name[:40]) for name in names[:20]) + (" …" if len(names) > 20 else "") or "none"
