"""Captions as a tokenizer can take them."""

import re

MOST_LETTERS = 1000  # of a word
MOST_CHARACTERS = 20_000
_LONG_WORD = re.compile(rf"(\S{{{MOST_LETTERS}}})\S+")


def shortened(caption: str) -> str:
    """The caption with words of at most 1,000 letters, and of at most 20,000 characters.

    OpenCLIP's tokenizer merges the letters of a word in a time that grows with their square: an address or base64 of
    100 kB in one sample would stop a run for hours. A text tower reads a few hundred tokens at most, and a thousand
    letters hold more, so ordinary captions and their tokens stay as they are.
    """
    return _LONG_WORD.sub(r"\1", caption[:MOST_CHARACTERS])
