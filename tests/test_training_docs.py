"""docs/training.md and docs/slurm.sh: torchrun and the trainer accept their commands, and the script requeues."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import open_clip
import pytest
from torch.distributed.run import get_args_parser

from evaluate.__main__ import parser as evaluate_parser
from training.command_line import parser, resolve

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
SCRIPT = ROOT / "docs" / "slurm.sh"
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)


def commands(text):
    """The commands in shell text as lists of words; `name=value` lines before them are filled in."""
    known = dict(re.findall(r"^([A-Z_]+)=(\S+)$", text, re.MULTILINE))
    text = re.sub(r"\$\{?(\w+)\}?", lambda name: known.get(name[1], "1"), text.replace("\\\n", " "))
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def training_commands():
    """The options of each `-m training` in the page and the script, through torchrun's parser where it starts them."""
    for words in [w for text in [*BLOCKS, SCRIPT.read_text()] for w in commands(text)]:
        torchrun = next((i for i, word in enumerate(words) if word.endswith("torchrun")), None)
        if torchrun is not None:
            launched = get_args_parser().parse_args([w for w in words[torchrun + 1 :] if w != "&"])
            assert (launched.module, launched.training_script) == (True, "training")
            yield launched.training_script_args
        elif words[:3] == ["python", "-m", "training"]:
            yield words[3:]


def test_every_training_command_would_start(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = list(training_commands())
    assert len(found) == 7
    for options in found:
        settings = resolve(parser().parse_args(options))
        if settings.distill_model:
            assert settings.distill_pretrained in open_clip.list_pretrained_tags_by_model(settings.distill_model)


def test_every_evaluate_command_is_accepted():
    found = [words[3:] for text in BLOCKS for words in commands(text) if words[:3] == ["python", "-m", "evaluate"]]
    assert [evaluate_parser().parse_args(options).subcommand for options in found] == ["scaling"]


def test_every_option_in_the_text_exists():
    known = {option for command in (parser(), get_args_parser()) for option in command._option_string_actions}
    scaling = evaluate_parser()._subparsers._group_actions[0].choices["scaling"]
    known |= set(scaling._option_string_actions)
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", prose)) <= known


@pytest.mark.parametrize("text", [*BLOCKS, SCRIPT.read_text()])
def test_bash_reads_it(text):
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Stand-ins for Slurm: srun says that it runs, and ends as told when the signal comes; scontrol notes what it is asked.
SRUN = """#!{python}
import os, signal, sys
def stop(number, frame):
    if os.environ["ENDS"] == "finished":
        open("runs/vit-b-16/checkpoint.pt", "w").close()
    sys.exit(1)
signal.signal(signal.SIGUSR1, stop)
print("running", flush=True)
if os.environ["ENDS"] == "failed":
    sys.exit(3)
while True:
    signal.pause()
"""
SCONTROL = '#!/bin/bash\nif [ "$1" = show ]; then echo node1; else echo "$@"; fi\n'


@pytest.mark.parametrize(
    ("ends", "signalled", "code", "asked"),
    [("stopped", True, 0, "requeue 7\n"), ("finished", True, 0, ""), ("failed", False, 3, "")],
)
def test_the_script_goes_back_into_the_queue_when_time_is_up_alone(tmp_path, ends, signalled, code, asked):
    for name, text in (("srun", SRUN.replace("{python}", sys.executable)), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "runs" / "vit-b-16").mkdir(parents=True)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2", "ENDS": ends}
    environment = os.environ | slurm | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    job = subprocess.Popen(["bash", SCRIPT], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "running\n"
    while signalled and job.poll() is None:  # again, should the script not know its step's number yet
        job.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(timeout=2)
    rest, _ = job.communicate(timeout=30)
    assert (job.returncode, rest) == (code, asked)
