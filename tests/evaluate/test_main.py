"""The command line, in a process of its own and inside this one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import open_clip
import pyarrow.parquet
import pytest
import torch

from data_prep.manifest import read_manifest, sha256_file, write_manifest
from evaluate.__main__ import main
from evaluate.commands.options import add_model_configs, pick_device
from evaluate.data.classes import class_list
from evaluate.errors import RefusedError

from .conftest import png

Cli = Callable[..., subprocess.CompletedProcess[str]]
MODEL = "tiny-emoji-eq7"
ROOT = Path(__file__).parents[2]


def test_zero_shot_writes_json_and_a_table(cli: Cli, emoji_root: Path, tmp_path: Path) -> None:
    checkpoint, output = tmp_path / "checkpoint.pt", tmp_path / "new" / "zero-shot.json"
    torch.save({"name": "x", "step": 1, "state_dict": open_clip.create_model(MODEL).state_dict()}, checkpoint)
    arguments = ["zero-shot", "--model", MODEL, "--pretrained", checkpoint, "--dataset", "emoji", "--root", emoji_root]
    arguments += ["--classifier-cache", tmp_path / "cache"]
    done = cli(*arguments, "--output", output, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "Held-out vendor, no flags" in done.stdout
    assert f"written: {output}" in done.stdout
    assert "heldout-vendor: 20/20 images" in done.stderr
    result = json.loads(output.read_text())
    assert set(result["results"]) == {"heldout_vendor", "heldout_vendor_noflags", "heldout_concepts"}
    for row in result["results"].values():
        assert {"top1", "top5", "mean_per_class", "n", "classes", "chance", "interval"} <= set(row)
    assert (result["model"], result["kind"], result["precision"]) == (MODEL, "eq7", "fp32")
    trained_size = open_clip.get_model_config(MODEL)["vision_cfg"]["image_size"]
    assert (result["image_size"], result["templates"]["texts"]) == (trained_size, ["{}"])
    assert result["counts"] == {"images": 32, "bad_images": 0}
    assert len(result["checkpoint"]["sha256"]) == len(result["manifests"]["heldout-vendor"]) == 64
    assert result["command"].startswith("python -m evaluate zero-shot --model tiny-emoji-eq7")
    assert {"torch", "open_clip_torch", "timm", "open_clip_linear", "python"} <= set(result["versions"])
    assert [p.name for p in output.parent.iterdir()] == ["zero-shot.json"], "no temporary file stays"


def test_exit_codes_of_a_real_process(cli: Cli, emoji_root: Path, tmp_path: Path) -> None:
    wrong = cli("zero-shot", "--model", MODEL)
    assert wrong.returncode == 2
    assert "required" in wrong.stderr
    arguments = ["--pretrained", tmp_path / "no.pt", "--dataset", "emoji", "--root", emoji_root]
    refused = cli("zero-shot", "--model", MODEL, *arguments, "--output", tmp_path / "r.json")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith(f"error: --pretrained {tmp_path / 'no.pt'}: found nothing")
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize("command", ["zero-shot", "compare", "retrieval", "report"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert re.search(
        f"examples?:\n  (python|torchrun --nproc-per-node 8) -m evaluate {command}", capsys.readouterr().out
    )


@pytest.mark.parametrize("arguments", [[], ["zero-shoot"], ["zero-shot", "--batch-size", "0"], ["report", "--run"]])
def test_command_line_mistakes_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2


def test_refusals_come_before_the_model_is_built(
    nano: tuple[str, Path],
    emoji_root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the model was built")

    monkeypatch.setattr(open_clip, "create_model_and_transforms", never)
    good = {
        "--model": MODEL,
        "--pretrained": str(nano[1]),
        "--dataset": "emoji",
        "--root": str(emoji_root),
        "--output": str(tmp_path / "r.json"),
    }
    for option, value, message in (
        ("--model", "tiny-emoji-eq77", "did you mean 'tiny-emoji-eq7'"),
        ("--pretrained", str(tmp_path), "found a folder"),
        ("--dataset", "imagenet", "Known: emoji"),
        ("--templates", "fulll", "has no such prompts. Give --templates full or --templates simple"),
        ("--output", str(nano[1]), "reads or writes otherwise"),
        ("--predictions", str(tmp_path), "--predictions"),
        ("--image-size", "1 2 3", "one side, or height and width"),
        ("--image-size", "4", "less than one patch of the model, 8 pixels"),
        ("--root", str(tmp_path / "nothing"), "no such folder"),
        ("--output", str(tmp_path), "is a folder"),
        ("--device", "cuda:99", "cannot be used"),
        ("--model-configs", str(tmp_path / "nothing"), "no such folder"),
    ):
        arguments = [word for name, given in (good | {option: value}).items() for word in (name, *given.split(" "))]
        assert main(["zero-shot", *arguments]) == 1
        assert message in capsys.readouterr().err


def test_a_users_own_config_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "my-own-model.json").write_text(json.dumps(open_clip.get_model_config(MODEL)))
    add_model_configs(tmp_path)
    assert "my-own-model" in open_clip.list_models()


def test_a_device_that_is_not_there_is_refused() -> None:
    assert pick_device("cpu") == "cpu"
    with pytest.raises(RefusedError, match="--device 'nonsense' cannot be used"):
        pick_device("nonsense")


def test_the_second_time_the_class_weights_are_there(
    nano: tuple[str, Path], emoji_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--model", nano[0], "--pretrained", str(nano[1]), "--dataset", "emoji", "--root", str(emoji_root)]
    arguments += ["--device", "cpu", "--output", str(tmp_path / "r.json"), "--classifier-cache"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    first = []
    for cache in (str(tmp_path / "cache"), str(tmp_path / "cache"), ""):
        assert main(["zero-shot", *arguments, cache]) == 0
        result = json.loads((tmp_path / "r.json").read_text())
        first.append((result["results"], result["throughput"]["prompts_per_s"] is None))
    assert [cached for _, cached in first] == [False, True, False]
    assert first[0][0] == first[1][0] == first[2][0]
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert not (tmp_path / "xdg").exists()


@pytest.mark.slow
def test_any_number_of_processes_says_the_same(nano: tuple[str, Path], own_root: Path, tmp_path: Path) -> None:
    """Predictions to the last bit of their scores; 20 and 12 pictures in batches of 3, two damaged."""
    config = open_clip.get_model_config(nano[0])
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / f"{nano[0]}.json").write_text(json.dumps(config))
    shard = own_root / "heldout-vendor" / "00001.tar"
    content = shard.read_bytes()
    start = content.index(b"\x89PNG")
    shard.write_bytes(content[: start + 200] + b"\0" * 400 + content[start + 600 :])
    entries = [
        replace(entry, sha256=sha256_file(shard)) if entry.shard == shard.name else entry
        for entry in read_manifest(shard.parent)
    ]
    write_manifest(shard.parent, entries)
    tables, results = [], []
    for ranks in (1, 2, 3, 4):
        files = [tmp_path / f"{ranks}.{form}" for form in ("parquet", "json")]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        command = [
            sys.executable,
            *launcher,
            "-m",
            "evaluate",
            "zero-shot",
            "--model",
            nano[0],
            "--pretrained",
            nano[1],
        ]
        command += ["--model-configs", tmp_path / "models", "--dataset", "emoji", "--root", own_root, "--device", "cpu"]
        command += ["--predictions", files[0], "--output", files[1], "--classifier-cache", "", "--batch-size", "3"]
        command += ["--max-bad", "0.1"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("written:") == 2, "the first process alone writes and prints"
        tables.append(pyarrow.parquet.read_table(files[0]))
        results.append(json.loads(files[1].read_text()))
    assert all(table.equals(tables[0]) for table in tables)
    for ranks, result in enumerate(results, start=1):
        assert result["ranks"] == ranks
        for name in ("results", "hits", "bad_images", "list_sha256"):
            assert result[name] == results[0][name]
    assert len(results[0]["bad_images"]) == 1


@pytest.mark.slow
def test_an_error_of_processes_is_said_once(nano: tuple[str, Path], emoji_root: Path, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, "-m", "evaluate", "zero-shot", "--model", MODEL, "--pretrained", nano[1]]
    command += ["--dataset", "emoji", "--root", emoji_root, "--output", tmp_path / "r.json", "--device", "cpu"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    assert done.stderr.count("error: ") == 1
    assert "cannot be loaded into tiny-emoji-eq7" in done.stderr


def test_names_that_are_no_utf8_come_into_the_result(nano: tuple[str, Path], tmp_path: Path) -> None:
    """A picture that cannot be read, with an odd byte in its name, is named at the end and nothing is lost."""
    root = tmp_path / "a"
    for wnid in class_list("imagenet-1k", "a").ids:
        (root / wnid).mkdir(parents=True)
        (root / wnid / "1.png").write_bytes(png(1, 8))
    odd = os.fsencode(root / "n01498041") + b"/\xe9bad.png"
    with open(odd, "wb") as file:
        file.write(b"no picture")
    output = tmp_path / "r.json"
    words = ["--model", nano[0], "--pretrained", str(nano[1]), "--dataset", "imagenet-a", "--root", str(root)]
    words += ["--templates", "photo", "--device", "cpu", "--output", str(output), "--classifier-cache", ""]
    assert main(["zero-shot", *words]) == 0
    assert json.loads(output.read_text())["bad_images"][0]["key"] == "\udce9bad.png"
    assert main(["zero-shot", *words]) == 0, "its own result may be replaced"
