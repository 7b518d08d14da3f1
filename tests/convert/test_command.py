"""The command as users run it."""

import json
import os
import re
import subprocess
import sys

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from small_models import OUT, TEXT, VISION, VISION_MARK, clip, images, trained
from torch.nn import functional as F

from open_clip_linear.convert.command import main


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """A folder of small models, which OpenCLIP does not know before the command adds it."""
    folder = tmp_path_factory.mktemp("configs")
    for name, vision, text, more in (
        ("stock", None, None, {}),
        ("eq7", "eq7", None, {}),
        ("eq7mean", "eq7:scale=mean", None, {}),
        ("both", "eq7*1+softmax*1", "inline", {}),
        ("custom", "eq7", "eq4", {"custom_text": True}),
        ("larger", "eq7", None, {"vision_cfg": {"image_size": 48}}),
        ("words", None, "eq7", {"text_cfg": {"vocab_size": 100}}),
    ):
        config = {
            "embed_dim": 16,
            "vision_cfg": VISION | {"block_type": vision} | more.pop("vision_cfg", {}),
            "text_cfg": TEXT | {"block_type": text} | more.pop("text_cfg", {}),
        }
        for cfg in (config["vision_cfg"], config["text_cfg"]):
            if cfg["block_type"] is None:
                del cfg["block_type"]
        (folder / f"convert-{name}.json").write_text(json.dumps(config | more))
    return folder


def options(source, model, output, configs, *more):
    words = ["--from", source, "--to-model", f"convert-{model}", "--output", output, "--model-configs", configs, *more]
    return [str(word) for word in words]


def test_the_command_end_to_end_in_processes_of_its_own(tmp_path, configs):
    stock, there, back = tmp_path / "stock.pt", tmp_path / "eq7.safetensors", tmp_path / "back.pt"
    weights = trained(clip()).state_dict()
    torch.save({"state_dict": {f"module.{key}": value for key, value in weights.items()}, "epoch": 1}, stock)
    command = [sys.executable, "-m", "open_clip_linear", "convert"]
    done = subprocess.run([*command, *options(stock, "eq7", there, configs)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "vision: softmax → eq7, 2 layers, output projections × 0.1176 (2/17)",
        "text: softmax, 2 layers, unchanged",
    ]
    assert re.fullmatch(
        r"image features before and after, on 8 drawn test pictures, no photographs: cosine 0\.\d{4} in the mean and "
        r"-?0\.\d{4} at least, norm [+-]\d+\.\d % \(two different ones had cosine -?[01]\.\d{4} before\)",
        lines[2],
    )
    assert lines[3].startswith("The features moved: ")
    assert lines[4:] == [f"written: {there}"]
    assert done.stderr.splitlines() == [
        f"reading {stock}",
        "creating convert-eq7",
        "comparing features on 8 drawn test pictures, no photographs",
        f"writing {there}",
    ]
    done = subprocess.run([*command, *options(there, "stock", back, configs, "--json")], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["towers"][0]["source"] == "eq7"
    returned = torch.load(back, weights_only=True)
    assert set(returned) == set(weights)
    assert all(torch.allclose(returned[key], value, rtol=1e-6, atol=0) for key, value in weights.items())
    refused = subprocess.run([*command, *options(there, "eq7", there, configs)], capture_output=True, text=True)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: the output ")


def convert(capsys, *arguments):
    """What the command prints, as JSON."""
    assert main([*options(*arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_file_loads_with_openclip_and_computes_what_was_compared(tmp_path, configs, capsys):
    stock, image = tmp_path / "stock.safetensors", images().float()
    source = trained(clip())
    save_file(source.state_dict(), stock)
    for name in ("eq7", "both", "custom"):
        for suffix in (".pt", ".safetensors"):
            output = tmp_path / f"{name}{suffix}"
            found = convert(capsys, stock, name, output, configs)
            model = open_clip.create_model(f"convert-{name}", pretrained=str(output))
            assert model.encode_image(image).isfinite().all()
            assert found["needs_training"]
            assert (found["texts"] is not None) == (name != "eq7")
            assert len(found["images"]["cosines"]) == 8
    assert found["renamed"]
    assert load_file(tmp_path / "eq7.safetensors")[VISION_MARK].tolist() == list(b"eq7")


def test_the_comparison_is_that_of_the_two_models(tmp_path, configs, capsys):
    for name, side in (("one", 40), ("two", 20), ("three", 32)):
        Image.effect_noise((side, side), 90).convert("RGB").save(tmp_path / f"{name}.png")
    source = trained(clip(text_cfg={"context_length": 12}))
    torch.save(source.state_dict(), tmp_path / "stock.pt")
    found = convert(capsys, tmp_path / "stock.pt", "both", tmp_path / "new.pt", configs, "--images", tmp_path)
    model, _, preprocess = open_clip.create_model_and_transforms("convert-both", pretrained=str(tmp_path / "new.pt"))
    model.eval()
    pictures = torch.stack([preprocess(Image.open(path)) for path in found["images"]["samples"]])
    before, after = source.encode_image(pictures), model.encode_image(pictures)
    assert found["images"]["cosines"] == pytest.approx(F.cosine_similarity(before, after).tolist(), abs=1e-5)
    growth = after.norm(dim=1).mean() / before.norm(dim=1).mean() - 1
    assert found["images"]["norm_change"] == pytest.approx(growth.item(), abs=1e-5)
    tokens = open_clip.get_tokenizer("convert-both")(found["texts"]["samples"])
    cosines = F.cosine_similarity(source.encode_text(tokens), model.encode_text(tokens)).tolist()
    assert found["texts"]["cosines"] == pytest.approx(cosines, abs=1e-5)
    assert found["pictures"] == "3 of the given pictures"


def test_an_exact_conversion_says_that_nothing_moved(tmp_path, configs, capsys):
    torch.save(trained(clip("eq7")).state_dict(), tmp_path / "eq7.pt")
    assert main(options(tmp_path / "eq7.pt", "eq7mean", tmp_path / "mean.pt", configs)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "vision: eq7 → eq7:scale=mean, 2 layers, output projections × 17"
    assert "cosine 1.0000 in the mean and 1.0000 at least, norm +0.0 %" in lines[2]
    assert lines[3] == "The features are the same but for rounding: the converted model needs no training."
    raw = convert(capsys, tmp_path / "eq7.pt", "eq7mean", tmp_path / "raw.pt", configs, "--raw")
    assert raw["raw"]
    assert raw["needs_training"]
    old, new = (torch.load(tmp_path / name, weights_only=True) for name in ("eq7.pt", "raw.pt"))
    assert torch.equal(old[OUT.format(0)], new[OUT.format(0)])


def test_another_image_size_is_compared_with_the_source_at_its_own(tmp_path, configs, capsys):
    """The size kept, a model at 48 px has the features of the one at 32 px, but for its finer grid."""
    source = trained(clip(vision_cfg={"layers": 2}))
    torch.save(source.state_dict(), tmp_path / "stock.pt")
    found = convert(capsys, tmp_path / "stock.pt", "larger", tmp_path / "new.pt", configs)
    assert found["resized"] == ["visual.positional_embedding: 17 → 37 tokens"]
    assert found["towers"][0]["layers"][0]["factors"] == [2 / 37]
    assert found["images"]["cosine_mean"] > found["images"]["between_samples"]


def test_texts_that_cannot_be_compared_are_named(tmp_path, configs, capsys):
    torch.save(trained(clip(text_cfg={"vocab_size": 100})).state_dict(), tmp_path / "stock.pt")
    found = convert(capsys, tmp_path / "stock.pt", "words", tmp_path / "new.pt", configs)
    assert found["texts"] is None
    assert found["missing"] == [
        "text features were not compared: its vocabulary of 100 is smaller than the tokenizer's"
    ]
    assert found["needs_training"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "there/new.pt"], "the output's folder there does not exist"),
        (["--output", "/proc/new.pt"], "the output's folder /proc cannot be written to"),
        (["--output", "new.ckpt"], r"must end in one of .pt, .pth, .bin, .safetensors"),
        (["--output", "stock.pt"], "is the file the weights come from"),
        (["--output", "link.pt"], "is the file the weights come from"),
        (["--output", "folder.pt"], "is a folder"),
        (["--to-model", "ViT-B-16-eq8"], r"'ViT-B-16-eq8' is not a registered model \(did you mean 'ViT-B-16-eq7'"),
        (["--to-model", "local-dir:/tmp"], "not a registered model"),
        (["--from", "no.pt"], "no.pt does not exist"),
        (["--model-configs", "nowhere"], "--model-configs: model configs nowhere: no such folder"),
        (["--images", "stock.pt"], "--images stock.pt: cannot be read as a picture"),
    ],
)
def test_refusals_come_before_any_work(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    torch.save(clip().state_dict(), "stock.pt")
    os.symlink("stock.pt", "link.pt")
    os.mkdir("folder.pt")

    def fail(*_):
        raise AssertionError("the file was read")

    monkeypatch.setattr("open_clip_linear.convert.command.load_weights", fail)
    defaults = ["--from", "stock.pt", "--to-model", "tiny-emoji-eq7", "--output", "new.pt"]
    assert main([*defaults, *words]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("error: ")
    assert re.search(message, error)
    assert error.count("\n") == 1


def test_another_models_weights_are_refused_and_nothing_is_written(tmp_path, capsys, configs):
    torch.save(clip(vision_cfg={"width": 64}).state_dict(), tmp_path / "wide.pt")
    (tmp_path / "new.pt").write_text("mine")
    assert main(options(tmp_path / "wide.pt", "eq7", tmp_path / "new.pt", configs)) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert "error: these weights are another model's: " in error
    assert (tmp_path / "new.pt").read_text() == "mine"


def test_the_command_line(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "convert --from stock.pt --to-model ViT-B-16-eq7 --output" in capsys.readouterr().out
    for wrong in ([], ["--from", "a.pt"], ["--from", "a.pt", "--to-model", "m", "--output", "b.pt", "--rwa"]):
        with pytest.raises(SystemExit) as end:
            main(wrong)
        assert end.value.code == 2


def test_an_interrupt_ends_in_a_sentence(tmp_path, monkeypatch, capsys, configs):
    def interrupt(*_):
        raise KeyboardInterrupt

    torch.save(clip().state_dict(), tmp_path / "stock.pt")
    monkeypatch.setattr("open_clip_linear.convert.command.save_weights", interrupt)
    assert main(options(tmp_path / "stock.pt", "eq7", tmp_path / "new.pt", configs)) == 130
    assert "interrupted" in capsys.readouterr().err
    assert not (tmp_path / "new.pt").exists()
