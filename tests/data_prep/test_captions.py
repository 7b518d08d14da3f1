import random
import string

import open_clip
from hypothesis import given
from hypothesis import strategies as st

from data_prep.captions import MOST_CHARACTERS, MOST_LETTERS, shortened


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
