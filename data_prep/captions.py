"""Captions as text can be stored and as a tokenizer can take them."""

import re
import unicodedata

MOST_LETTERS = 1000  # of a word
MOST_CHARACTERS = 20_000
# Controls, halves of surrogate pairs, what stands for bytes that were no UTF-8, and the two that are no characters.
_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd-\uffff]+")
_LONG_WORD = re.compile(rf"(\S{{{MOST_LETTERS}}})\S+")


def shortened(caption: str) -> str:
    """The caption with words of at most 1,000 letters, and of at most 20,000 characters.

    OpenCLIP's tokenizer merges the letters of a word in a time that grows with their square: an address or base64 of
    100 kB in one sample would stop a run for hours. A text tower reads a few hundred tokens at most, and a thousand
    letters hold more, so ordinary captions and their tokens stay as they are.
    """
    return _LONG_WORD.sub(r"\1", caption[:MOST_CHARACTERS])


def cleaned(raw: str | bytes) -> str:
    """A stranger's text as valid text: UTF-8 in NFC, without control characters, single spaces between words.

    Control characters, lone surrogates, bytes that are no UTF-8 and what stands for such bytes (U+FFFD) become spaces.
    Of more than 20,000 characters the first 20,000 are kept; nothing may be left.
    """
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    text = " ".join(text[: 4 * MOST_CHARACTERS].split())[:MOST_CHARACTERS].rstrip()
    if text.isascii() and text.isprintable():
        return text
    return unicodedata.normalize("NFC", " ".join(_NO_TEXT.sub(" ", text).split()))
