"""Makes plain upright JPEGs of pictures that other readers would show wrong: EXIF rotation, kept or lost, and 16 bits.

    changed = reencode(Path("/data/set/00000.tar"))     # 12 samples; the other ones keep every byte

Pillow as most readers use it, and OpenCLIP, show a picture without regard to its EXIF tag and 16 bits as white. A
picture that img2dataset stored lying is turned by the tag in its JSON. One that it stored white is lost: only its
original bytes (`disable_all_reencoding`) could be repaired.
"""

import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image

from data_prep import atomic
from data_prep.errors import DataError
from data_prep.laion import findings, renewed
from data_prep.laion.manifests import manifests_over
from data_prep.laion.pictures import lost_turn, own_turn
from data_prep.laion.verify import Options, Result, verify
from data_prep.pool import unordered
from data_prep.shards import FORMATS, PICTURES, decode_image, read_headers

QUALITY = 95
_BLOCK = 512
_Member = tuple[tarfile.TarInfo, bytes, bytes]  # header, its bytes, content
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def repair(root: Path, result: Result, options: Options) -> Result:
    """Re-encode what can be repaired in the shards of a verification, and verify those again.

    Shards that are damaged themselves are left alone, and broken samples stay as they are. Manifests beside the shards
    name the new bytes at the end; killed in between they name the old ones, until the next verification.
    """
    names = [
        verdict.report.name
        for verdict in result.verdicts
        if verdict.against.keys().isdisjoint(findings.DAMAGE)
        and not verdict.report.counts.keys().isdisjoint(findings.REPAIRABLE)
    ]
    if not names:
        return result
    manifests = manifests_over(root, names)
    places: dict[str, list[tuple[Path, str]]] = {name: [] for name in names}
    for folder, entries in manifests.items():
        for entry, name in entries:
            if name is not None:
                places[name].append((folder, entry.shard))
    with renewed.alone(root, manifests):
        try:
            for _ in unordered(_reencode, [(root / name, places[name]) for name in names], options.workers):
                pass
        finally:
            for folder in manifests:
                renewed.record(folder)
    return verify(root, replace(options, again=False))


def _reencode(job: tuple[Path, list[tuple[Path, str]]]) -> int:
    return reencode(*job)


def reencode(shard: Path, places: Sequence[tuple[Path, str]] = ()) -> int:
    """Write a shard anew with its wrong pictures as JPEG; the same shard gives the same bytes.

    What its bytes will be stands in the logs before they are in place. The mode stays; what a link leads to stays, too,
    and the link becomes the new shard.

    Args:
        places: the folder of each manifest that names it, and its name there.

    Returns:
        The number of samples that changed. Their JSON says the new size, and "reencoded".

    Raises:
        DataError: the tar is damaged; it stays as it is.
    """
    changed = 0
    atomic.remove_left(shard)
    with atomic.writing(shard) as file:
        for group in _groups(shard):
            new = _repaired(group)
            changed += bool(new)
            for info, header, content in group:
                name_now, content_now = new.get(info.name, (info.name, content))
                same = content_now is content
                _write(file, header if same else _header(info, name_now, len(content_now)), content_now)
        file.write(bytes(2 * _BLOCK))
        file.flush()
        os.fchmod(file.fileno(), stat.S_IMODE(os.stat(shard).st_mode))
        renewed.log(places, Path(file.name))
    return changed


def _groups(shard: Path) -> Iterator[list[_Member]]:
    """The members of one sample after the other."""
    group: list[_Member] = []
    for info, file in read_headers(shard):
        file.seek(info.offset)
        header = file.read(info.offset_data - info.offset)
        if group and _key(group[0][0].name) != _key(info.name):
            yield group
            group = []
        group.append((info, header, file.read(info.size)))
    if group:
        yield group


def _key(name: str) -> str:
    return name.partition(".")[0]


def _suffix(name: str) -> str:
    return name.partition(".")[2].lower()


def _repaired(group: list[_Member]) -> dict[str, tuple[str, bytes]]:
    """New name and content by the name of a member; nothing where the picture is right, or cannot be decoded."""
    content = {_suffix(info.name): (info.name, data) for info, _, data in group}
    name, data = next((content[suffix] for suffix in PICTURES if suffix in content), ("", b""))
    json_name, text = content.get("json", ("", b""))
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError):
        meta = None
    meta = meta if isinstance(meta, dict) else {}
    try:
        image = _plain(data, meta)
    except DataError:
        image = None
    if image is None:
        return {}
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    new = {name: (f"{_key(name)}.jpg", buffer.getvalue())}
    if meta:
        meta |= {"width": image.width, "height": image.height, "reencoded": True}
        new[json_name] = (json_name, json.dumps(meta, indent=4).encode())
    return new


def _plain(data: bytes, meta: dict[str, Any]) -> Image.Image | None:
    """The picture upright and of 8 bits, None where it is so already."""
    image = decode_image(data)
    header = Image.open(io.BytesIO(data), formats=FORMATS)
    if own_turn(header) != 1:
        return image
    if (turn := lost_turn(meta, *header.size)) != 1:
        return image.transpose(_TURNS[turn])
    return image if header.mode.startswith("I") else None


def _header(info: tarfile.TarInfo, name: str, size: int) -> bytes:
    """A header like the member's own, for another content; 0 for a time or owner that has no room in it."""
    new = tarfile.TarInfo(name)
    new.size, new.mode, new.uname, new.gname = size, info.mode, info.uname, info.gname
    new.mtime, new.uid, new.gid = _fitting(info.mtime, 11), _fitting(info.uid, 7), _fitting(info.gid, 7)
    return new.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _fitting(number: float, digits: int) -> int:
    """pax headers hold any number, and "nan"; a plain one has this many octal digits."""
    return int(number) if 0 <= number < 8**digits else 0


def _write(file: BinaryIO, header: bytes, content: bytes) -> None:
    file.write(header)
    file.write(content)
    file.write(bytes(-len(content) % _BLOCK))
