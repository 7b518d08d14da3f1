"""Whether an answer's headers say that its picture is not to be used: X-Robots-Tag in its spellings, TDM-Reservation.

    opted_out({"X-Robots-Tag": ["max-image-preview:large, noai"]}, "img2dataset")    # True; img2dataset's own is False

Standard library only: it runs in img2dataset's environment too.
"""

import re
from collections.abc import Mapping, Sequence

# "none" is noindex and nofollow (Google's specification of the header, which all of these come from).
_NO = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
_VALUED = frozenset({"maxsnippet", "maximagepreview", "maxvideopreview", "unavailableafter"})  # a word with a value
_AGENT = re.compile(r"[a-z*][a-z0-9*._/+-]*")


def opted_out(headers: Mapping[str, Sequence[str]], agent: str) -> bool:
    """Whether the headers forbid the use to us, a robot called `agent`, or to every robot.

    Args:
        headers: name to the values of all headers of that name; names in any case.

    Words said to another robot by name ("otherbot: noai") are not for us; they hold until the header names another or
    ends. Case, spaces, hyphens and underscores in a word do not count, nor do commas or semicolons between words.
    """
    for name, values in headers.items():
        if name.lower() == "x-robots-tag" and any(_forbids(value.lower(), agent.lower()) for value in values):
            return True
        # https://www.w3.org/community/reports/tdmrep/CG-FINAL-tdmrep-20240510/ : rights to text and data mining.
        if name.lower() == "tdm-reservation" and any(value.strip() == "1" for value in values):
            return True
    return False


def _forbids(value: str, agent: str) -> bool:
    """One X-Robots-Tag header, in small letters."""
    for_us = True
    for part in re.split(r"[,;]", value):
        *names, words = part.split(":")
        for name in map(str.strip, names):
            if _plain(name) in _NO and for_us:
                return True
            if _plain(name) not in _VALUED and _AGENT.fullmatch(name):  # a time of day ("15:00") names nobody
                for_us = name in (agent, "*")
        said = words.split()
        if names and _plain(names[-1]) in _VALUED:
            said = said[1:]  # max-image-preview:none forbids a preview
        # "noai noindex" without a comma is two words, and "no ai" one.
        if for_us and _NO & {"".join(map(_plain, said)), *map(_plain, said)}:
            return True
    return False


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]", "", word)
