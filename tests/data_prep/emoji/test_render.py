"""Tests of data_prep.emoji.render with the real resvg."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from data_prep.emoji.render import Job, Picture, Renderer, fit, render
from data_prep.errors import DataError

RED = '<rect width="32" height="16" fill="#f00"/>'
WHITE = '<rect width="16" height="16" fill="#fff"/>'


def document(body: str, box: str = "0 0 32 16") -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}">{body}</svg>'


def pixels(picture: Picture) -> np.ndarray:
    assert picture.png is not None, picture.problem
    image = Image.open(io.BytesIO(picture.png))
    assert image.mode == "RGB"
    return np.asarray(image)


def wide_photo() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGBA", (40, 20), (255, 0, 0, 255)).save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


@pytest.mark.parametrize("source", [document(RED), wide_photo()], ids=["svg", "webp"])
def test_picture_is_centred_on_white_with_its_aspect_kept(source: str | bytes) -> None:
    found = pixels(render(Job("a", source, 24)))
    assert found.shape == (24, 24, 3)
    assert (found[:5] == 255).all()
    assert (found[-5:] == 255).all()
    assert (found[7:17] == (255, 0, 0)).all()


def test_fit_grows_and_shrinks() -> None:
    assert fit(Image.new("RGB", (3, 300)), 24).size == (24, 24)
    assert fit(Image.new("RGB", (2, 2)), 24).getpixel((12, 12)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("<svg ", "ValueError"),
        (b"no picture", "DataError: not a readable picture"),
        (document(WHITE), "nothing but white"),
        (document(""), "nothing but white"),
    ],
)
def test_problem_is_told_not_raised(source: str | bytes, problem: str) -> None:
    picture = render(Job("a", source, 24))
    assert picture.png is None
    assert problem in picture.problem


def test_processes_give_the_same_in_the_same_order() -> None:
    jobs = [Job(str(n), document(f'<circle r="{n}" fill="#00f"/>'), 24) for n in range(1, 70)]
    with Renderer(1) as one, Renderer(2) as two:
        assert list(two.map(jobs)) == list(one.map(jobs))


def test_killed_process_is_an_error_not_a_hang() -> None:
    with Renderer(2) as renderer:
        assert renderer._pool is not None
        renderer._pool.submit(os.getpid).result()
        victims = list(renderer._pool._processes.values())
        for victim in victims:
            victim.kill()
            victim.join()
        with pytest.raises(DataError, match="a rendering process was killed"):
            list(renderer.map([Job("a", document(RED), 24)] * 4))
