"""Whether an answer's headers say that its picture is not to be used: X-Robots-Tag in its spellings, TDM-Reservation.

    opted_out({"X-Robots-Tag": ["max-image-preview:large, noai"]}, "img2dataset")    # True; img2dataset's own is False

Standard library only: it runs in img2dataset's environment too. What may be meant as an opt-out is taken for one.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

# "none" is noindex and nofollow (Google's specification of the header, which all of these come from).
_NO = frozenset({"noai", "noimageai", "noml", "noindex", "noimageindex", "none"})
_AFTER = "unavailableafter"
_VALUED = frozenset({"maxsnippet", "maximagepreview", "maxvideopreview", _AFTER})  # a word with a value
_AGENT = re.compile(r"[a-z*][a-z0-9*._/+-]*")
_NOISE = re.compile(r"[^a-z0-9*._:,;/+-]")  # quotes and brackets around words
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATE = re.compile(  # ISO 8601, RFC 822, RFC 850
    rf"(\d{{4}})-(\d\d)-(\d\d)|(\d{{1,2}})[ -]({'|'.join(_MONTHS)})[a-z]*[ -](\d{{4}}|\d\d)\b"
)


def opted_out(headers: Mapping[str, Sequence[str]], agent: str) -> bool:
    """Whether the headers forbid the use to us, a robot called `agent`, or to every robot.

    Args:
        headers: name to the values of all headers of that name; names in any case.

    Words said to another robot by name ("otherbot: noai") are not for us; they hold until the header names another or
    ends. Case, spaces and signs in a word do not count, nor do commas, semicolons or equals signs between words.
    """
    for name, values in headers.items():
        if name.lower() == "x-robots-tag" and any(_forbids(value.lower(), agent.lower()) for value in values):
            return True
        if name.lower() == "tdm-reservation" and any(map(_reserves, values)):
            return True
    return False


def _reserves(value: str) -> bool:
    """A TDM-Reservation: all but 0, whatever parameters follow. The header is joined by commas where it comes twice.

    https://www.w3.org/community/reports/tdmrep/CG-FINAL-tdmrep-20240510/ : rights to text and data mining.
    """
    said = (part.partition(";")[0].strip(" \t\"'").lower() for part in value.split(","))
    return any(word not in ("", "0", "false") for word in said)


def _forbids(value: str, agent: str) -> bool:
    """One X-Robots-Tag header, in small letters."""
    for_us = True
    parts = re.split(r"[,;]", _NOISE.sub(" ", value.replace("=", ":")))
    for number, part in enumerate(parts):
        *names, words = part.split(":")
        said = words.split()
        for place, name in enumerate(names, start=1):
            word, (*before, named) = _plain(name), name.split() or [""]
            if for_us and (_says_no([name]) or _says_no(before)):
                return True
            if for_us and word == _AFTER and _is_over(",".join(parts[number:])):
                return True
            if word == "useragent":  # "user-agent: otherbot noai"; with "user-agent: otherbot: noai" the next one names
                named = said.pop(0) if said and place == len(names) else ""
            if word not in _VALUED and _AGENT.fullmatch(named):  # a time of day ("15:00") names nobody
                for_us = named.partition("/")[0] in (agent, "*")
        if names and _plain(names[-1]) in _VALUED:
            said = said[1:]  # max-image-preview:none forbids a preview
        if for_us and _says_no(said):
            return True
    return False


def _says_no(words: Sequence[str]) -> bool:
    """Whether one of the words forbids: "noai noindex" without a comma is two, and "no ai" one."""
    apart = [part for word in words for part in word.split("/")]
    return not _NO.isdisjoint({_plain("".join(words)), *map(_plain, apart)})


def _is_over(text: str) -> bool:
    """Whether the first date of a text, by the day, is not still to come; so too where there is no date."""
    found = _DATE.search(text)
    if not found:
        return True
    year, month, day, day_of_name, name, year_of_name = found.groups()
    if name:
        year = year_of_name if len(year_of_name) == 4 else f"{'20' if year_of_name < '69' else '19'}{year_of_name}"
        month, day = _MONTHS.index(name) + 1, day_of_name
    today = datetime.now(UTC)
    return (int(year), int(month), int(day)) <= (today.year, today.month, today.day)


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word)
