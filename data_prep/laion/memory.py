"""How much memory this process and what it starts may hold: the machine's, or what its control group is given.

In a container the machine's memory says nothing: the kernel ends a process when the group reaches its own limit.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def available(root: Path = Path("/")) -> int:
    """Bytes: the least of the machine's memory and the limits of the control groups (v1 or v2) above this process.

    Args:
        root: where `proc` and `sys` are.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """The limits of the group of this process and of those around it. Where one has none it says "max", or nothing."""
    for folder in _groups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                yield int((folder / name).read_text())


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's memory group and of those around it.

    In a container the path may be the host's, of which only the top is to be seen, as the group itself.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:  # "0::/path" of version 2, "9:memory:/path" of version 1
        controllers, colon, path = line.partition(":")[2].partition(":")
        if colon and (controllers == "" or "memory" in controllers.split(",")):
            top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
            folder = top / path.lstrip("/")
            yield from (folder, *(parent for parent in folder.parents if parent.is_relative_to(top)))
