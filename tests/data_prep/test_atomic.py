"""Tests of data_prep.atomic: all of a file or folder, or none of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep import atomic
from data_prep.errors import DataError


def names(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())


def test_write_text_replaces_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    atomic.write_text(path, "old")
    atomic.write_text(path, "new é")
    assert path.read_bytes() == "new é".encode()
    assert names(tmp_path) == ["result.json"]


def test_failed_write_keeps_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    atomic.write_text(path, "old")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        atomic.write_text(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["result.json"]


def test_replace_dir_replaces_a_whole_folder(tmp_path: Path) -> None:
    final, tmp = tmp_path / "set", tmp_path / "next"
    for folder, content in ((final, "old"), (tmp, "new")):
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / content).touch()
    atomic.replace_dir(tmp, final)
    assert names(final / "inner") == ["new"]
    assert names(tmp_path) == ["set"]


def test_building_appears_only_when_the_block_ends_well(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "set"
    with atomic.building(final) as folder:
        (folder / "a").touch()
        assert not final.exists()
    assert names(final) == ["a"]


def test_building_leaves_nothing_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic.building(tmp_path / "set") as folder:
        (folder / "no such folder" / "a").touch()
    assert names(tmp_path) == []


def test_building_refuses_a_second_builder_and_leaves_the_first_alone(tmp_path: Path) -> None:
    with atomic.building(tmp_path / "set") as folder:
        (folder / "a").touch()
        with pytest.raises(DataError, match=r"another process is building .*set"), atomic.building(tmp_path / "set"):
            pass
        assert names(folder) == ["a"]
    assert names(tmp_path / "set") == ["a"]


def test_building_cleans_what_a_killed_builder_left(tmp_path: Path) -> None:
    killed = (
        "import os, signal, sys\nfrom data_prep import atomic\n"
        "with atomic.building(sys.argv[1]) as folder:\n"
        "    (folder / 'inner').mkdir(); (folder / 'inner' / 'stale').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", killed, str(tmp_path / "set")], cwd=Path(__file__).parents[2], timeout=60, check=False
    )
    assert done.returncode == -9
    assert names(tmp_path) == [".set.building"]
    with atomic.building(tmp_path / "set") as folder:
        assert names(folder) == []
        (folder / "fresh").touch()
    assert names(tmp_path) == ["set"]
    assert names(tmp_path / "set") == ["fresh"]


def test_building_does_not_take_over_a_folder_renamed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, the other builder may finish: its finished set must not be emptied."""
    real_open = os.open

    def open_then_other_finishes(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = real_open(path, flags, mode)
        if str(path).endswith(".building"):
            (Path(path) / "done").touch()
            os.rename(path, tmp_path / "set")
        return descriptor

    monkeypatch.setattr(os, "open", open_then_other_finishes)
    with pytest.raises(DataError, match="another process"), atomic.building(tmp_path / "set"):
        pass
    assert names(tmp_path / "set") == ["done"]
