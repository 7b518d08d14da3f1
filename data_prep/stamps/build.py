"""Builds the stamps set: Debian's tuxpaint-stamps-default -> described pictures -> one shard in two layouts at once.

    DIR/test/0.tar          KEY.png  KEY.txt (the description)  KEY.json  KEY.cls (the description's line, from 0)
    DIR/test/manifest.jsonl             so `training` reads it
    DIR/test/nshards.txt  DIR/classnames.txt  DIR/zeroshot_classification_templates.txt
                                        so `evaluate zero-shot --dataset wds/stamps --root DIR`, `evaluate retrieval
                                        --data DIR` and CLIP_benchmark do
    DIR/README.md  DIR/copyright  DIR/stats.json

About 30 s and 40 MB of disk, after a package of 161 MB that is not kept. DIR appears when it is whole; the same package
gives the same bytes with the same versions of Pillow and resvg (named in stats.json).
"""

import importlib.util
import io
import json
import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from data_prep import atomic
from data_prep.emoji.render import fit
from data_prep.errors import DataError
from data_prep.manifest import read_manifest, sha256_file, write_manifest
from data_prep.shards import ShardWriter, decode_image
from data_prep.stamps import deb
from data_prep.stamps.readme import readme

PACKAGE = "tuxpaint-stamps-default"
LICENCE = "GPL-2"
STATS, SPLIT = "stats.json", "test"
_FOLDER = PurePosixPath("usr/share/tuxpaint/stamps")
_COPYRIGHT = f"usr/share/doc/{PACKAGE}/copyright"
_MIRROR = "_mirror"  # a hand-made mirror image of another stamp; it has no description of its own
_MOST_FAILED = 0.02  # of the pictures


@dataclass(frozen=True)
class Stamp:
    """One stamp as the package has it: its path below the stamps' folder, its picture file, its description."""

    path: str  # without suffix: "animals/birds/owl"
    picture: bytes
    svg: bool
    description: str

    @property
    def key(self) -> str:
        """The sample's key: the path in letters, digits, underscores and hyphens."""
        return re.sub(r"[^A-Za-z0-9_]+", "-", self.path)

    @property
    def category(self) -> str:
        """The first folder: "animals"."""
        return self.path.partition("/")[0]


def build(output: Path, package: Path | None, image_size: int) -> dict[str, Any]:
    """Build the set in `output` from the .deb `package` (None: apt fetches it), or find it already built.

    Returns:
        The content of stats.json, and under "built" whether this call built it.

    Raises:
        DataError: says what to do; no half-built folder is left.
    """
    if output.exists():
        return {"built": False, **_check_built(output, package, image_size)}
    if importlib.util.find_spec("resvg_py") is None:
        raise DataError("some stamps are SVG, and resvg-py is not installed: pip install resvg-py")
    with atomic.building(output) as folder, tempfile.TemporaryDirectory(dir=folder) as downloads:
        file = package or deb.download(PACKAGE, Path(downloads))
        fields = deb.control(file)
        if fields.get("Package") != PACKAGE:
            raise DataError(f"{file} is the package {fields.get('Package')!r}; this takes {PACKAGE}")
        stamps, notice = read_stamps(file)
        stats = {
            "command": f"python -m data_prep stamps --output {output} --image-size {image_size}",
            "package": PACKAGE,
            "version": fields.get("Version", "unknown"),
            "deb_sha256": sha256_file(file),
            "image_size": image_size,
            **_write(folder, stamps, image_size),
            "made_with": {"python": platform.python_version()}
            | {name: version(name) for name in ("pillow", "resvg-py")},
        }
        atomic.write_bytes(folder / "copyright", notice)
        atomic.write_text(folder / STATS, json.dumps(stats, indent=1) + "\n")
        atomic.write_text(folder / "README.md", readme(stats))
    return {"built": True, **stats}


def read_stamps(package: Path) -> tuple[list[Stamp], bytes]:
    """The stamps that have a description, sorted by path, and the package's copyright file.

    Where a stamp comes as PNG and as SVG it is the PNG. Raises DataError: the package has no such stamps.
    """
    found: dict[str, dict[str, bytes]] = {}
    notice = b""
    wanted = (".png", ".svg", ".txt")
    for name, content in deb.files(package, lambda name: name.endswith(wanted) or name == _COPYRIGHT):
        path = PurePosixPath(name)
        if name == _COPYRIGHT:
            notice = content
        elif path.is_relative_to(_FOLDER):
            found.setdefault(str(path.relative_to(_FOLDER).with_suffix("")), {})[path.suffix] = content
    stamps = []
    for stem, parts in sorted(found.items()):
        description = parts.get(".txt", b"").decode("utf-8", "replace").partition("\n")[0].strip()
        picture = parts.get(".png", parts.get(".svg"))
        if description and picture is not None and not stem.endswith(_MIRROR):
            stamps.append(Stamp(stem, picture, ".png" not in parts, description))
    if not stamps:
        raise DataError(f"{package} has no described pictures below {_FOLDER}; is it another version of {PACKAGE}?")
    return stamps, notice


def draw(stamp: Stamp, size: int) -> bytes:
    """The stamp as a square PNG of `size` pixels on white. Raises DataError where nothing can be drawn."""
    image = decode_image(_draw_svg(stamp.picture, size) if stamp.svg else stamp.picture)
    if image.getextrema() == ((255, 255),) * 3:
        raise DataError("nothing but white")
    buffer = io.BytesIO()
    fit(image, size).save(buffer, "PNG")
    return buffer.getvalue()


def _draw_svg(source: bytes, size: int) -> bytes:
    """PNG of an SVG, `size` pixels along its longer side; without the machine's fonts, so alike everywhere."""
    import resvg_py

    try:
        text = source.decode("utf-8")
        # 96 dots an inch is CSS's own; without it resvg-py has none, and sizes in pt or cm come out as 0.
        drawn = resvg_py.svg_to_bytes(
            svg_string=text, width=size, height=size, dpi=96, skip_system_fonts=True, background="#ffffff"
        )
    except ValueError as error:
        raise DataError(f"SVG that cannot be drawn: {error}") from error
    return bytes(drawn)


def _write(folder: Path, stamps: Sequence[Stamp], image_size: int) -> dict[str, Any]:
    """Draw the stamps and write the set's files; returns what came of it.

    Raises:
        DataError: many pictures cannot be drawn, so something else is wrong.
    """
    pictures: dict[Stamp, bytes] = {}
    failed: dict[str, str] = {}
    for stamp in stamps:
        try:
            pictures[stamp] = draw(stamp, image_size)
        except DataError as error:
            failed[stamp.path] = str(error)
            print(f"left out {stamp.path}: {error}", file=sys.stderr)
    if len(failed) > _MOST_FAILED * len(stamps):
        first, reason = next(iter(failed.items()))
        raise DataError(
            f"{len(failed)} of {len(stamps)} pictures cannot be drawn, more than {_MOST_FAILED:.0%}; "
            f"the first is {first}: {reason}"
        )
    classes = sorted({stamp.description for stamp in pictures})
    label = {description: number for number, description in enumerate(classes)}
    (folder / SPLIT).mkdir()
    with ShardWriter(folder / SPLIT / "0.tar") as writer:
        for stamp, png in pictures.items():
            writer.write(stamp.key, _members(stamp, png, label[stamp.description]))
    write_manifest(folder / SPLIT, [writer.close()])
    atomic.write_text(folder / SPLIT / "nshards.txt", "1\n")
    atomic.write_text(folder / "classnames.txt", "".join(f"{name}\n" for name in classes))
    # CLIP_benchmark's form: {c} stands for the class name, which is a whole sentence here.
    atomic.write_text(folder / "zeroshot_classification_templates.txt", "{c}\n")
    shared = Counter(stamp.description for stamp in pictures)
    return {
        "pictures": len(pictures),
        "descriptions": len(classes),
        "pictures_sharing_a_description": sum(times for times in shared.values() if times > 1),
        "identical_pictures": sum(times for times in Counter(pictures.values()).values() if times > 1),
        "categories": dict(sorted(Counter(stamp.category for stamp in pictures).items())),
        "failed": failed,
    }


def _members(stamp: Stamp, png: bytes, label: int) -> dict[str, bytes]:
    """One sample's files."""
    about = {"path": stamp.path, "category": stamp.category, "package": PACKAGE, "license": LICENCE}
    return {
        "png": png,
        "txt": stamp.description.encode(),
        "json": json.dumps(about, ensure_ascii=False).encode(),
        "cls": str(label).encode(),
    }


def _check_built(output: Path, package: Path | None, image_size: int) -> Mapping[str, Any]:
    """The stats of a set that is already there.

    Raises:
        DataError: what is there is no stamps set, was made with another size or package, or lacks something.
    """
    try:
        stats: dict[str, Any] = json.loads((output / STATS).read_text(encoding="utf-8"))
        made = {
            "--image-size": stats["image_size"],
            "--deb of sha256": stats["deb_sha256"],
            "package": stats["package"],
        }
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{output} exists and is no stamps set; give another --output, or remove it") from None
    wanted: dict[str, int | str] = {"--image-size": image_size}
    if package is not None:
        wanted["--deb of sha256"] = sha256_file(package)
    for name, value in wanted.items():
        if made[name] != value:
            raise DataError(
                f"{output} was made with {name} {made[name]}, not {value}; give another --output, or remove it"
            )
    try:
        read_manifest(output / SPLIT)
    except DataError as error:
        raise DataError(f"{output} is damaged ({error}); remove it and run again") from None
    return stats
