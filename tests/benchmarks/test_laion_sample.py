"""benchmarks/laion_sample: what it asks for, what its server does, and that no disagreement passes its account."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from pyarrow import parquet, table

from benchmarks.laion_sample import __main__ as command
from benchmarks.laion_sample import account, causes, server
from benchmarks.laion_sample.causes import LEFT_OUT, OUTCOMES, ROWS, SERVED
from benchmarks.laion_sample.pictures import Pictures, difference
from benchmarks.laion_sample.rows import make_rows, write_metadata
from data_prep.commands import download, plan, retry, run
from data_prep.laion.http import FetchError, Limits, fetch
from data_prep.manifest import write_manifest
from data_prep.shards import ShardWriter
from training.command_line import parser as training_parser
from training.command_line import resolve

ROOT = Path(command.__file__).parents[2]
HERE = Limits(max_bytes=32 << 20, deadline=0.5, allow_private=True)


@pytest.fixture(scope="module")
def emoji(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards like the emoji set's, with drawings that nobody drew."""
    folder = tmp_path_factory.mktemp("emoji")
    chance = np.random.default_rng(0)
    with ShardWriter(folder / "00000.tar") as writer:
        for number in range(ROWS):
            picture = Image.fromarray(chance.integers(0, 256, (4, 4, 3), np.uint8)).resize((32, 32))
            path = folder / "picture.png"
            picture.save(path)
            captions = ["ox", f"drawing {number}"]
            writer.write(
                f"{number:05d}", {"png": path.read_bytes(), "json": json.dumps({"captions": captions}).encode()}
            )
    return folder


@pytest.fixture(scope="module")
def pictures(emoji: Path) -> Pictures:
    return Pictures(emoji, ROWS)


@pytest.fixture
def served(emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server in its own process; `tmp_path` gets its log."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(command, "EMOJI", emoji)
    with command.serving(tmp_path) as address:
        yield address


def test_everything_that_is_asked_for_has_an_outcome() -> None:
    assert len(causes.kinds()) == ROWS
    first = {causes.action(kind, 1) for kind in SERVED} - {"redirect"}
    assert first | {"picture"} == OUTCOMES.keys()
    assert server.ACTIONS.keys() | {name for name in OUTCOMES if name.isdigit()} == OUTCOMES.keys() | {"redirect"}
    assert [causes.action("503-thrice", times) for times in (1, 3, 4)] == ["503", "503", "picture"]


def test_the_plan_leaves_out_what_it_has_to(pictures: Pictures, tmp_path: Path) -> None:
    from data_prep.laion.columns import parse_columns
    from data_prep.laion.plan import Shape, plan
    from data_prep.laion.rules import Settings

    rows = make_rows(pictures, "http://127.0.0.1:8000")
    write_metadata(rows, tmp_path / "metadata")
    made = plan([tmp_path / "metadata"], tmp_path, parse_columns("auto"), Settings(allow_private=True), Shape())
    rules: Counter[str] = Counter()
    for count, rule in LEFT_OUT.values():
        rules[rule] += count
    counts = {name: count for name, count in made["counts"].items() if count}
    assert counts == {"rows_read": ROWS, **rules}
    found = parquet.read_table(tmp_path / "plan" / "00000.parquet").to_pylist()
    wanted = {row.place: row.caption for row in rows if row.kind not in LEFT_OUT}
    assert {int(row["id"]): row["caption"] for row in found} == wanted


def test_the_server_does_what_its_log_says(served: str, tmp_path: Path, pictures: Pictures) -> None:
    for place, kind in enumerate(SERVED):
        for _ in range(4 if kind in causes.BUSY else 1):
            try:
                found = fetch(f"{served}/{kind}/{place}.jpg", HERE, 0.3, "img2dataset")
            except FetchError as error:
                found = str(error)
        done = dict(account.read_log(tmp_path / "server.jsonl"))[place]
        outcome = OUTCOMES[done]
        if isinstance(found, str):
            assert found == outcome, kind
        elif done == "html":
            assert b"<html>" in found
        elif done == "half-file":
            whole, _ = pictures.encoded(place, "picture")
            assert found == whole[: len(whole) // 2]
        elif done == "12000x12000":
            assert found == server.vast()
        else:
            assert found == pictures.encoded(place, done)[0], kind


def test_the_server_ends_with_whoever_started_it(emoji: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.laion_sample.server", "--emoji", emoji, "--rows", "3"]
    process = subprocess.Popen(
        [*map(str, words), "--log", str(tmp_path / "log")], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline().startswith(b"http://127.0.0.1:")
    process.stdin.close()  # as the system does when the other end dies
    assert process.wait(30) == 0


def test_a_turned_picture_is_the_picture(pictures: Pictures, tmp_path: Path) -> None:
    for place in range(4):
        (tmp_path / "turned.jpg").write_bytes(pictures.encoded(place, "turned")[0])
        stored = Image.open(tmp_path / "turned.jpg")
        upright = pictures.image(place)
        assert difference(ImageOps.exif_transpose(stored), upright) < account.LIKE < difference(stored, upright)
    assert difference(pictures.image(0), pictures.image(1)) > account.LIKE


# ------------------------------------------------------------------------------------------------------- the account


class World:
    """A few rows, a server's log and data_prep's output that agree; each test makes one of them differ."""

    def __init__(self, folder: Path, pictures: Pictures) -> None:
        self.folder, self.pictures = folder, pictures
        # Every tenth picture is a JPEG, as those in shards are.
        kinds = {0: "picture", 10: "404", 20: "nsfw", 30: "503-twice", 40: "turned", 50: "stall"}
        base = make_rows(pictures, "http://127.0.0.1:1")[0]
        self.rows = [replace(base, place=n, kind=kind, caption=pictures.caption(n)) for n, kind in kinds.items()]
        self.log = [(30, "503"), (0, "picture"), (10, "404"), (30, "503"), (30, "picture"), (40, "turned")]
        self.log += [(50, "stall")] * 3
        self.reasons = {0: None, 10: "HTTP 404", 30: None, 40: None, 50: "timeout"}
        self.samples = [(place, pictures.caption(place), place) for place in (0, 30, 40)]  # row, caption, picture
        self.counts = {"success": 3, "HTTP 404": 1, "timeout": 1}
        self.plan = {"rows_read": 6, "nsfw": 1, "similarity": 0}

    def differences(self) -> list[str]:
        (self.folder / "parts" / "00000").mkdir(parents=True)
        (self.folder / "shards").mkdir()
        with ShardWriter(self.folder / "shards" / "0.tar") as writer:
            for key, (place, caption, picture) in enumerate(self.samples):
                data, _ = self.pictures.encoded(picture, "picture")
                about = json.dumps({"id": str(place)}).encode()
                writer.write(str(key), {"jpg": data, "txt": caption.encode(), "json": about})
        write_manifest(self.folder / "shards", [writer.close()])
        columns = {
            "id": [str(place) for place in self.reasons],
            "status": ["failed" if reason else "success" for reason in self.reasons.values()],
            "error_message": list(self.reasons.values()),
        }
        parquet.write_table(table(columns), self.folder / "parts" / "00000" / "00000.parquet")
        record = {"plan": {"counts": self.plan}, "reasons": self.counts, "samples": len(self.samples)}
        (self.folder / "stats.json").write_text(json.dumps(record))
        taken = account.take_account(self.rows, self.log, self.folder, self.pictures)
        said = [line for line in account.as_text(taken).splitlines() if line.startswith("DIFFERS")]
        assert said == [f"DIFFERS: {one}" for one in taken.differences]
        return taken.differences


@pytest.fixture
def world(tmp_path: Path, pictures: Pictures) -> World:
    return World(tmp_path / "set", pictures)


def test_what_agrees_passes(world: World) -> None:
    assert world.differences() == []


def test_a_row_that_came_to_something_else_is_told(world: World) -> None:
    world.reasons[10] = "HTTP 410"
    world.counts = {"success": 3, "HTTP 410": 1, "timeout": 1}
    assert world.differences() == ["row 10 (404): HTTP 404 by the server, HTTP 410 by us"]


def test_a_row_that_was_never_asked_for_is_told(world: World) -> None:
    world.log.remove((10, "404"))
    assert world.differences() == ["row 10 (404): never asked for by the server, HTTP 404 by us"]


def test_a_row_asked_for_though_left_out_is_told(world: World) -> None:
    world.log.append((20, "picture"))
    assert world.differences() == [
        "row 20 (nsfw): left out, and asked for (picture) by the server, never asked for by us"
    ]


def test_a_lost_sample_is_told(world: World) -> None:
    world.samples.pop()
    assert world.differences() == [
        "row 40: 0 times in the shards, not 1",
        "2 kept + 1 left out + 2 lost are not 6 rows",
    ]


def test_a_sample_that_came_twice_is_told(world: World) -> None:
    world.samples.append(world.samples[0])
    assert world.differences()[0] == "row 0: 2 times in the shards, not 1"


def test_mixed_pairs_are_told(world: World) -> None:
    other = world.samples[1][1]
    world.samples[:2] = [(0, other, 0), (30, other, 0)]
    found = world.differences()
    assert found[0].startswith("row 0 (picture): its caption in the shards is b'drawing")
    assert found[1].startswith("row 30 (503-twice): its picture in the shards is another one")
    assert len(found) == 2


def test_counts_that_are_wrong_are_told(world: World) -> None:
    world.counts["timeout"] = 2
    world.plan["similarity"] = 1
    assert world.differences() == [
        "the plan's counts: similarity 1, not 0",
        "stats.json's reasons: timeout 2, not 1",
        "3 kept + 2 left out + 3 lost are not 6 rows",
    ]


# ------------------------------------------------------------------------------------------------------- the command


def test_the_commands_are_what_the_programs_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"run": run, "retry": retry, "plan": plan, "download": download}
    for words in [*command.run_commands(tmp_path), *command.guard_commands(tmp_path)]:
        assert words[0] == "data_prep"
        taken = argparse.ArgumentParser()
        known[words[1]].add_arguments(taken)
        args = taken.parse_args(words[2:])
        if words[1] != "plan":
            download.settings_of(args)
    monkeypatch.chdir(ROOT)
    settings = resolve(training_parser().parse_args(command.training_command(tmp_path)[1:]))
    assert (settings.max_steps, settings.unique_key) == (20, "")


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["laion_sample", "--output", str(tmp_path / "out")])
    monkeypatch.setattr(command, "EMOJI", tmp_path / "emoji" / "train")
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    assert command.main() == 1
    assert "no emoji set in" in capsys.readouterr().err
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    assert command.main() == 1
    assert "PYTHON=python3.11" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("differences", "code"), [([], 0), (["row 1: lost"], 1)])
def test_a_difference_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differences: Any, code: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["laion_sample", "--output", str(tmp_path)])
    monkeypatch.setattr(command, "check_setup", lambda: None)
    monkeypatch.setattr(command, "sample", lambda output: {"seconds": {}, "differences": differences})
    assert command.main() == code
    assert json.loads((tmp_path / "result.json").read_text())["differences"] == differences


def test_only_its_own_output_is_removed(tmp_path: Path) -> None:
    (tmp_path / "laion").mkdir()
    for name in ("laion/a", "result.json", "notes.txt"):
        (tmp_path / name).touch()
    command.clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def make(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """What the Makefile alone does in a folder."""
    shutil.copy(ROOT / "Makefile", folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *words], cwd=folder, env=environment, capture_output=True, text=True)


def test_make_says_before_it_fetches_anything_that_the_python_is_too_new(tmp_path: Path) -> None:
    newer = tmp_path / "python3.13"
    pretend = "import sys; sys.version_info = (3, 13); exec(sys.argv[1])"
    newer.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit 9\nexec {sys.executable} -c \'{pretend}\' "$2"\n')
    newer.chmod(0o755)
    done = make(tmp_path, "laion-sample", f"PYTHON={newer}")
    assert done.returncode == 2
    assert "needs Python 3.11 or 3.12" in done.stderr
    assert "bootstrap.py" not in done.stdout


def test_make_sets_up_and_runs_it(tmp_path: Path) -> None:
    assert make(tmp_path, "-n", "laion-sample", "PYTHON=python3").stdout.splitlines()[-4:] == [
        '"python3" bootstrap.py --extras quickstart,data',
        '"python3" bootstrap.py --extras quickstart',
        ".venv/bin/python -m data_prep emoji --output data/emoji",
        ".venv/bin/python -m benchmarks.laion_sample",
    ]
