"""`python -m open_clip_linear`: another module run with the plugin, as users run it, and the list of models."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import open_clip_linear
from open_clip_linear import listing
from open_clip_linear.__main__ import main

ROOT = Path(__file__).parents[1]
MODEL = "tiny-emoji-eq7"
PROBE = """
import json, sys
import open_clip
print(json.dumps({
    "name": __name__, "spec": __spec__.name, "argv": sys.argv, "path": sys.path[0],
    "main": sys.modules["__main__"].__dict__ is globals(), "models": open_clip.list_models(),
}))
"""


def process(*words: object, cwd: Path, launcher: tuple[str, ...] = ("-m",)) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *launcher, "open_clip_linear", *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder to write modules in, as a process started there would have it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["open_clip_linear"])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_module_runs_as_under_python_m(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    done = process("probe", "--option", "with space", "-h", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    seen = json.loads(done.stdout)
    assert set(open_clip_linear.register().models) <= set(seen.pop("models"))
    plain = subprocess.run(
        [sys.executable, "-m", "probe", "--option", "with space", "-h"], cwd=tmp_path, capture_output=True, text=True
    )
    expected = json.loads(plain.stdout)
    del expected["models"]
    assert seen == expected
    assert seen["argv"] == [str(tmp_path / "probe.py"), "--option", "with space", "-h"]


def test_tracebacks_and_exit_codes_of_a_process_pass_through(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("def inner():\n    raise ValueError('of its own')\ninner()\n")
    done = process("fails", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-6:]
    assert last[-1] == "ValueError: of its own"
    assert f'  File "{tmp_path / "fails.py"}", line 2, in inner' in last
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(7)\n")
    assert process("ends", cwd=tmp_path).returncode == 7


@pytest.mark.parametrize("code", [None, 0, 3, "a sentence"])
def test_system_exit_passes_through(here: Path, code: object) -> None:
    (here / "ends.py").write_text(f"raise SystemExit({code!r})\n")
    with pytest.raises(SystemExit) as end:
        main(["ends"])
    assert end.value.code == code


def test_a_package_runs_its_main_module(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = here / "a_package" / "inner"
    package.mkdir(parents=True)
    (here / "a_package" / "__init__.py").touch()
    (package / "__init__.py").write_text("import sys\narguments = sys.argv[1:]\n")
    (package / "__main__.py").write_text(
        "import sys\nfrom . import arguments\nprint(__name__, __package__, sys.argv[1:], arguments)\n"
    )
    assert main(["a_package.inner", "x"]) == 0
    assert capsys.readouterr().out == "__main__ a_package.inner ['x'] ['x']\n"
    assert main(["a_package", "x"]) == 2
    assert "'a_package' is a package without a __main__ module" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("open_clip_train.mian", "; did you mean 'open_clip_train.main'?"),
        ("openclip_train.main", "; did you mean 'open_clip_train.main'?"),
        ("json.decoder.more", ""),
        ("lst", "; did you mean 'list'?"),
        ("qqqqqqqqqq.zzzzzzzzzz", ""),
        (".main", ""),
        ("", ""),
    ],
)
def test_a_missing_module_is_named(here: Path, capsys: pytest.CaptureFixture[str], name: str, hint: str) -> None:
    assert main([name, "--x"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: there is no module {name!r}, neither installed nor in the current folder{hint}\n"


def test_a_file_is_no_module_and_is_not_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "scripts").mkdir()
    (here / "scripts" / "train.py").write_text("raise AssertionError\n")
    assert main(["scripts/train.py"]) == 2
    assert "'scripts/train.py' is a file" in (message := capsys.readouterr().err)
    assert "such as scripts.train\n" in message


@pytest.mark.parametrize("missing", ["no_such_dependency", "a_package.no_such_part", "a_package.tool.part"])
@pytest.mark.parametrize("where", ["tool", "__init__"])
def test_an_import_that_fails_inside_a_module_is_its_own_error(
    here: Path, capsys: pytest.CaptureFixture[str], missing: str, where: str
) -> None:
    package = here / "a_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tool.py").touch()
    (package / f"{where}.py").write_text(f"import {missing}\n")
    with pytest.raises(ModuleNotFoundError) as error:
        main(["a_package.tool"])
    assert error.value.name == missing
    assert capsys.readouterr() == ("", "")


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: python -m open_clip_linear [--model-configs DIR] MODULE ARGS...")
    assert main(["--helpp", "list"]) == 2
    assert "unknown option '--helpp'" in capsys.readouterr().err
    for option in ("-h", "--help"):
        assert main([option]) == 0
        text = capsys.readouterr().out
        assert "turn a checkpoint of one attention kind into another" in text
        assert "torchrun --nproc-per-node 2 -m -- open_clip_linear open_clip_train.main --model" in text
        assert "{000000..000099}" in text


FEATURES = """
import sys, torch, open_clip
model, weights, batch, output = sys.argv[1:]
tower = open_clip.create_model(model, pretrained=weights).eval()
images, texts = torch.load(batch)
with torch.no_grad():
    torch.save((tower.encode_image(images), tower.encode_text(texts)), output)
"""


def test_features_are_those_of_a_direct_call(tmp_path: Path) -> None:
    model = open_clip.create_model(MODEL).eval()
    texts = open_clip.get_tokenizer(MODEL)(["a cat", "two dogs"])
    images = torch.randn(2, 3, *model.visual.image_size)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    torch.save((images, texts), tmp_path / "batch.pt")
    (tmp_path / "features.py").write_text(FEATURES)
    done = process("features", MODEL, *(tmp_path / name for name in ("weights.pt", "batch.pt", "o.pt")), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the other process: the order of sums depends on it
    with torch.no_grad():
        expected = model.encode_image(images), model.encode_text(texts)
    torch.set_num_threads(threads)
    for found, direct in zip(torch.load(tmp_path / "o.pt"), expected, strict=True):
        assert torch.equal(found, direct)


WORKER = """
import json, sys, torch, torch.distributed as dist, open_clip
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
with open(f"{dist.get_rank()}.json", "w") as file:
    known = sys.argv[2] in open_clip.list_models()
    json.dump({"argv": sys.argv[1:], "name": __name__, "total": total.item(), "known": known}, file)
dist.destroy_process_group()
"""


def test_two_processes_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    own = ("--nproc-per-node=2", "--standalone", f"--log-dir={tmp_path}")  # or it leaves a folder in /tmp
    launcher = ("-m", "torch.distributed.run", *own, "-m", "--")
    arguments = ["--model", MODEL, "--logs", "here"]
    done = process("worker", *arguments, cwd=tmp_path, launcher=launcher)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        assert seen == {"argv": arguments, "name": "__main__", "total": 2.0, "known": True}


# --- list ---------------------------------------------------------------------------------------------------------


def test_a_folder_of_model_configs_is_known_to_the_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "my_models").mkdir()
    config = open_clip.get_model_config(MODEL)
    (tmp_path / "my_models" / "mine.json").write_text(json.dumps(config))
    done = process("--model-configs", "my_models", "probe", "--x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mine" in json.loads(done.stdout)["models"]
    assert json.loads(done.stdout)["argv"][1:] == ["--x"]
    assert main(["--model-configs", str(tmp_path / "none"), "probe"]) == 1
    assert "no such folder" in capsys.readouterr().err
    assert main(["--model-configs", str(tmp_path)]) == 2
    assert "needs a folder and a MODULE" in capsys.readouterr().err
    assert main(["--model-configs", str(tmp_path / "my_models"), "list"]) == 2
    assert "stands before a MODULE, not before list" in capsys.readouterr().err


@pytest.fixture(scope="module")
def everything() -> dict[str, dict[str, Any]]:
    """What `list --json` prints, by name."""
    done = process("list", "--json", cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    models = json.loads(done.stdout)
    assert [model["name"] for model in models] == list(open_clip_linear.register().models)
    return {model["name"]: model for model in models}


def test_list_tells_each_models_attention_and_parameters(everything: dict[str, dict[str, Any]]) -> None:
    row = everything["ViT-B-16-eq7-both"]
    assert (row["vision_attention"], row["text_attention"], row["image_size"]) == ("eq7", "eq7", 224)
    assert everything["ViT-B-16-eq7mean"]["text_attention"] == "softmax"
    assert everything["ViT-B-16-softmax"]["parameters"]["total"] == 149_620_737  # OpenCLIP's ViT-B-16
    model = open_clip.create_model("tiny-emoji-eq7learned")
    total, vision = (sum(p.numel() for p in part.parameters()) for part in (model, model.visual))
    row = everything["tiny-emoji-eq7learned"]
    assert row["parameters"] == {"total": total, "vision": vision, "text": total - vision - 1}
    assert row["image_size"] == 48


@pytest.mark.parametrize(
    ("base", "width", "layers", "text_width", "embed_dim"),
    [("ViT-S-16", 384, 12, 384, 384), ("ViT-B-16", 768, 12, 512, 512), ("ViT-L-16", 1024, 24, 768, 768)],
)
def test_list_counts_attention_as_the_formulas_do(
    everything: dict[str, dict[str, Any]], base: str, width: int, layers: int, text_width: int, embed_dim: int
) -> None:
    """N tokens, C width, D head dimension, a layer: 12NC² for the linear layers, and 2N²C or 2NCD between them."""
    N, C, D, T, W = 197, width, 64, 77, text_width
    linear = layers * 12 * N * C**2 + (N - 1) * C * 3 * 16**2 + C * embed_dim
    text = 12 * (12 * T * W**2 + 2 * T**2 * W) + W * embed_dim
    for kind, products in (("softmax", 2 * N**2 * C), ("eq4", 2 * N * C * D), ("eq7", 2 * N * C * D)):
        macs = everything[f"{base}-{kind}"]["macs"]
        assert macs == {"image_224": linear + layers * products, "text": text}
    windows = layers * (2 * (N - 1) * 49 * C + 2 * N * C)  # and the class token sees all keys
    assert everything[f"{base}-sema"]["macs"]["image_224"] == linear + windows
    assert everything[f"{base}-softmax-both"]["macs"]["text"] == text


@pytest.mark.parametrize("name", ["tiny-emoji-hybrid", "tiny-emoji-sema"])
def test_counting_one_block_of_each_spec_equals_counting_all(everything: dict[str, dict[str, Any]], name: str) -> None:
    model = listing.build(open_clip.get_model_config(name), listing.PIXELS)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.encode_image(torch.empty(1, 3, 224, 224, device="meta"))
    assert everything[name]["macs"]["image_224"] == counter.get_total_flops() // 2
    assert listing.image_macs(model) == counter.get_total_flops() // 2, "the model is left as it was"


def test_list_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    listing.print_table(["tiny-emoji-hybrid", "ViT-S-16-eq7-both"])
    header, *rows, _, note, more = capsys.readouterr().out.splitlines()
    assert header.startswith("name ")
    assert " ".join(rows[0].split()) == (
        "tiny-emoji-hybrid eq7:scale=mean*4+softmax*2 softmax 48 16.24 2.75 13.49 2.624 0.013"
    )
    assert " ".join(rows[1].split()) == "ViT-S-16-eq7-both eq7 eq7 224 62.26 21.81 40.44 4.357 1.690"
    assert {len(line) for line in rows} == {len(header)}, "aligned"
    assert "224 px" in note + more


def test_list_ends_quietly_where_its_reader_does(tmp_path: Path) -> None:
    command = f"set -o pipefail; {sys.executable} -u -m open_clip_linear list | head -1"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("name ")


def test_list_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["list", "--yaml"])
    assert end.value.code == 2
    assert "python -m open_clip_linear list" in capsys.readouterr().err
