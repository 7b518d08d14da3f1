"""The report of real runs and results, in one piece."""

import json
import re
import shutil
from pathlib import Path

import pytest
import results
from html_page import Page

from evaluate.__main__ import main
from evaluate.errors import RefusedError
from evaluate.report import write_report

NASTY = '<b>&"'


def make_run(folder: Path, nano: tuple[str, Path], root: Path, samples: int = 640) -> Path:
    """A run folder as training and zero-shot leave it."""
    name, checkpoint = nano
    folder.mkdir()
    shutil.copy(checkpoint, folder / "checkpoint.pt")
    command = f'python -m training --model {name} --train-data "<a & b>"'
    settings = {"model": name, "train_data": "<a & b>", "command": command, "batch_size": 64}
    train = {
        "model": name,
        "steps": 10,
        "train_minutes": 1.5,
        "images_per_s": 123.4,
        "parameters": 1,
        "samples_seen": samples,
        "final_loss": 1.25,
        "world_size": 2,
        "command": command,
        "versions": {},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "train.json").write_text(json.dumps(train))
    rows = [{"step": i, "samples_seen": 64 * i, "loss": 4 / i if i != 4 else float("nan")} for i in range(1, 11)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--dataset", "emoji", "--root", str(root), "--output", str(folder / "zero-shot.json")]
    assert main(["zero-shot", "--model", name, "--pretrained", str(folder / "checkpoint.pt"), *arguments]) == 0
    return folder


@pytest.fixture
def run(tmp_path: Path, nano: tuple[str, Path], emoji_root: Path) -> Path:
    return make_run(tmp_path / "run<1>", nano, emoji_root)


def page_of(path: Path) -> Page:
    page = Page(path.read_text(encoding="utf-8"))
    page.check_self_contained()
    return page


def test_result_has_the_names_and_figures_of_the_run(run: Path, emoji_root: Path) -> None:
    assert main(["report", str(run), "--root", str(emoji_root)]) == 0
    result = json.loads((run / "result.json").read_text())
    measured = json.loads((run / "zero-shot.json").read_text())["results"]
    assert result["model"] == "test-evaluate-nano"
    assert result["train_minutes"] == 1.5
    for name in ("heldout_vendor", "heldout_vendor_noflags", "heldout_concepts"):
        assert {"top1", "top5", "n", "classes"} <= set(result[name])
        assert result[name] == measured[name]


def test_page_fetches_nothing_runs_nothing_and_escapes(run: Path, emoji_root: Path) -> None:
    write_report([run], run / "report.html", emoji_root, argv=["report", str(run)])
    html = (run / "report.html").read_text(encoding="utf-8")
    page = page_of(run / "report.html")
    assert not re.search(r"https?:|url\(|@import", html)
    assert NASTY not in html
    assert "run<1>" not in html
    assert "<a & b>" not in html
    images = [attributes["alt"] or "" for tag, attributes in page.tags if tag == "img"]
    assert images
    assert all(alt.startswith("Emoji: ") for alt in images)
    assert "<b>&\"'</b>" in page.text, "the nasty name is shown, as text"
    assert 'python -m training --model test-evaluate-nano --train-data "<a & b>"' in page.text
    assert "python -m data_prep emoji --output here" in page.text
    assert "python -m evaluate report " in page.text
    assert "1 logged steps had a loss that is not finite" in page.text
    assert "64 × 2 processes" in page.text
    assert "Pictures found by a caption" in page.text


def test_without_the_emoji_folder_there_is_no_gallery_and_no_model_is_loaded(run: Path, tmp_path: Path) -> None:
    (run / "checkpoint.pt").unlink()
    assert main(["report", str(run), "--output", str(tmp_path / "page.html")]) == 0
    page = page_of(tmp_path / "page.html")
    assert "test-evaluate-nano on emoji it has never seen" in page.text
    assert "Pictures found by a caption" not in page.text
    assert [tag for tag, _ in page.tags].count("img") == 0
    assert (tmp_path / "result.json").is_file()


def test_the_same_run_gives_the_same_page(run: Path, emoji_root: Path) -> None:
    pages = []
    for _ in range(2):
        write_report([run], run / "report.html", emoji_root)
        pages.append((run / "report.html").read_bytes())
    assert pages[0] == pages[1]


def test_runs_beside_are_shown_and_only_equal_pictures_compared(
    run: Path, tmp_path: Path, nano: tuple[str, Path], emoji_root: Path
) -> None:
    other = make_run(tmp_path / "other", nano, emoji_root, samples=320)
    elsewhere = make_run(tmp_path / "elsewhere", nano, emoji_root)
    changed = json.loads((elsewhere / "zero-shot.json").read_text())
    changed["lists"]["heldout-vendor"] = "0" * 64
    (elsewhere / "zero-shot.json").write_text(json.dumps(changed))
    (tmp_path / "nothing").mkdir()
    write_report([run, other, elsewhere, tmp_path / "nothing"], run / "report.html", emoji_root)
    text = page_of(run / "report.html").text
    assert "test-evaluate-nano (other)" in text
    assert "list 2 of 2 (other pictures)" in text
    assert "nothing: nothing to show in it." in text
    assert "The runs saw different numbers of pictures" in text
    assert list(json.loads((run / "result.json").read_text())["beside"]) == [str(other)]


def test_another_checkpoint_or_data_set_is_refused(run: Path, emoji_root: Path, own_root: Path) -> None:
    stale = json.loads((run / "zero-shot.json").read_text())
    stale["checkpoint"]["sha256"] = "0" * 64
    (run / "zero-shot.json").write_text(json.dumps(stale))
    with pytest.raises(RefusedError, match=r"is not the checkpoint that .* Evaluate it again: python -m evaluate"):
        write_report([run], run / "report.html", emoji_root)
    stale["manifests"]["heldout-vendor"] = "1" * 64
    (run / "zero-shot.json").write_text(json.dumps(stale))
    with pytest.raises(RefusedError, match="the manifests differ"):
        write_report([run], run / "report.html", own_root)
    assert not (run / "report.html").exists()
    assert not (run / "result.json").exists()


def test_a_gallery_of_a_run_without_its_result_is_refused(run: Path, emoji_root: Path) -> None:
    (run / "zero-shot.json").unlink()
    with pytest.raises(RefusedError, match="--root: the gallery shows examples of the first run's figures"):
        write_report([run], run / "report.html", emoji_root)
    write_report([run], run / "report.html")
    assert "1 run of test-evaluate-nano." in page_of(run / "report.html").text
    assert not (run / "result.json").exists()


def test_results_of_every_kind_without_a_run(tmp_path: Path) -> None:
    names = ("zero_shot", "comparison", "retrieval", "probe", "scaling", "attention")
    folder = tmp_path / "results"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.json").write_text(json.dumps(getattr(results, name)()))
    (folder / "later.json").write_text(json.dumps(results.zero_shot(format=7)))
    assert main(["report", str(folder)]) == 0
    assert results.HOSTILE not in (folder / "report.html").read_text(encoding="utf-8")
    page = page_of(folder / "report.html")
    for heading in ("Accuracy", "Differences", "Retrieval", "Loss over size", "Where each layer looks", "Facts"):
        assert heading in page.text
    assert "later.json is left out: its format is 7" in page.text
    assert "1 zero-shot result, 1 comparison, 1 retrieval result, 1 probe result, 1 scaling result, " in page.text
    assert not (folder / "result.json").exists()


def test_a_run_in_progress_has_its_loss_curve(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "settings.json").write_text(json.dumps({"model": "m", "train_data": "d", "command": ["python", "-m", "x"]}))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 5.0}\n{"step": 2, "loss": 4.0}\n{"st')
    write_report([run], tmp_path / "page.html")
    page = page_of(tmp_path / "page.html")
    assert [tag for tag, _ in page.tags].count("polyline") == 4
    assert "2, not finished" in page.text
    assert "python -m x" in page.text


def test_nothing_to_show_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "nothing to show. Looked for" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
