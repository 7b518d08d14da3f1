"""Walks a shard strictly: whatever a reader might lose, mix or run is found, and the rest is given sample by sample.

    found = Found()
    for key, members in walk(Path("00000.tar"), found): ...      # "000000012", {"jpg": …, "txt": …, "json": …}

webdataset reads past a cut at a member's end, a damaged header in mid-tar and interleaved members without a word, takes
`a.b.jpg` for a picture named "b.jpg" and, with its own decoders, unpickles what ends in .pyd, .pickle or .pth.
"""

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from data_prep.errors import DataError
from data_prep.laion import findings
from data_prep.laion.findings import Found
from data_prep.shards import REPACK, read_headers

MOST_BYTES = 1 << 28
# Suffixes that a reader would unpickle, import or run, wherever they stand in a name: "a.pyd.gz" is unpickled too.
EXECUTABLE = re.compile(
    r"\.(pyd|pickle|pkl|pth|pt|ckpt|joblib|dill|py|pyc|pyo|pyw|so|dll|dylib|exe|com|scr|msi|jar|class|sh|bash|bat|cmd|"
    r"ps1|vbs|js|mjs|php|pl|rb|lnk|desktop)(\.|$)",
    re.IGNORECASE,
)
_OF_READERS = re.compile(r"(^|\.)__.*__")  # webdataset passes over such a key and has own fields by such a suffix
_NAME = re.compile(r"[^./\\\x00-\x1f\x7f]+\.[^./\\\x00-\x1f\x7f]+")


def walk(path: Path, found: Found) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The samples in order: key, and content by suffix in small letters, as webdataset makes them.

    A sample whose members are apart comes out once for each place. A member that is refused is left out.
    """
    key: str | None = None
    members: dict[str, bytes] = {}
    finished: set[str] = set()
    try:
        for info, file in read_headers(path):
            if problem := _problem(info):
                in_folder = info.isdir() or (problem == findings.NAME and "/" in info.name)
                found.add(problem, f"{info.name[:200]}; {REPACK}" if in_folder else info.name)
                continue
            name, _, suffix = info.name.partition(".")
            suffix = suffix.lower()
            if name != key:
                if key is not None:
                    yield key, members
                    finished.add(key)
                if name in finished:
                    found.add(findings.APART, name)
                key, members = name, {}
            if suffix in members:
                found.add(findings.TWICE, info.name)
                continue
            file.seek(info.offset_data)
            members[suffix] = file.read(info.size)
    except DataError as error:
        found.add(findings.TAR, str(error))
    if key is not None:
        yield key, members


def _problem(info: tarfile.TarInfo) -> str | None:
    """Why a member is no part of a sample, None where it is."""
    name = info.name
    if not info.isfile() or info.issparse():
        return findings.MEMBER
    if name.startswith(("/", "\\")) or re.match("[A-Za-z]:", name) or ".." in re.split(r"[/\\]", name):
        return findings.CLIMBS
    if EXECUTABLE.search(name):
        return findings.EXECUTABLE
    if not _NAME.fullmatch(name) or not _is_text(name) or _OF_READERS.search(name):
        return findings.NAME
    return findings.HUGE if info.size > MOST_BYTES else None


def _is_text(name: str) -> bool:
    """tarfile gives bytes that are not UTF-8 as lone surrogates."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
