"""Shards as img2dataset writes them, made here member by member so that each can be damaged."""

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from data_prep.laion.verify import Options, Result, as_json, verify

ALONE = Options(workers=1)

Members = list[tuple[str, bytes]]


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(seed: int, size: tuple[int, int] = (32, 24)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


def meta(key: str, caption: str, **changes: Any) -> bytes:
    """The JSON that img2dataset writes beside a picture of 32 x 24."""
    fields = {
        "url": f"http://example.com/{key}.jpg",
        "caption": caption,
        "key": key,
        "status": "success",
        "error_message": None,
        "width": 32,
        "height": 24,
        "original_width": 64,
        "original_height": 48,
        "exif": "{}",
    }
    return json.dumps({**fields, **changes}, indent=4).encode()


def samples(count: int, first: int = 0) -> Members:
    """jpg, txt and json of each, with keys from `first` on; every picture is another."""
    found: Members = []
    for number in range(first, first + count):
        key = f"{number:09d}"
        caption = f"picture {number}"
        found += [
            (f"{key}.jpg", encoded(noise(number))),
            (f"{key}.txt", caption.encode()),
            (f"{key}.json", meta(key, caption)),
        ]
    return found


def write_tar(path: Path, members: Sequence[tuple[str, bytes] | tarfile.TarInfo]) -> Path:
    """A tar of these members; a TarInfo stands for a member without content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return path


def write_record(shard: Path, keys: Sequence[str], failed: Sequence[str] = ()) -> None:
    """The table and the statistics that img2dataset leaves beside a shard."""
    rows = {
        "key": [*keys, *failed],
        "status": ["success"] * len(keys) + ["failed_to_download"] * len(failed),
        "error_message": [None] * len(keys) + ["HTTP Error 404: Not Found"] * len(failed),
    }
    pyarrow.parquet.write_table(pyarrow.table(rows), shard.with_suffix(".parquet"))
    stats = {
        "count": len(keys) + len(failed),
        "successes": len(keys),
        "failed_to_download": len(failed),
        "failed_to_resize": 0,
        "status_dict": {"success": len(keys), **({"HTTP Error 404: Not Found": len(failed)} if failed else {})},
    }
    shard.with_name(f"{shard.stem}_stats.json").write_text(json.dumps(stats))


def downloaded(folder: Path, number: int, count: int = 4, failed: int = 1) -> Path:
    """A finished shard of a part, with what img2dataset leaves beside it."""
    shard = write_tar(folder / f"{number:05d}.tar", samples(count, number * 10_000))
    keys = [f"{number * 10_000 + n:09d}" for n in range(count + failed)]
    write_record(shard, keys[:count], keys[count:])
    return shard


def tampered(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def parts(root: Path, count: int = 6) -> Path:
    """A folder of shards, of which the second is cut and the fourth has a bad caption."""
    for number in range(count):
        downloaded(root / "parts" / "00000", number)
    tampered(root / "parts/00000/00001.tar", lambda tar: tar[:5000])
    write_tar(root / "parts/00000/00003.tar", samples(4, 90))
    return root


def found(result: Result) -> object:
    """All but the speed."""
    return {key: value for key, value in as_json(result).items() if key != "read"}


def reasons(folder: Path, options: Options = ALONE) -> set[str]:
    """What speaks against the shards of a folder."""
    return {reason for verdict in verify(folder, options).unsound for reason in verdict.against}
