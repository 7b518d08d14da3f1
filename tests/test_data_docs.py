"""docs/data.md: every command in it is one that its program accepts, and every option it names exists."""

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.laion_sample.causes import ROWS, SERVED
from data_prep.__main__ import COMMANDS
from data_prep.commands.download import settings_of
from data_prep.commands.plan import plan_settings
from data_prep.laion.reasons import transient
from training.command_line import parser as training_parser
from training.command_line import resolve

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)


def parsers() -> dict[str, argparse.ArgumentParser]:
    found = {}
    for command in COMMANDS:
        found[command.NAME] = argparse.ArgumentParser(prog=command.NAME)
        command.add_arguments(found[command.NAME])
    return found


def commands(text: str, program: str) -> Iterator[list[str]]:
    """The words after `python -m PROGRAM` in each line of shell text."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:3] == ["python", "-m", program]:
            yield words[3:]


def test_every_data_prep_command_is_accepted() -> None:
    given = [*BLOCKS, *re.findall(r"`(python -m data_prep [^`]*)`", PAGE)]
    used = set()
    for name, *words in [words for text in given for words in commands(text, "data_prep")]:
        args = parsers()[name].parse_args(words)
        if name in ("run", "plan"):
            plan_settings(args)
        if name in ("run", "download", "retry"):
            settings_of(args)
        used.add(name)
    assert used == {"run", "plan", "download", "retry", "verify", "manifest", "check", "stats"}


def test_the_training_command_would_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = [resolve(training_parser().parse_args(words)) for text in BLOCKS for words in commands(text, "training")]
    assert [settings.train_data for settings in found] == ["laion/shards"]


def test_every_option_in_the_text_exists_with_the_default_it_says() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    prose = re.sub(r"`(hf|python3|pip)[^`]*`", "", prose)
    known = {option for parser in parsers().values() for option in parser._option_string_actions}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", prose)) <= known
    run = parsers()["run"]
    said = {"threads": 32, "image_size": 256, "timeout": 10, "deadline": 60, "retries": 2, "stall": 300}
    assert {name: run.get_default(name) for name in said} == said
    assert (run.get_default("disk_floor"), run.get_default("max_bytes")) == ("1G", "32M")
    assert (run.get_default("min_success"), run.get_default("min_similarity")) == (0.05, 0.3)
    assert (run.get_default("min_side"), run.get_default("max_aspect")) == (64, 3)
    for option, default in (("threads", "32"), ("stall", "300 s"), ("disk-floor", "1 GB"), ("min-success", "0.05")):
        assert f"`--{option}` ({default}" in re.sub(r"\s+", " ", PAGE)


def test_what_may_pass_is_what_retry_asks_for() -> None:
    assert all(transient(reason) for reason in ("timeout", "connection", "DNS", "HTTP 408", "HTTP 429", "HTTP 503"))
    assert not any(transient(reason) for reason in ("HTTP 404", "opted out", "not decodable", "redirects"))


def test_the_sample_is_as_the_page_says() -> None:
    hostile = {kind: rows for kind, rows in SERVED.items() if kind != "dirty-caption"}
    said = f"makes {ROWS:,} rows of metadata like LAION-400M's, and a server on 127.0.0.1 that misbehaves in"
    assert f"{said} {len(hostile)} ways on {sum(hostile.values())} of them" in re.sub(r"\s+", " ", PAGE)


@pytest.mark.parametrize("text", BLOCKS)
def test_bash_reads_it(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_picture_is_there_and_small() -> None:
    assert (ROOT / "docs" / "stats.png").stat().st_size < 400_000
    assert "(stats.png)" in PAGE
    assert "docs/data.md" in README
    assert "docs/stats.png" in README


def test_the_readme_s_commands_are_accepted() -> None:
    lines = re.findall(r"^python -m data_prep .*(?:\\\n.*)*", README, re.MULTILINE)
    found = list(commands("\n".join(lines), "data_prep"))
    for name, *words in found:
        parsers()[name].parse_args(words)
    assert {"run", "manifest"} <= {words[0] for words in found}
