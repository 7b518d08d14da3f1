"""What a JPEG's own bytes say, without decoding it.

    damage(data)      # "", "cut short (900 bytes)", "other data from byte 512 of 9000 on"

Standard library only: it runs in img2dataset's environment too.
"""

import re
from collections.abc import Iterator

START = b"\xff\xd8"
_END = b"\xff\xd9"
_APP0, _APP1, _SCAN = 0xE0, 0xE1, 0xDA
_JFIF = b"JFIF\0"
_ALONE = frozenset((0x01, *range(0xD0, 0xD8)))  # markers without a length
_OTHER_SCANS = frozenset(range(0xC2, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start-of-frame markers of what is not sequential
_STRANGE = rb"\x01-\xc3\xc5-\xcf\xd8\xde\xdf\xf0-\xfd"  # what follows 255 in no scan
_SEGMENT = rb"\xe0-\xef\xfe"  # what programs may write anywhere: APP and comments
_IN_SCAN = {
    True: re.compile(rb"\xff(?:\xd9|([" + _SEGMENT + rb"])|([" + _STRANGE + rb"]))"),
    False: re.compile(rb"\xff(?:\xd9|([" + _SEGMENT + rb"]))"),
}


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
            return _damage_of_scan(data, end, sequential)
    return ""


def _damage_of_scan(data: bytes, at: int, sequential: bool) -> str:
    """The same of the scan whose first byte is at `at`."""
    while found := _IN_SCAN[sequential].search(data, at):
        at = found.end()
        if found[0] == _END:
            return ""
        if found[1]:  # which may hold a thumbnail, with an end of its own
            end = at + int.from_bytes(data[at : at + 2], "big")
            at = end if data[end : end + 1] == b"\xff" or end == len(data) else at
        else:
            return f"other data from byte {found.start()} of {len(data)} on"
    return f"cut short ({len(data)} bytes)"


def without_oddities(data: bytes) -> bytes:
    """The JPEG without what decoders warn of in the head of a whole picture: stray bytes between the segments before
    the first scan, and a revision of JFIF other than 1.
    """
    head, rest = bytearray(START), len(START)
    for kind, start, rest in _segments(data):
        content = data[start:rest]
        if kind == _APP0 and content.startswith(_JFIF):
            content = _JFIF + b"\1" + content[len(_JFIF) + 1 :]
        head += bytes((0xFF, kind)) + data[start - 2 : start] + content
    return bytes(head) + data[rest:]


def exif(data: bytes) -> bytes:
    """The EXIF block, wherever it stands before the scan; there may be profiles of 100 kB before it."""
    for kind, start, end in _segments(data):
        if kind == _APP1 and data[start : start + 6] == b"Exif\0\0":
            return data[start + 6 : end]
    return b""


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, and where its content begins and ends, of each segment to the head of the first scan.

    Stray bytes before a segment are passed over, as decoders do: some programs leave them in whole pictures.
    """
    at = len(START)
    while data.startswith(START) and 0 <= (at := data.find(b"\xff", at)) <= len(data) - 4:
        kind = data[at + 1]
        if kind == 0xFF:  # markers may be filled up
            at += 1
            continue
        if kind == 0 or kind in _ALONE:
            at += 2
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield kind, at + 4, end
        if kind == _SCAN:
            return
        at = end
