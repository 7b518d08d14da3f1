"""Debian packages: what is read of them, and what is refused."""

from pathlib import Path

import pytest
from debs import write_deb

from data_prep.errors import DataError
from data_prep.stamps import deb


@pytest.mark.parametrize("compression", ["xz", "gz"])
def test_reads_the_wanted_files_and_the_fields(tmp_path: Path, compression: str) -> None:
    package = write_deb(
        tmp_path / "p.deb", {"./a/b.txt": b"odd", "./a/c.png": b"even", "./d.txt": b""}, "p", compression
    )
    assert list(deb.files(package, lambda name: name.endswith(".txt"))) == [("a/b.txt", b"odd"), ("d.txt", b"")]
    assert deb.control(package) == {"Package": "p", "Version": "1.2-3", "Description": "pictures"}


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    whole = write_deb(tmp_path / "p.deb", {"./a": bytes(range(256)) * 20}).read_bytes()
    for length in range(0, len(whole) - 1, 7):
        (tmp_path / "cut.deb").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cut\.deb"):
            list(deb.files(tmp_path / "cut.deb", lambda name: True))


def test_refuses_what_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        deb.control(tmp_path / "none.deb")
    (tmp_path / "zip.deb").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(DataError, match="no Debian package"):
        deb.control(tmp_path / "zip.deb")
    whole = write_deb(tmp_path / "p.deb", {"./a": b"a" * 999}).read_bytes()
    place = whole.index(b"data.tar")
    (tmp_path / "damaged.deb").write_bytes(whole[: place + 70] + b"x" * (len(whole) - place - 70))
    with pytest.raises(DataError, match=r"its data\.tar is damaged or packed"):
        list(deb.files(tmp_path / "damaged.deb", lambda name: True))


def test_a_huge_member_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deb, "_MOST_BYTES", 10)
    package = write_deb(tmp_path / "p.deb", {"./big": b"a" * 11})
    with pytest.raises(DataError, match="big is of 11 bytes"):
        list(deb.files(package, lambda name: True))


def fake_apt(folder: Path, script: str) -> None:
    folder.mkdir()
    (folder / "apt-get").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "apt-get").chmod(0o755)


def test_download_is_what_apt_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_apt(tmp_path / "bin", 'test "$1 $2" = "download the-package" && echo content > the-package_1_all.deb')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    folder = tmp_path / "downloads"
    folder.mkdir()
    assert deb.download("the-package", folder).read_text() == "content\n"


def test_a_failed_download_says_why_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    with pytest.raises(DataError, match=r"no apt-get to download p; take it from .* --deb FILE"):
        deb.download("p", tmp_path)
    fake_apt(tmp_path / "bin", "echo 'E: Unable to locate package p' >&2; echo 'W: and so on' >&2; exit 100")
    with pytest.raises(DataError, match=r"download p failed: E: Unable to locate package p; run apt-get update"):
        deb.download("p", tmp_path)
