import json
import math
import threading

import pytest

from training.log import RunLog
from training.settings import Settings, SettingsError


def row(step, **more):
    numbers = {"loss": 2.5, "logit_scale": 14.0, "images_per_s": 3.0, "data_wait": 0.1, "lr": 1e-3, "samples_seen": 8}
    return {"step": step, **numbers, **more}


def opened(folder, step=0, **changes):
    log = RunLog(folder, Settings(**changes))
    log.start({"model": "m"}, "what runs", step, 6)
    return log


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_rows_that_a_resumed_run_computes_again_are_cut_off(tmp_path):
    log = opened(tmp_path)
    for step in range(1, 6):
        log.step(row(step), True)
    log.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')  # killed in the middle of a line
    log = opened(tmp_path, step=3)
    assert steps(tmp_path) == [1, 2, 3]
    log.step(row(4), True)
    log.rewind(2)
    log.step(row(3), True)
    log.close()
    assert steps(tmp_path) == [1, 2, 3]


def test_a_new_run_begins_with_no_rows_and_keeps_earlier_events(tmp_path):
    log = opened(tmp_path)
    log.step(row(1), True)
    log.event(1, "spike", "far above", keys=["a"])
    log.close()
    log = opened(tmp_path)
    log.close()
    assert steps(tmp_path) == []
    (event,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert event == {"step": 1, "event": "spike", "text": "far above", "keys": ["a"]}


def test_numbers_that_are_none_are_null(tmp_path):
    log = opened(tmp_path)
    log.step(row(1, loss=math.nan, grad_norm=math.inf), True)
    log.close()
    found = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert (found["loss"], found["grad_norm"]) == (None, None)


def test_lines_are_shown_when_asked_and_what_was_evaluated_is_said(tmp_path, capsys):
    log = opened(tmp_path)
    for step in range(1, 7):
        log.step(row(step, **({"val_loss": 1.25} if step == 4 else {})), step in (1, 4))
    log.close()
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert "step 1/6  loss 2.500  scale 14.0  3 images/s  data wait 10%  lr 1.00e-03  8 samples" in shown[0]
    assert shown[1].startswith("step 4/6")
    assert shown[2:] == ["step 4: val_loss 1.25"]
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_bad_samples_are_counted_by_shard_and_told_when_there_are_more(tmp_path, capsys):
    log = opened(tmp_path)
    bad = {"0.tar": {"no caption": 1}}
    log.bad_samples(3, {})
    log.bad_samples(4, bad)
    log.bad_samples(5, bad)
    bad["1.tar"] = {"no caption": 2, "not a readable picture": 1}
    log.bad_samples(6, bad)
    log.close()
    told = [line for line in capsys.readouterr().out.splitlines() if "passed over" in line]
    assert told == [
        "step 4: 1 samples were passed over so far: 1 x no caption",
        "step 6: 4 samples were passed over so far: 3 x no caption, 1 x not a readable picture",
    ]
    assert json.loads((tmp_path / "bad-samples.json").read_text()) == bad


@pytest.mark.slow
def test_wandb_offline_goes_on_under_its_id(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    ids = []
    for step in (1, 2):
        log = opened(tmp_path, step - 1, report_to="wandb", name="run")
        log.step(row(step), True)
        log.close()
        ids.append(json.loads((tmp_path / "wandb-id.json").read_text())["id"])
    assert ids[0] == ids[1]
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{ids[0]}"))) == 2


def test_a_tracker_that_is_not_installed_is_named_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(SettingsError, match=r"--report-to wandb: wandb is not installed; pip install"):
        RunLog(tmp_path, Settings(report_to="wandb"))


def test_damaged_metrics_do_not_keep_a_run_from_going_on(tmp_path):
    rows = [
        b'{"step": 1, "loss": 1.0}',
        b"\xff\xfe\x85",
        b'{"step": 2, "name": "a\xe2\x80\xa8b"}',
        b'{"step": 3',
        b'{"st',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(rows))
    opened(tmp_path, step=2).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == rows[0] + b"\n" + rows[2] + b"\n"


def test_a_long_wait_for_data_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("training.log.LONG_WAIT", 0.0)
    said = threading.Event()
    log = opened(tmp_path)
    monkeypatch.setattr(log, "say", lambda text: said.set())
    with log.waiting(0):
        assert said.wait(60)
    log.close()
    assert "still waiting" in (tmp_path / "events.jsonl").read_text()
