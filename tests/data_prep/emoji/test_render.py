"""Tests of data_prep.emoji.render with the real resvg."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_prep.emoji.render import Job, Picture, fit, render, render_all

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
    jobs = [Job(str(n), document(f'<circle r="{n}" fill="#00f"/>'), 24) for n in range(1, 150)]
    assert list(render_all(jobs, 2)) == list(render_all(jobs, 1))


INTERRUPTED = """
import sys
from data_prep.__main__ import main
from data_prep.commands import check
from data_prep.emoji.render import Job, render_all

def run(args):
    for picture in render_all([Job("a", b"no picture", 24)] * 10_000_000, 2):
        print(picture.key, flush=True)

if __name__ == "__main__":
    check.run = run
    sys.exit(main(["check", "nothing"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2, 30])
def test_interrupts_end_it_however_many_come(tmp_path: Path, signals: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, script],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05 if signals == 2 else 0.001)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert said == "interrupted; nothing half-built is left, run the same command again\n"
