"""benchmarks/table.py: what it would run, what it skips and refuses, the page it writes. Nothing is trained here."""

import json
import subprocess
import sys
from pathlib import Path

import open_clip
import pytest

from benchmarks import table
from benchmarks.table import KINDS, LOSS_AT, RATES, SIZES, Run, TableError
from evaluate.__main__ import parser as evaluate_parser
from training.command_line import parser as training_parser
from training.command_line import resolve

ROOT = Path(table.__file__).parents[1]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """An empty folder to run in, with the recipes of this one."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def leave(run, top1=1.0):
    """What a finished run leaves, as the training and the evaluation write it."""
    run.folder.mkdir(parents=True)
    (run.folder / "made-by.json").write_text(json.dumps({"command": run.training, "commit": "abc1234"}))
    (run.folder / "checkpoint.pt").touch()
    rows = [{"step": step, "loss": 10 - step / 100} for step in range(1, run.steps + 1)]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for size in run.sizes:
        figures = {"top1": top1 + size / 100, "top5": 3 * top1, "n": 1760}
        run.result(size).write_text(json.dumps({"results": {"heldout_vendor": figures}}))


def test_every_kind_of_the_table_is_a_registered_model():
    assert all(f"tiny-emoji-{kind}" in open_clip.list_models() for kind in KINDS)


def test_the_commands_are_what_the_programs_take(checkout):
    """Both parsers read them, and the settings are the recipe's but for what the table varies."""
    run = table.final_runs("hybrid", "3e-3")[1]
    command = run.training
    settings = resolve(training_parser().parse_args(command[2:]))
    assert (settings.max_steps, settings.lr, settings.seed, settings.warmup) == (300, 3e-3, 1, 30)
    recipe = resolve(training_parser().parse_args(["--config", "configs/training/quickstart.toml"]))
    varied = {"model", "train_data", "max_steps", "lr", "seed", "warmup", "output", "log_every_n_steps"}
    assert {k for k, v in vars(settings).items() if v != getattr(recipe, k)} <= varied
    assert evaluate_parser().parse_args(run.evaluation(72)[2:]).image_size == [72]


def test_a_run_that_is_there_is_not_repeated_and_another_s_is_refused(checkout):
    run = table.search_runs("eq7")[0]
    assert [command[1] for command in run.missing()] == ["training", "evaluate"]
    leave(run)
    assert run.missing() == []
    run.do()
    run.result(SIZES[0]).unlink()
    assert run.missing() == [run.evaluation(SIZES[0])]
    leave_again = run.result(SIZES[0])
    leave_again.write_text("{}")
    with pytest.raises(TableError, match=r"is damaged .*remove it"):
        run.do()
    # A new checkpoint makes the old evaluations worthless, also where it is not evaluated yet.
    (run.folder / "checkpoint.pt").unlink()
    assert [command[1] for command in run.missing()] == ["training", "evaluate"]
    with pytest.raises(TableError, match="the command ended"):
        run.do()
    assert not leave_again.exists()
    (run.folder / "checkpoint.pt").touch()
    (run.folder / "metrics.jsonl").unlink()
    with pytest.raises(TableError, match="is damaged"):
        run.do()
    run = table.search_runs("eq4")[0]
    leave(run)
    other = Run(run.kind, run.seed, "5e-3", run.steps, run.data, run.sizes, run.folder)
    with pytest.raises(TableError, match="was made by another command; remove it"):
        other.do()


def test_a_command_that_fails_ends_the_table_with_its_log(checkout):
    run = table.search_runs("eq7")[0]
    with pytest.raises(TableError, match=r"ended with 2; its output stands in runs/table/rates/eq7-3e-3/log\.txt"):
        run.do()  # there is no data


def test_the_best_rate_and_the_page(checkout):
    for kind in KINDS:
        for run, top1 in zip(table.search_runs(kind), (1.0, 3.0, 2.0), strict=True):
            leave(run, top1)
        assert table.best_rate(kind) == RATES[1]
    runs = {kind: table.final_runs(kind, RATES[1]) for kind in KINDS}
    for pair in runs.values():
        for run in pair:
            leave(run, top1=4.0 + run.seed)
    page = checkout / table.PAGE
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    block = table.table(runs, {kind: [100.0, 50.0] for kind in KINDS})
    table.write_page(block)
    text = page.read_text()
    assert text.startswith("before\n<!--")
    assert text.endswith("-->\nafter\n")
    assert "old" not in text
    assert "commit abc1234" in text
    row = next(line for line in text.splitlines() if line.startswith(f"| `eq4half` | {RATES[1]}"))
    losses = " / ".join(f"{10 - (step - 4.5) / 100:.2f}" for step in LOSS_AT)
    assert losses in row
    assert "4.5 / 12.0<br>5.5 / 15.0" in row  # 48 px: top-1 and top-5 of both seeds
    assert row.endswith("| 100 / 50 |")
    page.write_text("the marks are gone")
    with pytest.raises(TableError, match="has lost the marks"):
        table.write_page(block)


def test_the_page_in_the_docs_has_its_marks():
    text = (ROOT / table.PAGE).read_text()
    assert text.count(table.BEGIN) == text.count(table.END) == 1


def test_the_command_line(checkout):
    def run(*arguments):
        command = [sys.executable, "-m", "benchmarks.table", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    assert "example: python -m benchmarks.table" in run("--help").stdout
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from benchmarks import table; "
         "sys.argv = ['table']; sys.exit(table.main())"],
        capture_output=True, text=True, cwd=checkout,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: no emoji set in data/emoji and data/emoji-val; `make table` builds it\n"
