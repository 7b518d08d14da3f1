"""img2dataset with a fetch and a decoder that trust nobody; started by download.py in img2dataset's environment.

    python -m data_prep.laion.fetch '{"download": {"url_list": …}, "limits": {"max_bytes": …}, "again": []}'

img2dataset builds its `Downloader` and `Resizer` by name in `img2dataset.main`; ours stand there in their place. They
are sent to the workers (of multiprocessing, Spark or Ray) by pickle, which imports this module there, so that the
limits hold in every worker.

- A failure's message is one of few words (http.py), and only what may pass with time is tried again at once.
- Pictures with an EXIF rotation are stored upright and 16-bit ones with their content: img2dataset alone stores the
  first turned over, without the tag that says so, and the second white.
"""

import functools
import importlib
import io
import json
import os
import signal
import sys
import types
from collections.abc import Sequence
from typing import Any

# Before OpenCV is loaded. 40 million pixels is more than all but a few cameras give; the worst such picture (RGBA)
# takes 3 GB for a moment where img2dataset lays it on white.
MOST_PIXELS = 40_000_000
os.environ["OPENCV_IO_MAX_IMAGE_PIXELS"] = str(MOST_PIXELS)
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would ask the network for a newer version of itself
# img2dataset imports it for a service that is off here; each process of it takes a second and leaves temporary folders.
sys.modules.setdefault("wandb", types.ModuleType("wandb"))

import cv2  # noqa: E402
import exifread  # noqa: E402
import img2dataset.downloader  # noqa: E402
import img2dataset.main  # noqa: E402
import numpy as np  # noqa: E402
from img2dataset.downloader import Downloader  # noqa: E402
from img2dataset.resizer import Resizer  # noqa: E402

from data_prep.laion import jpeg  # noqa: E402
from data_prep.laion.again import asked_again  # noqa: E402
from data_prep.laion.http import FetchError, Limits, fetch  # noqa: E402
from data_prep.laion.reasons import transient  # noqa: E402

_PNG = b"\x89PNG\r\n\x1a\n"
_BIT_DEPTH = 24  # where a PNG's header says it
_EIGHT_BITS = (b"GIF8", b"RIFF", b"BM")  # WebP is a RIFF
_RESIZE_REASONS = ("image too small", "image area too large", "aspect ratio too large")
_limits = Limits()
_again: dict[str, str] = {}  # address to why it failed before


class GuardedDownloader(Downloader):
    """img2dataset's downloader, whose shards are fetched within `limits`, but for what the files `again` have."""

    def __init__(self, limits: Limits, again: Sequence[str], **settings: Any) -> None:
        super().__init__(**settings)
        self.limits, self.again = limits, again

    def download_shard(self, row: Any) -> None:
        global _limits, _again
        _limits, _again = self.limits, asked_again(self.again)
        img2dataset.downloader.download_image_with_retry = _download
        super().download_shard(row)


class GuardedResizer(Resizer):
    """img2dataset's resizer, given pictures upright and of 8 bits; a failure's reason is one of few words."""

    def __call__(self, img_stream: io.BytesIO, blurring_bbox_list: Any = None) -> tuple[Any, ...]:
        try:
            stream = io.BytesIO(_plain(img_stream.getvalue()))
        except Exception:  # OpenCV raises for damage and for more than MOST_PIXELS
            return None, None, None, None, None, "not decodable"
        *picture, error = super().__call__(stream, blurring_bbox_list)
        if error is not None and error not in _RESIZE_REASONS:
            error = "too many pixels" if "MAX_IMAGE_PIXELS" in error else "not decodable"
        return *picture, error


def _download(
    row: tuple[int, str], timeout: float, retries: int, user_agent_token: str, disallowed_header_directives: Any
) -> tuple[int, io.BytesIO | None, str | None]:
    """Takes the place of img2dataset's `download_image_with_retry`; returns (place, picture, why there is none)."""
    place, url = row
    if url in _again:
        return place, None, _again[url]
    reason = ""
    for _ in range(retries + 1):
        try:
            return place, io.BytesIO(fetch(url, _limits, timeout, user_agent_token)), None
        except FetchError as error:
            reason = str(error)
        if not transient(reason) or reason == "deadline":  # a server that drips would cost the whole time again
            break
    return place, None, reason


def _plain(data: bytes) -> bytes:
    """The picture as img2dataset can take it: one of 16 bits or a turned JPEG becomes an upright 8-bit PNG.

    Raises:
        ValueError: pixels of another kind, of which nobody knows what is white, or a JPEG that is damaged in a way that
            OpenCV passes over; stored anew nobody would see it.
    """
    if data.startswith(jpeg.START):  # which OpenCV turns upright where it is not told to leave it as it is
        if what := jpeg.damage(data):
            raise ValueError(what)
        return _png(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)) if _turned(data) else data
    if data.startswith(_EIGHT_BITS) or (data.startswith(_PNG) and data[_BIT_DEPTH : _BIT_DEPTH + 1] != b"\x10"):
        return data
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.dtype == np.uint8:
        return data
    if pixels.dtype != np.uint16:
        raise ValueError(f"pixels of {pixels.dtype}")
    return _png(((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _turned(data: bytes) -> bool:
    """Whether EXIF says that a JPEG is not to be shown as it is stored."""
    try:
        tags = exifread.process_file(io.BytesIO(jpeg.exif(data)), details=False, stop_tag="Image Orientation")
        return tags["Image Orientation"].values[0] in range(2, 9)
    except Exception:  # none or damaged EXIF says nothing, as for every program that shows pictures
        return False


def _png(pixels: Any) -> bytes:
    data: bytes = cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()
    return data


def main(text: str) -> None:
    """Download one part; `text` is JSON with img2dataset's settings and ours."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # some shells ignore it, and then the pool's workers would never end
    order = json.loads(text)
    program = sys.modules["img2dataset.main"]  # the package's own name `main` is a function
    downloader = functools.partial(GuardedDownloader, Limits(**order["limits"]), order["again"])
    vars(program).update(Downloader=downloader, Resizer=GuardedResizer)
    if order["download"]["distributor"] == "pyspark" and "PYSPARK_SUBMIT_ARGS" in os.environ:
        # img2dataset takes the session that is there; its own is always of this machine alone.
        spark = importlib.import_module("pyspark.sql").SparkSession
        spark.builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"]).getOrCreate()
    program.download(**order["download"])


if __name__ == "__main__":
    # By its own name, so that pickle finds the classes there and not in `__main__`.
    from data_prep.laion import fetch as module

    module.main(sys.argv[1])
