"""Registration, the generated configs, and the wheel."""

import importlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import open_clip
import pytest

import open_clip_linear

ROOT = Path(__file__).parent.parent


def test_registering_again_changes_nothing():
    models = open_clip.list_models()
    init = open_clip.transformer.Transformer.__init__
    assert open_clip_linear.register() is open_clip_linear.register()
    importlib.reload(open_clip_linear)
    open_clip_linear.towers.vit.install()
    assert open_clip.list_models() == models
    assert open_clip.transformer.Transformer.__init__ is init


def test_it_says_what_it_added():
    added = open_clip_linear.register()
    assert set(added.models) <= set(open_clip.list_models())
    kinds = ("softmax", "eq4", "eq7", "eq7mean", "sema", "inline")
    assert {f"ViT-{size}-16-{kind}" for size in "SBL" for kind in kinds} <= set(added.models)


def test_a_users_configs_are_checked_one_by_one(tmp_path):
    good = open_clip.get_model_config("tiny-emoji-eq7")

    def refused(name, text, message):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=message):
            open_clip_linear.add_model_configs(tmp_path)
        (tmp_path / name).unlink()

    with pytest.raises(ValueError, match="no such folder"):
        open_clip_linear.add_model_configs(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no \*\.json"):
        open_clip_linear.add_model_configs(tmp_path)
    refused("broken.json", "{", r"broken\.json is no model config")
    refused("list.json", "[]", r"list\.json is no model config")
    refused("lacking.json", json.dumps({"embed_dim": 3}), "vision_cfg")
    refused("unknown.json", json.dumps(good | {"text_cfg": {"layer": 3}}), "unexpected keyword argument 'layer'")
    refused("wrong.json", json.dumps(good | {"vision_cfg": {"block_type": "eq9"}}), "unknown kind 'eq9'")
    refused("tiny-emoji-eq7.json", json.dumps(good), "tiny-emoji-eq7 already")
    (tmp_path / "a-users-own.json").write_text(json.dumps(good))
    assert open_clip_linear.add_model_configs(tmp_path) == ("a-users-own",)
    assert open_clip_linear.add_model_configs(tmp_path) == ("a-users-own",)
    assert open_clip.create_model("a-users-own").visual.image_size == (48, 48)


def test_configs_are_what_the_generator_writes():
    done = subprocess.run([sys.executable, ROOT / "configs" / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_installed_outside_the_checkout_creates_every_model(tmp_path):
    """Built from the checkout, unpacked elsewhere, and imported by a process that cannot see the checkout."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"open_clip_linear"}
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = f"""
import sys
sys.path.insert(0, {str(site)!r})
import open_clip, open_clip_linear, torch
assert open_clip_linear.__file__.startswith({str(site)!r}), open_clip_linear.__file__
with torch.device("meta"):
    for name in open_clip_linear.register().models:
        open_clip.CLIP(**open_clip.get_model_config(name))
print(len(open_clip_linear.register().models))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(open_clip_linear.register().models)
