"""Turns artwork into square RGB PNG pictures on white, in several processes.

SVG goes through resvg, about 10 ms a picture at 96 px; text in an SVG would depend on the machine's fonts, so system
fonts are left out and the same artwork gives the same pixels everywhere.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PIL import Image

from data_prep.pool import unordered
from data_prep.shards import decode_image

_CHUNK = 32


@dataclass(frozen=True)
class Job:
    """One picture to make: SVG text or the bytes of a picture file."""

    key: str
    source: str | bytes
    size: int


@dataclass(frozen=True)
class Picture:
    """What came of a job: a PNG, or the reason there is none."""

    key: str
    png: bytes | None
    problem: str = ""


def render_all(jobs: Sequence[Job], workers: int) -> Iterator[Picture]:
    """The pictures in the order of the jobs; one worker means this process itself.

    Raises:
        DataError: a rendering process was killed, most likely for memory.
    """
    chunks = enumerate(jobs[first : first + _CHUNK] for first in range(0, len(jobs), _CHUNK))
    early: dict[int, list[Picture]] = {}  # what other processes made before the chunk that is next
    following = 0
    for number, pictures in unordered(_render_chunk, chunks, workers):
        early[number] = pictures
        while following in early:
            yield from early.pop(following)
            following += 1


def _render_chunk(chunk: tuple[int, Sequence[Job]]) -> tuple[int, list[Picture]]:
    """A numbered chunk's pictures; one at a time would cost more in messages than in drawing."""
    number, jobs = chunk
    return number, [render(job) for job in jobs]


def render(job: Job) -> Picture:
    """Make one picture; whatever goes wrong is told in the result, never raised, so that one picture stops nothing."""
    try:
        image = (
            _draw_svg(job.source, job.size) if isinstance(job.source, str) else fit(decode_image(job.source), job.size)
        )
        if image.getextrema() == ((255, 255),) * 3:
            return Picture(job.key, None, "nothing but white")
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return Picture(job.key, buffer.getvalue())
    except Exception as error:
        return Picture(job.key, None, f"{type(error).__name__}: {error}")


def _draw_svg(source: str, size: int) -> Image.Image:
    """An SVG at `size` pixels along its longer side."""
    import resvg_py

    square = source.replace("<svg ", f'<svg width="{size}" height="{size}" ', 1)
    png = resvg_py.svg_to_bytes(svg_string=square, skip_system_fonts=True, background="#ffffff")
    return fit(decode_image(bytes(png)), size)


def fit(image: Image.Image, size: int) -> Image.Image:
    """The picture as a square of `size` pixels: shrunk or grown to fit, centred on white."""
    if image.size == (size, size):
        return image
    scale = size / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    square = Image.new("RGB", (size, size), "white")
    square.paste(image.resize((width, height), Image.Resampling.LANCZOS), ((size - width) // 2, (size - height) // 2))
    return square
