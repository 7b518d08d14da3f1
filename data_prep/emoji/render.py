"""Turns artwork into square RGB PNG pictures on white, in several processes.

SVG goes through resvg, about 10 ms a picture at 96 px; text in an SVG would depend on the machine's fonts, so system
fonts are left out and the same artwork gives the same pixels everywhere.
"""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from PIL import Image

from data_prep.errors import DataError
from data_prep.pool import new_pool
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


class Renderer:
    """A pool of rendering processes; use it in a `with` block. One worker means this process itself."""

    def __init__(self, workers: int) -> None:
        self._pool: ProcessPoolExecutor | None = None
        if workers > 1:
            self._pool = new_pool(workers)

    def map(self, jobs: Sequence[Job]) -> Iterator[Picture]:
        """The pictures in the order of the jobs.

        Raises:
            DataError: a rendering process was killed, most likely for memory.
        """
        if self._pool is None:
            yield from map(render, jobs)
            return
        try:
            yield from self._pool.map(render, jobs, chunksize=_CHUNK)
        except BrokenProcessPool:
            raise DataError("a rendering process was killed (memory?); run again with --workers 1") from None

    def __enter__(self) -> "Renderer":
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


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
