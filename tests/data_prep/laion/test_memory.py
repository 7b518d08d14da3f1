"""The memory that a container is given, read from the kernel's files as they stand in several kinds of it."""

import os
from pathlib import Path

import pytest

from data_prep.laion.memory import available

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
LIMIT = 1 << 28


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("", {}, MACHINE, id="no-groups"),
        pytest.param("0::/\n", {"memory.max": "max"}, MACHINE, id="no-limit"),
        pytest.param("0::/\n", {"memory.max": f"{LIMIT}\n"}, LIMIT, id="container"),
        pytest.param("0::/a/b\n", {"memory.max": str(LIMIT)}, LIMIT, id="path-of-the-host"),
        pytest.param("0::/a/b\n", {"a/memory.max": str(LIMIT), "a/b/memory.max": "max"}, LIMIT, id="group-above"),
        pytest.param("0::/a/b\n", {"a/memory.max": str(2 * LIMIT), "a/b/memory.max": str(LIMIT)}, LIMIT, id="least"),
        pytest.param(
            "3:cpu:/x\n2:memory:/docker/1\n", {"memory/memory.limit_in_bytes": str(LIMIT)}, LIMIT, id="version-1"
        ),
        pytest.param(
            "2:memory:/\n0::/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, MACHINE, id="unlimited-1"
        ),
        pytest.param("what\n0::/../other\n", {"memory.max": "?"}, MACHINE, id="strange"),
    ],
)
def test_available(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    contents = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available(tmp_path) == expected


def test_here() -> None:
    assert 0 < available() <= MACHINE
