"""Writes small Debian packages: an ar archive of control.tar and data.tar, as dpkg-deb does."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

STAMPS = "./usr/share/tuxpaint/stamps/"
COPYRIGHT = "./usr/share/doc/tuxpaint-stamps-default/copyright"
BLUE = '<rect width="99" height="99" fill="#00f"/>'
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" width="30pt" height="15pt">{BLUE}</svg>'


def tar(files: Mapping[str, bytes], compression: str = "xz") -> bytes:
    """A tar of plain files, with a link that must be passed over."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compression}") as writer:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            writer.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo(f"{STAMPS}animals/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        writer.addfile(link)
    return buffer.getvalue()


def write_deb(
    path: Path, files: Mapping[str, bytes], package: str = "tuxpaint-stamps-default", compression: str = "xz"
) -> Path:
    """A .deb with those files, in names as dpkg-deb writes them ("./usr/…")."""
    control = f"Package: {package}\nVersion: 1.2-3\nDescription: pictures\n of things\n".encode()
    parts = {
        "debian-binary": b"2.0\n",
        f"control.tar.{compression}": tar({"./control": control}, compression),
        f"data.tar.{compression}": tar(files, compression),
    }
    out = b"!<arch>\n"
    for name, content in parts.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content
        out += b"\n" * (len(content) % 2)
    path.write_bytes(out)
    return path


def png(colour: tuple[int, ...], size: tuple[int, int] = (20, 10)) -> bytes:
    """A plain picture."""
    buffer = io.BytesIO()
    Image.new("RGB" if len(colour) == 3 else "RGBA", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def stamps() -> dict[str, bytes]:
    """Four described stamps of two categories, two of one description, and what is to be left out."""
    files = {
        "animals/birds/an owl.png": png((255, 0, 0, 255)),
        "animals/birds/an owl.txt": b"An owl.\nde.utf8=Eine Eule.\n",
        "animals/birds/an owl.ogg": b"sound",
        "animals/birds/an owl_mirror.png": png((255, 0, 1)),
        "animals/fish.png": png((0, 255, 0)),
        "animals/fish.svg": SVG.encode(),
        "animals/fish.txt": "A fish – grün.\n".encode(),
        "animals/nameless.png": png((1, 2, 3)),
        "town/house.svg": SVG.encode(),
        "town/house.txt": b"A house.\r\n",
        "town/flag.png": png((0, 0, 0)),
        "town/flag.txt": b"A fish \xe2\x80\x93 gr\xc3\xbcn.",
        "town/nothing.txt": b"A picture that is not there.",
    }
    return {f"{STAMPS}{name}": content for name, content in files.items()} | {COPYRIGHT: b"GPL-2"}
