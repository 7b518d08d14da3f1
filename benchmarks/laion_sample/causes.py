"""What goes wrong in the sample, in how many of its rows, and what has to come of each."""

from data_prep.laion.finished import SUCCESS

ROWS = 2000

# Rows that the plan has to leave out: kind to (rows, the rule that has to count them).
LEFT_OUT: dict[str, tuple[int, str]] = {
    "similarity": (60, "similarity"),  # below 0.3, or none
    "nsfw": (40, "nsfw"),  # NSFW, UNSURE, or no tag
    "side": (30, "min_side"),
    "aspect": (20, "aspect"),
    "file": (5, "url"),
    "data": (5, "url"),
    "no-url": (15, "url"),  # ftp:, credentials, a path, nothing
    "no-caption": (10, "caption"),
    "blank": (10, "caption_length"),  # spaces, control characters, two letters
    "long-caption": (5, "caption_length"),  # of 100 kB
    "duplicate": (40, "duplicate"),  # half of them spelled otherwise
}

# Rows that are asked for: kind, which the address begins with, to rows. All others are pictures as they should be.
SERVED: dict[str, int] = {
    "404": 140,
    "410": 30,
    "403": 30,
    "503": 20,  # whenever asked
    "503-twice": 30,  # then a picture, at the third try
    "503-thrice": 30,  # then a picture, for `retry`
    "reset": 20,
    "closed": 10,  # without a word
    "not-http": 10,  # of another protocol
    "stall": 20,  # takes the request and says nothing
    "drip": 15,  # a byte every tenth of a second
    "cut-short": 20,  # ends before the length that was said
    "half-file": 20,  # all that the server has, and it says so
    "empty": 15,
    "html": 40,
    "redirect": 40,  # redirected once, to a picture
    "redirect-loop": 15,
    "redirect-to-file": 10,  # redirected to file:///etc/hostname
    "opted-out": 30,  # by a header, in several spellings
    "12000x12000": 5,  # 12,000 x 12,000 pixels
    "200mb": 5,  # as its header says
    "200mb-unsaid": 5,  # as no header says
    "8x8": 10,  # 8 x 8 pixels, whatever the metadata says
    "4-to-1": 10,  # four times as long as wide, whatever the metadata says
    "turned": 40,  # by an EXIF tag
    "16-bit": 20,
    "dirty-caption": 20,  # bytes that are no UTF-8, NUL
}

# What the server did last, in its log's words, to what has to stand in the download's table.
OUTCOMES: dict[str, str] = {
    "picture": SUCCESS,
    "turned": SUCCESS,
    "16-bit": SUCCESS,
    "8x8": "image too small",
    "4-to-1": "aspect ratio too large",
    "12000x12000": "too many pixels",
    "200mb": "too large",
    "200mb-unsaid": "too large",
    "html": "not decodable",
    "half-file": "not decodable",
    "404": "HTTP 404",
    "410": "HTTP 410",
    "403": "HTTP 403",
    "503": "HTTP 503",
    "reset": "connection",
    "closed": "connection",
    "not-http": "bad answer",
    "stall": "timeout",
    "drip": "deadline",
    "cut-short": "cut short",
    "empty": "empty",
    "redirect-loop": "redirects",
    "redirect-to-file": "redirects",
    "opted-out": "opted out",
}
BUSY = {"503-twice": 2, "503-thrice": 3}  # kind to how often the server is busy before it sends the picture


def action(kind: str, times: int) -> str:
    """What the server does when an address of this kind is asked for the `times`-th time, from 1."""
    if kind in BUSY:
        return "503" if times <= BUSY[kind] else "picture"
    return "picture" if kind == "dirty-caption" else kind


def kinds() -> list[str]:
    """The kind of each of the rows, in no order that means anything."""
    found = [kind for kind, (rows, _) in LEFT_OUT.items() for _ in range(rows)]
    found += [kind for kind, rows in SERVED.items() for _ in range(rows)]
    return found + ["picture"] * (ROWS - len(found))
