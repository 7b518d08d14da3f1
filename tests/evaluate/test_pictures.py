"""Pictures inside the page: only pixels, and escaped names."""

import base64
import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from evaluate.data.emoji import ClassEntry, Folder, Sample
from evaluate.examples import Examples
from evaluate.gallery import Guess, Retrieval
from evaluate.pictures import data_uri, found, guesses

NASTY = "<b>&\"'</b>"
ESCAPED = "&lt;b&gt;&amp;&quot;&#x27;&lt;/b&gt;"


def picture(size: tuple[int, int], mode: str = "RGBA") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, format="PNG", pnginfo=None)
    return buffer.getvalue()


@pytest.fixture
def encoded() -> Examples:
    classes = [ClassEntry("1", NASTY, "g", "s", False), ClassEntry("2", "plain", "g", "s", False)]
    samples = [Sample("s.tar", f"k{i}", picture((8, 8)), i, "<vendor>", "credit") for i in range(2)]
    return Examples(Folder(Path("f"), classes, samples, ""), samples, torch.eye(2), torch.eye(2))


@pytest.mark.parametrize(("size", "shown"), [((8, 8), (8, 8)), ((400, 200), (96, 48))])
def test_data_uri_is_a_small_png_on_white(size: tuple[int, int], shown: tuple[int, int]) -> None:
    kind, _, data = data_uri(picture(size)).partition(",")
    assert kind == "data:image/png;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert (image.size, image.mode) == (shown, "RGB")
    assert image.getpixel((0, 0)) == (255, 255, 255)


def test_retrieval_rows_mark_right_pictures_and_escape(encoded: Examples) -> None:
    html = found([Retrieval(0, [1, 0], [False, True])], 1, encoded)
    assert NASTY not in html
    assert "<vendor>" not in html
    assert f"“{ESCAPED}”" in html
    assert f'alt="Emoji: {ESCAPED}, drawn by &lt;vendor&gt;"' in html
    assert html.count('class="picture right"') == html.count("✓") == 1
    assert "for 1 of 2 captions (50.0&nbsp;%)" in html


def test_guess_cards_say_right_wrong_and_where_the_truth_is(encoded: Examples) -> None:
    right = Guess(0, [0, 1], [0.75, 0.25], 1, 0.75)
    wrong = Guess(1, [0], [0.9], 2, 0.1)
    html = guesses([right, wrong], 1, encoded)
    assert NASTY not in html
    assert html.count("✓ right") == html.count("✗ wrong") == 1
    assert "75.0&nbsp;%" in html
    assert "The true name is number 2, at 10.0&nbsp;%" in html
