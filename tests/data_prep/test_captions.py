import random
import string
import unicodedata

import open_clip
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.captions import MOST_CHARACTERS, MOST_LETTERS, cleaned, shortened


@given(st.text(max_size=MOST_LETTERS))
def test_ordinary_captions_stay_as_they_are(caption):
    assert shortened(caption) == caption


def test_no_word_and_no_caption_is_longer():
    word = "".join(random.Random(0).choices(string.ascii_lowercase, k=3000))
    assert shortened(f"a {word} b") == f"a {word[:MOST_LETTERS]} b"
    assert len(shortened("a " * MOST_CHARACTERS)) == MOST_CHARACTERS


def test_the_tokens_of_a_long_word_are_those_of_the_whole():
    word = "".join(random.Random(0).choices(string.ascii_lowercase, k=2000))
    tokenizer = open_clip.get_tokenizer("ViT-S-16")
    assert tokenizer([shortened(f"a photo of {word}")]).equal(tokenizer([f"a photo of {word}"]))


@given(st.text(max_size=300) | st.binary(max_size=300))
def test_a_cleaned_text_can_be_stored_and_stays(raw):
    text = cleaned(raw)
    text.encode("utf-8")
    assert unicodedata.is_normalized("NFC", text)
    assert text == " ".join(text.split())
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
    assert cleaned(text) == text
    assert cleaned(text.encode()) == text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("  A  cat\r\non\ta mat ", "A cat on a mat"),
        (b"caf\xc3\xa9 \xff\xfe bar", "café bar"),
        ("cafe\u0301", "café"),
        ("a\0b\x1b[31mc\x7f", "a b [31mc"),
        ("\ud83d lone \udc00", "lone"),
        ("na\ufffdve", "na ve"),
        ("家族 👨‍👩‍👧", "家族 👨‍👩‍👧"),
        (b"", ""),
    ],
)
def test_cleaned(raw, text):
    assert cleaned(raw) == text


def test_a_cleaned_text_has_an_end():
    assert cleaned("é" * 1_000_000) == "é" * MOST_CHARACTERS
