"""The recipes are what their generator writes, start a run as they stand, and hold the batch they say."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from training.command_line import parser, resolve

FOLDER = Path(__file__).parents[2] / "configs" / "training"
LAION = sorted(FOLDER.glob("laion400m-*.toml"))
PAPER_BATCH = {"s": 64, "b": 16, "l": 4}


def test_recipes_are_what_the_generator_writes():
    done = subprocess.run([sys.executable, FOLDER / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.stem for path in LAION] == [f"laion400m-vit-{s}-16{p}" for s in "bls" for p in ("-paper", "")]


@pytest.mark.parametrize("path", LAION, ids=lambda path: path.stem)
def test_a_recipe_starts_with_train_data_alone(path):
    settings = resolve(parser().parse_args(["--config", str(path), "--train-data", "laion"]))
    size = path.stem.removeprefix("laion400m-vit-")[0]
    assert settings.model.startswith(f"ViT-{size.upper()}-16-eq7")
    assert settings.output == f"runs/{path.stem}"
    assert settings.gather_with_grad
    text = path.read_text()
    for key in tomllib.loads(text):
        assert re.search(rf"^# .+\n{key} = ", text, re.MULTILINE), f"{key} has no reason"


@pytest.mark.parametrize("size", "sbl")
def test_the_batch_holds_for_the_number_of_processes_that_is_named(size):
    path = FOLDER / f"laion400m-vit-{size}-16.toml"
    settings = resolve(parser().parse_args(["--config", str(path), "--train-data", "laion"]))
    named = re.search(r"(\d+) x (\d+) x (\d+): as it stands, for (\d+) GPUs", path.read_text())
    batch, processes, accumulated, gpus = map(int, named.groups())
    assert (batch, accumulated, processes) == (settings.batch_size, settings.accum_freq, gpus)
    assert batch * processes * accumulated == 32768
    few = re.search(r"8 GPUs take --accum-freq (\d+)", path.read_text())
    assert batch * 8 * int(few[1]) == 32768
    assert settings.epochs * settings.train_num_samples == 12.8e9


@pytest.mark.parametrize("size", "sbl")
def test_the_paper_s_batch_is_over_four_processes(size):
    recipe = tomllib.loads((FOLDER / f"laion400m-vit-{size}-16-paper.toml").read_text())
    large = tomllib.loads((FOLDER / f"laion400m-vit-{size}-16.toml").read_text())
    assert recipe["batch_size"] * 4 == PAPER_BATCH[size]
    assert recipe["lr"] == pytest.approx(large["lr"] * (PAPER_BATCH[size] / 32768) ** 0.5, rel=0.03)
