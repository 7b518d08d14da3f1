"""`attention`: figures and maps against a whole matrix, its two files, and its refusals."""

import json
from pathlib import Path

import pytest
import torch
from conftest import png

from evaluate.__main__ import main
from evaluate.looking.attention import FIGURES, look
from evaluate.looking.tower import Layer
from open_clip_linear.attention import VisionLayout
from open_clip_linear.spec import parse_spec

H, D, GRID, N = 2, 8, (4, 5), 21


def test_figures_are_those_of_the_whole_matrix() -> None:
    """Signed weights, in blocks that do not divide the tokens."""
    module = parse_spec("inline").build(H * D, H, VisionLayout(GRID)).double()
    q, k = 3 * torch.randn(2, 1, H, N, D, dtype=torch.float64)
    eye = torch.eye(N, dtype=torch.float64)
    parts = [eye[:, :8], eye[:, 8:16], torch.nn.functional.pad(eye[:, 16:], (0, 3))]
    columns = [module.attend(q, k, part.expand(1, H, N, D), None) for part in parts]
    weights = torch.cat(columns, dim=-1)[0, :, :, :N]
    assert (weights < 0).any()
    size = weights.abs().sum(-1, keepdim=True)
    shares = weights.abs() / size
    entropy = -(shares * shares.log()).sum(-1)
    negative = -weights.clamp(max=0).sum(-1) / size[..., 0]
    expected = torch.stack([entropy, entropy.exp(), shares.max(-1).values, negative, weights.sum(-1)])

    first, patches = look(Layer(1, "inline", q, k, module.attend))
    torch.testing.assert_close(first.figures, expected[..., 0])
    torch.testing.assert_close(patches.figures, expected[..., 1:].mean(-1))
    torch.testing.assert_close(first.map, (weights / size)[:, 0].mean(0))
    torch.testing.assert_close(patches.map, (weights / size)[:, 1:].mean((0, 1)))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a<b>.png").write_bytes(png(1))
    (folder / "c.png").write_bytes(png(2))
    return folder


def arguments(nano: tuple[str, Path], images: Path, output: Path) -> list[str]:
    return [
        "attention", "--model", nano[0], "--pretrained", str(nano[1]), "--images", str(images),
        "--output", str(output), "--device", "cpu",
    ]  # fmt: skip


def test_both_files(nano: tuple[str, Path], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(nano, pictures, tmp_path / "out"), "--image-size", "48"]) == 0
    assert "effective number" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "attention.json").read_text())
    assert (found["grid"], found["image_size"], found["kind"]) == ([3, 3], 48, "softmax")
    assert [Path(picture["file"]).name for picture in found["pictures"]] == ["a<b>.png", "c.png"]
    (layer,) = found["pictures"][0]["layers"]
    for who in ("class_token", "patches"):
        assert all(len(layer[who][name]) == 2 for name in FIGURES)
        total = sum(map(sum, layer[who]["map"])) + layer[who]["class_token_share"]
        assert total == pytest.approx(1.0, abs=1e-4)
    page = (tmp_path / "out" / "attention.html").read_text()
    assert "a&lt;b&gt;.png" in page
    assert "a<b>" not in page
    assert "http:" not in page
    assert "https:" not in page
    assert page.count("class='heat'") == 2 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, tmp: a.__setitem__(2, "test-evaluate-nan"), "is not a registered model (did you mean"),
        (lambda a, tmp: a.__setitem__(4, str(tmp / "no.pt")), "found nothing"),
        (lambda a, tmp: a.__setitem__(6, str(tmp / "no.png")), "no such file or folder"),
        (lambda a, tmp: a.__setitem__(6, str(tmp)), "no picture in this folder"),
        (lambda a, tmp: (tmp / "pictures" / "d.png").write_bytes(png(3)[:200]), "d.png: cannot be read as a picture"),
        (lambda a, tmp: (tmp / "out").write_text(""), "cannot write in"),
    ],
)
def test_refusals(
    change, message: str, nano: tuple[str, Path], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = arguments(nano, pictures, tmp_path / "out")
    change(args, tmp_path)
    assert main(args) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*"))
