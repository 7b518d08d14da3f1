"""The pictures given with ``--images``: files, and the picture files of folders."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from data_prep.errors import DataError
from data_prep.shards import decode_image
from evaluate.errors import RefusedError
from open_clip_linear.convert.features import PICTURE_SUFFIXES


def find_pictures(paths: Sequence[Path]) -> list[Path]:
    """Files in the order given, a folder's by name. Raises RefusedError: nothing there, a folder without pictures."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise RefusedError(f"--images {path}: no such file or folder.")
        inside = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise RefusedError(
                f"--images {path}: no picture in this folder ({', '.join(PICTURE_SUFFIXES)}). Give the folder that "
                "holds the files themselves."
            )
        files += inside
    return files


def read_picture(file: Path) -> Image.Image:
    """The picture in RGB, upright. Raises RefusedError where it cannot be read."""
    try:
        return decode_image(file.read_bytes())
    except (DataError, OSError) as error:
        raise RefusedError(
            f"--images {file}: cannot be read as a picture: {error}. Take it out or repair it."
        ) from error


def pixel_batches(
    preprocess: Callable[[Image.Image], Tensor],
    files: Sequence[Path],
    batch_size: int,
    device: str,
    advance: Callable[[int], object],
) -> Iterator[Tensor]:
    """Pixels (B, 3, H, W) float32 of the files in order; `advance` is told of each batch that was asked for."""
    for start in range(0, len(files), batch_size):
        batch = files[start : start + batch_size]
        yield torch.stack([preprocess(read_picture(file)) for file in batch]).to(device)
        advance(len(batch))
