"""`dispersion`: exponents of what is known, the theorem on a compact set, its two files, and its refusals."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from conftest import png
from scipy import stats

from evaluate.__main__ import main
from evaluate.looking import dispersion
from evaluate.looking.dispersion import described, measure
from evaluate.looking.kinds import KINDS


def test_an_exact_power_law_has_its_exponent() -> None:
    sizes = [64, 128, 256, 512]
    logs = np.log(np.array(sizes))
    slopes = np.array([0.5, 0.75, 0.5, 0.6, 0.7, 0.65, 0.55, 0.75])
    found = described("largest_share", sizes, np.stack([1 - slope * logs for slope in slopes]))
    assert found["exponent"] == pytest.approx(-0.625)
    expected = stats.t.interval(0.95, 7, -0.625, stats.sem(slopes))
    assert found["interval"] == pytest.approx(expected, abs=1e-6)
    assert found["values"][0] == pytest.approx(np.exp(1) * 64**-0.625)


def test_only_the_upper_half_is_fitted() -> None:
    found = described("entropy", [1, 2, 4, 8], np.array([[9.0, 7.0, 1.0, 1.0 + np.log(2)]] * 8))
    assert found["exponent"] == pytest.approx(1.0)


def test_measured_by_hand() -> None:
    weights = torch.tensor([[0.25, -0.5, 0.25], [8.0, 0.0, 0.0]], dtype=torch.float64)
    found = measure(weights)
    assert found[0] == pytest.approx((np.log(0.5) + 0) / 2)
    assert found[1] == -np.inf
    assert found[2] == pytest.approx(1.5 * np.log(2) / 2)
    assert found[3] == pytest.approx((np.log(0.5) + np.log(8)) / 2)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 1,024 keys, and 256 tokens are enough of a checkpoint."""
    monkeypatch.setattr(dispersion, "LARGEST", 10)
    monkeypatch.setattr(dispersion, "LEAST_LARGEST", 8)


@pytest.mark.usefixtures("small")
def test_the_theorem_on_a_compact_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dispersion", "--output", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "compact: exponents in N up to 1,024" in out
    found = json.loads((tmp_path / "out" / "dispersion.json").read_text())
    compact, gaussian = found["features"]["compact"]["kinds"], found["features"]["gaussian"]["kinds"]
    assert list(compact) == [kind.name for kind in KINDS]
    for kind in KINDS:
        assert found["kinds"][kind.name]["covered"] == kind.covered
        if kind.covered:  # the coefficient of a key is of the order 1/N
            assert compact[kind.name]["largest_weight"]["exponent"] == pytest.approx(-1, abs=0.05)
            assert compact[kind.name]["median_share"]["exponent"] == pytest.approx(-1, abs=0.05)
            assert compact[kind.name]["entropy"]["exponent"] == pytest.approx(1, abs=0.05)
        low, high = compact[kind.name]["largest_share"]["interval"]
        assert low - 1e-12 <= compact[kind.name]["largest_share"]["exponent"] <= high + 1e-12
    assert compact["window"]["largest_share"]["exponent"] == pytest.approx(0, abs=1e-12)
    assert compact["window"]["median_share"]["exponent"] is None
    assert compact["sema"]["largest_share"]["exponent"] == pytest.approx(0, abs=0.1)
    assert compact["eq7"]["largest_weight"]["exponent"] == pytest.approx(0, abs=0.05)
    assert compact["eq7"]["largest_share"]["exponent"] == pytest.approx(-1, abs=0.05)
    assert -0.95 < gaussian["softmax"]["largest_share"]["exponent"] < -0.5

    drawing = ElementTree.parse(tmp_path / "out" / "dispersion.svg").getroot()
    texts = [text.text for text in drawing.iterfind(".//{*}text")]
    assert "compact features: largest share of one key" in texts
    assert {kind.name for kind in KINDS} <= set(texts)
    assert "nan" not in ElementTree.tostring(drawing, encoding="unicode")


@pytest.mark.usefixtures("small")
def test_a_checkpoints_own_features(nano: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, checkpoint = nano
    (tmp_path / "pictures").mkdir()
    for number in range(55):  # of 5 tokens each
        (tmp_path / "pictures" / f"{number:02d}.png").write_bytes(png(number))
    given = [
        "--model",
        name,
        "--pretrained",
        str(checkpoint),
        "--images",
        str(tmp_path / "pictures"),
        "--device",
        "cpu",
    ]
    assert main(["dispersion", "--output", str(tmp_path / "out"), *given, "--batch-size", "7"]) == 0
    found = json.loads((tmp_path / "out" / "dispersion.json").read_text())
    trained = found["features"]["trained"]
    assert (trained["sizes"], trained["head_dim"]) == ([64, 128, 256], 16)
    assert "275 tokens" in trained["about"]
    assert found["checkpoint"]["model"] == name
    capsys.readouterr()

    few = [*given[:5], str(tmp_path / "pictures" / "00.png")]
    assert main(["dispersion", "--output", str(tmp_path / "few"), *few]) == 1
    assert "5 tokens in all; a slope takes at least 256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--model", "ViT-B-16-eq7"], "take all three of --model, --pretrained and --images"),
        (["--output", "taken/out"], "cannot write in"),
        (["--model", "ViT-B-16-eq", "--pretrained", "x.pt", "--images", "x.png"], "did you mean"),
        (["--model", "ViT-B-16-eq7", "--pretrained", "x.pt", "--images", "x.png"], "x.pt: found nothing"),
    ],
)
def test_refusals(
    given: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("")
    assert main(["dispersion", "--output", "out", *given]) == 1
    assert message in capsys.readouterr().err
