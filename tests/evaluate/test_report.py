"""The report of a real run folder, in one piece."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

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


class Page(HTMLParser):
    """Collects tags, attributes and text; notes tags that are closed in another order than opened."""

    VOID = ("meta", "img", "hr", "br", "link", "input")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_result_has_the_names_and_figures_of_the_run(run: Path, emoji_root: Path) -> None:
    assert main(["report", "--run", str(run), "--root", str(emoji_root)]) == 0
    result = json.loads((run / "result.json").read_text())
    measured = json.loads((run / "zero-shot.json").read_text())["results"]
    assert result["model"] == "test-evaluate-nano"
    assert result["train_minutes"] == 1.5
    for name in ("heldout_vendor", "heldout_vendor_noflags", "heldout_concepts"):
        assert {"top1", "top5", "n", "classes"} <= set(result[name])
        assert result[name] == measured[name]


def test_page_fetches_nothing_runs_nothing_and_escapes(run: Path, emoji_root: Path) -> None:
    write_report(run, emoji_root, [], argv=["report", "--run", str(run)])
    html = (run / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed")
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "srcset", "action", "data", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:image/png;base64,")
        if tag == "img":
            assert (attributes.get("alt") or "").startswith("Emoji: ")
    assert not re.search(r"https?:|url\(|@import", html)
    assert NASTY not in html
    assert "run<1>" not in html
    assert "<a & b>" not in html
    text = "".join(page.text)
    assert "<b>&\"'</b>" in text, "the nasty name is shown, as text"
    assert 'python -m training --model test-evaluate-nano --train-data "<a & b>"' in text
    assert "python -m data_prep emoji --output here" in text
    assert "python -m evaluate report --run" in text
    assert "1 logged steps had a loss that is not finite" in text
    assert "64 × 2 processes" in text


def test_the_same_run_gives_the_same_page(run: Path, emoji_root: Path) -> None:
    pages = []
    for _ in range(2):
        write_report(run, emoji_root, [])
        pages.append((run / "report.html").read_bytes())
    assert pages[0] == pages[1]


def test_runs_beside_are_shown_or_said_to_be_left_out(
    run: Path, tmp_path: Path, nano: tuple[str, Path], emoji_root: Path
) -> None:
    other = make_run(tmp_path / "other", nano, emoji_root, samples=320)
    elsewhere = make_run(tmp_path / "elsewhere", nano, emoji_root)
    changed = json.loads((elsewhere / "zero-shot.json").read_text())
    changed["manifests"]["heldout-vendor"] = "0" * 64
    (elsewhere / "zero-shot.json").write_text(json.dumps(changed))
    write_report(run, emoji_root, [other, elsewhere, tmp_path / "nothing"])
    text = "".join(Page((run / "report.html").read_text()).text)
    assert "test-evaluate-nano (other)" in text
    assert "elsewhere is left out: it was evaluated on other data." in text
    assert "nothing is left out: run" in text
    assert "The runs saw different numbers of pictures" in text
    assert list(json.loads((run / "result.json").read_text())["beside"]) == [str(other)]


def test_another_checkpoint_or_data_set_is_refused(run: Path, emoji_root: Path, own_root: Path) -> None:
    stale = json.loads((run / "zero-shot.json").read_text())
    stale["checkpoint"]["sha256"] = "0" * 64
    (run / "zero-shot.json").write_text(json.dumps(stale))
    with pytest.raises(RefusedError, match=r"is not the checkpoint that .* Evaluate it again: python -m evaluate"):
        write_report(run, emoji_root, [])
    stale["manifests"]["heldout-vendor"] = "1" * 64
    (run / "zero-shot.json").write_text(json.dumps(stale))
    with pytest.raises(RefusedError, match="the manifests differ"):
        write_report(run, own_root, [])
    assert not (run / "report.html").exists()
    assert not (run / "result.json").exists()


def test_a_run_without_its_zero_shot_result_is_refused(run: Path, emoji_root: Path) -> None:
    (run / "zero-shot.json").unlink()
    with pytest.raises(RefusedError, match="`python -m evaluate zero-shot` writes it: run that first"):
        write_report(run, emoji_root, [])
