"""The command on synthetic runs, from folders to table, JSON and plot, and what it says it cannot conclude."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scaling_folders import LAW, write_run

from evaluate.__main__ import main
from evaluate.scaling import count_sizes


def runs(folder: Path, kinds: tuple[str, ...], seeds: int) -> list[str]:
    return [
        str(write_run(folder / f"{kind}-{size}-{seed}", kind, size, seed=seed))
        for kind in kinds
        for size in "SBL"
        for seed in range(seeds)
    ]


def test_two_kinds_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, plot = tmp_path / "new.json", tmp_path / "new.svg"
    folders = runs(tmp_path, ("eq7mean", "softmax"), seeds=3)
    assert main(["scaling", *folders, "--output", str(output), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    found = json.loads(output.read_text())
    assert [(fit["kind"], fit["form"], fit["runs"], fit["sizes"]) for fit in found["fits"]] == [
        ("eq7:scale=mean", "a·N^-α", 9, 3),
        ("softmax", "a·N^-α", 9, 3),
    ]
    for fit, (_, alpha) in zip(found["fits"], LAW.values(), strict=True):
        low, high = fit["alpha_interval"]
        assert low < alpha < high
        assert high - low < 0.04
        assert fit["c_interval"] is None
        assert fit["kind"] in printed
    assert "α of eq7:scale=mean minus α of softmax" in printed
    assert "they differ." in printed
    assert len(found["points"]) == 18
    assert found["loss"] == "mean training loss of the last 10% of the steps"
    assert found["command"].startswith("python -m evaluate scaling ")
    root = ElementTree.fromstring(plot.read_text())
    assert len([c for c in root.iter() if c.tag.endswith("polyline")]) == 2
    assert f"written: {plot}" in printed


def test_four_sizes_are_fitted_with_c_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for millions in (10, 40, 160, 640):
        for seed in (0, 1):
            train = {"parameters": millions * 10**6}
            folders.append(str(write_run(tmp_path / f"{millions}-{seed}", seed=seed, train=train)))
    assert main(["scaling", *folders, "--output", str(tmp_path / "r.json")]) == 0
    plain, level = json.loads((tmp_path / "r.json").read_text())["fits"]
    assert (plain["form"], level["form"]) == ("a·N^-α", "a·N^-α + c")
    assert plain["alpha_interval"][0] < LAW["eq7mean"][1] < plain["alpha_interval"][1]
    assert level["c_interval"][0] == 0
    assert "c = 0 is within its interval" in capsys.readouterr().out


def test_what_is_not_shown_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = [str(write_run(tmp_path / f"a{size}", size=size)) for size in "SB"]
    assert main(["scaling", *two]) == 0
    said = capsys.readouterr().out
    assert "any two sizes lie on a power law" in said
    assert "as many runs as parameters: the interval knows the noise of the steps" in said
    on = {"val_data": "pairs"}
    flat = [
        str(write_run(tmp_path / f"b{i}", "softmax", size, seed=i, settings=on, validation=1.5 + 0.1 * (i % 2)))
        for i, size in enumerate("SSBBL")
    ]
    assert main(["scaling", *flat]) == 0
    said = capsys.readouterr().out
    assert "α = 0 is within its interval" in said
    assert "L: validation loss over pairs." in said
    pair = [str(write_run(tmp_path / f"c{s}", size=s, settings=on, validation=v)) for s, v in (("S", 2.0), ("B", 1.5))]
    assert main(["scaling", *pair]) == 0
    assert "no interval" in capsys.readouterr().out


def test_over_samples_and_compute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(write_run(tmp_path / f"{n}", size="S", train={"samples_seen": n})) for n in (10**6, 10**7, 10**8)]
    for over in ("samples", "compute"):
        assert main(["scaling", *folders, "--over", over, "--output", str(tmp_path / "r.json")]) == 0
        assert json.loads((tmp_path / "r.json").read_text())["over"] == over
    assert "training compute, FLOPs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sizes", "arguments", "message"),
    [
        ("B", [], "eq7:scale=mean has runs of one size alone"),
        ("SB", ["--plot", "x.pdf"], "must end in .svg or .png"),
        ("SB", ["--output", "."], "is a folder"),
    ],
)
def test_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: str, arguments: list[str], message: str
) -> None:
    folders = [str(write_run(tmp_path / size, size=size)) for size in sizes]
    assert main(["scaling", *folders, *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


def test_sizes_that_nearly_agree_are_one() -> None:
    assert count_sizes([100, 101, 200, 199, 400]) == 3
    assert count_sizes([100]) == 1


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["scaling", "--help"])
    assert end.value.code == 0
    assert "example:\n  python -m evaluate scaling" in capsys.readouterr().out
