"""The command line, in a process of its own and inside this one."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import open_clip
import pytest
import torch

from evaluate.__main__ import main
from evaluate.commands.options import add_model_configs, pick_device
from evaluate.errors import RefusedError

Cli = Callable[..., subprocess.CompletedProcess[str]]
MODEL = "tiny-emoji-eq7"


def test_zero_shot_writes_json_and_a_table(cli: Cli, emoji_root: Path, tmp_path: Path) -> None:
    checkpoint, output = tmp_path / "checkpoint.pt", tmp_path / "new" / "zero-shot.json"
    torch.save({"name": "x", "step": 1, "state_dict": open_clip.create_model(MODEL).state_dict()}, checkpoint)
    arguments = ["zero-shot", "--model", MODEL, "--pretrained", checkpoint, "--dataset", "emoji", "--root", emoji_root]
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


@pytest.mark.parametrize("command", ["zero-shot", "retrieval", "report"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"example:\n  python -m evaluate {command}" in capsys.readouterr().out


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
        ("--root", str(tmp_path / "nothing"), "no such folder"),
        ("--output", str(tmp_path), "is a folder"),
        ("--device", "cuda:99", "cannot be used"),
        ("--model-configs", str(tmp_path / "nothing"), "no such folder"),
    ):
        arguments = [word for pair in (good | {option: value}).items() for word in pair]
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
