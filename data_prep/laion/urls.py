"""What of a stranger's URL can be asked for: http(s), one spelling, a public host.

    clean_url("HTTP://Bücher.example:80/a b.jpg#top")   # "http://xn--bcher-kva.example/a%20b.jpg"
    is_public_host(host_of("http://0x7f.1/"))           # False: 127.0.0.1 in another dress

Names are not resolved here: the download looks at the address that a name leads to.
"""

import functools
import ipaddress
import re
from urllib.parse import quote

from data_prep.laion.addresses import is_public

MOST_CHARACTERS = 4096
# ASCII letters alone: with Unicode's small letters, "httpſ" would be https.
_URL = re.compile(r"(https?)://([^/?#\\]+)(/[^?#]*)?(\?[^#]*)?(?:#.*)?", re.IGNORECASE | re.ASCII | re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SAFE = "!$&'()*+,;=:@/?[]-._~"
_PLAIN = re.compile(rf"(?:[A-Za-z0-9{re.escape(_SAFE)}]|%[0-9A-Fa-f]{{2}})*")
_BARE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_NAME = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}
# Names that lead nowhere or inside: RFC 2606, 6761, 6762, 7686, 8375, 9476 and what routers and companies use.
_INSIDE = re.compile("localhost|localdomain|local|internal|intranet|private|corp|home|lan|test|invalid|onion|arpa|alt")


def clean_url(raw: str | bytes | None) -> str | None:
    """The one spelling of a URL: ASCII, percent-encoded, with a small host and no fragment, user or usual port.

    Bytes that are no UTF-8 are percent-encoded as they stand, as a browser would send them.

    Returns:
        None for what is no http(s) URL, has control characters or credentials, a host or port that cannot be, or more
        than 4,096 characters.
    """
    if raw is None:
        return None
    text = (raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw).strip()
    if len(text) > MOST_CHARACTERS or _CONTROL.search(text):
        return None
    parts = _URL.fullmatch(text)
    if parts is None:
        return None
    scheme = parts[1].lower()
    place = _clean_place(parts[2], _DEFAULT_PORTS[scheme])
    if place is None:
        return None
    rest = (parts[3] or "/") + (parts[4] or "")
    if not _PLAIN.fullmatch(rest):
        try:
            rest = quote(_BARE_PERCENT.sub("%25", rest), safe=_SAFE + "%", errors="surrogateescape")
        except UnicodeEncodeError:  # half of a surrogate pair, which no encoding has
            return None
    url = f"{scheme}://{place}{rest}"
    return url if len(url) <= MOST_CHARACTERS else None


@functools.lru_cache(maxsize=1 << 16)
def _clean_place(place: str, usual_port: int) -> str | None:
    """Host and port in their one spelling, or None."""
    if "@" in place:
        return None  # credentials, or a trick about where the host begins
    host, bracket, port = place.partition("]") if place.startswith("[") else (place, "", "")
    if not bracket:
        host, colon, port = place.partition(":")
        port = colon + port
    if port not in ("", ":"):
        if not re.fullmatch(":[0-9]{1,5}", port) or not 1 <= int(port[1:]) <= 65535:
            return None
        port = "" if int(port[1:]) == usual_port else f":{int(port[1:])}"
    name = _clean_literal(host[1:]) if bracket else _clean_name(host)
    return None if name is None else name + ("" if port == ":" else port)


def _clean_literal(text: str) -> str | None:
    """An IPv6 address in brackets, without a zone."""
    try:
        return None if "%" in text else f"[{ipaddress.IPv6Address(text)}]"
    except ValueError:
        return None


def _clean_name(host: str) -> str | None:
    """A host's name in the letters of DNS; numbers in any dress come through as they are."""
    if len(host) > 253:
        return None
    try:
        name = (host if host.isascii() else host.encode("idna").decode("ascii")).lower().removesuffix(".")
    except UnicodeError:
        return None
    return name if _NAME.fullmatch(name) and len(name) <= 253 else None


def host_of(url: str) -> str:
    """The host of a URL that `clean_url` gave: a name, an IPv4 address, or an IPv6 address in brackets."""
    place = url.split("/", 3)[2]
    return place[: place.index("]") + 1] if place.startswith("[") else place.partition(":")[0]


@functools.lru_cache(maxsize=1 << 16)
def is_public_host(host: str) -> bool:
    """Whether a host of `host_of` may be on the public internet by its name alone.

    A literal address must be a public one in its usual form; every program reads 127.1, 0177.0.0.1 or 2130706433 in a
    way of its own.
    """
    if host.startswith("["):
        return is_public(host[1:-1])
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return is_public(str(ipaddress.IPv4Address(host)))
        except ValueError:
            return False
    return len(labels) > 1 and not _INSIDE.fullmatch(labels[-1])
