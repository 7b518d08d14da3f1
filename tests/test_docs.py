"""What the docs show is run: each code block that names a file is written to it, outside the checkout."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """docs/seam.md's files in a folder of their own."""
    text = (ROOT / "docs" / "seam.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```\n", text, re.DOTALL)
    assert [name for name, _ in blocks] == ["my_attention.py", "use.py", "check.py", "run.py"]
    assert text.count("```python") == len(blocks)
    folder = tmp_path_factory.mktemp("outside")
    for name, code in blocks:
        (folder / name).write_text(code)
    return folder


def run(folder, *command):
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_kind_from_outside_is_used_as_the_page_says(folder):
    assert run(folder, "use.py").strip() == str(["elu"] * 10 + ["softmax"] * 2)
    assert "equal and without leaks" in run(folder, "check.py")


def test_a_command_knows_the_kind_by_the_page_s_three_lines(folder):
    (folder / "told.py").write_text(
        "import sys, open_clip_linear\nprint(sys.argv[1:], open_clip_linear.parse_spec('elu:clamp=tight'))"
    )
    assert run(folder, "run.py", "told", "--model", "x").strip() == "['--model', 'x'] elu:clamp=tight"


FEATURES = """
import copy, open_clip, torch, my_attention, open_clip_linear
config = open_clip.get_model_config("ViT-S-16")
for tower in ("vision_cfg", "text_cfg"):
    config[tower] |= {"block_type": "elu", "layers": 2}
config["vision_cfg"]["image_size"] = 64
model = open_clip.CLIP(**copy.deepcopy(config)).eval()
images, texts = torch.randn(2, 3, 64, 64), open_clip.tokenize(["a cat", "two dogs"])
expected = model(images, texts)
for found, wanted in zip(torch.compile(model, fullgraph=True, backend="aot_eager")(images, texts), expected):
    assert torch.allclose(found, wanted, atol=1e-5)
with torch.autocast("cpu", torch.bfloat16):
    assert torch.cosine_similarity(model(images, texts)[0], expected[0]).min() > 0.99
open_clip.CLIP(**copy.deepcopy(config)).load_state_dict(model.state_dict())
config["vision_cfg"]["block_type"] = "elu:clamp=tight"
try: open_clip.CLIP(**config).load_state_dict(model.state_dict(), strict=False)
except open_clip_linear.KindMismatchError as error: print(error)
"""


def test_a_kind_from_outside_has_every_feature(folder):
    assert "'elu' attention" in run(folder, "-c", FEATURES)


def test_no_placeholder_is_left():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        assert not re.search(r"^[A-Z]{4,}$|TODO|FIXME", page.read_text(encoding="utf-8"), re.MULTILINE), page


def test_the_operators_are_called_as_the_page_on_speed_says(tmp_path):
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- use\.py -->\n```python\n(.*?)```\n", text, re.DOTALL)
    (tmp_path / "use.py").write_text(code + "print(*o.shape, *text.shape, q.grad is not None)\n")
    assert run(tmp_path, "use.py").split() == ["2", "785", "12", "64", "2", "12", "785", "64", "True"]
