"""What a JPEG's own bytes say, without decoding it.

    damage(data)      # "", "cut short (900 bytes)", "other data from byte 512 of 9000 on"

Standard library only: it runs in img2dataset's environment too.
"""

import re
from collections.abc import Iterator

START = b"\xff\xd8"
_END = b"\xff\xd9"
_APP1, _SCAN = 0xE1, 0xDA
_OTHER_SCANS = frozenset(range(0xC2, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start-of-frame markers of what is not sequential
_STRANGE = re.compile(rb"\xff[\x01-\xc3\xc5-\xcf\xd8\xde\xdf\xf0-\xfd]")  # what follows 255 in no scan


def damage(data: bytes) -> str:
    """How the first scan ends before its time; nothing where that is not seen.

    Decoders show the rest grey, and only sometimes say so. Within a scan no byte but 0 follows a 255, except in
    markers: a block of another file is nearly always found in a JPEG that is not progressive, a bit that flipped or
    zeros are not. What stands behind the end of a picture is not looked at: telephones put films there.
    """
    sequential = True
    for kind, _, end in _segments(data):
        sequential = sequential and kind not in _OTHER_SCANS
        if kind == _SCAN:
            stop = data.find(_END, end)
            if stop < 0:
                return f"cut short ({len(data)} bytes)"
            strange = _STRANGE.search(data, end, stop) if sequential else None
            return f"other data from byte {strange.start()} of {len(data)} on" if strange else ""
    return ""


def exif(data: bytes) -> bytes:
    """The EXIF block, wherever it stands before the scan; there may be profiles of 100 kB before it."""
    for kind, start, end in _segments(data):
        if kind == _APP1 and data[start : start + 6] == b"Exif\0\0":
            return data[start + 6 : end]
    return b""


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, and where its content begins and ends, of each segment to the head of the first scan."""
    at = len(START)
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:  # markers may be filled up
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield kind, at + 4, end
        if kind == _SCAN:
            return
        at = end
