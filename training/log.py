"""What a run writes and shows while it goes: settings.json, metrics.jsonl, events.jsonl, a bar or plain lines, reports.

metrics.jsonl has one object a step, each step once: rows that a resumed run computes again are cut off first.
events.jsonl is only ever added to: starts, checkpoints that were passed over, skipped steps, spikes, rollbacks, ends.
bad-samples.json counts unusable samples by shard and reason, brought up to date with every checkpoint.
"""

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any

from tqdm import tqdm

from data_prep import atomic
from training.reports import Reports
from training.settings import Settings, SettingsError

LONG_WAIT = 60.0  # seconds for a step's data, after which it is said
MEASURES = ("val_", "imagenet_")  # what an evaluation inside the run is called in a row


class RunLog:
    """The first process's record of a run in `folder`.

    Raises:
        SettingsError: the folder cannot be made or written, or a report's package is missing.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.bad = 0  # unusable samples that were told of
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.events = open(folder / "events.jsonl", "a", encoding="utf-8")  # noqa: SIM115  (closed in close())
        except OSError as error:
            raise SettingsError(f"--output {folder} cannot be written: {error.strerror}") from error
        self.reports = Reports(folder, settings)

    def start(self, resolved: dict[str, Any], headline: str, step: int, steps: int) -> None:
        """Write the resolved settings, cut the metrics to those up to `step`, and say what will run."""
        atomic.write_text(self.folder / "settings.json", json.dumps(resolved, indent=2) + "\n")
        self.reports.start(resolved, step)
        self.steps = steps
        self.bar = tqdm(total=steps, initial=step, unit="step", disable=not sys.stderr.isatty())
        self.metrics = _metrics_up_to(self.folder / "metrics.jsonl", step)
        self.say(headline)

    def say(self, text: str) -> None:
        """A line for whoever watches, above the bar where there is one."""
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()

    def event(self, step: int, event: str, text: str, **details: Any) -> None:
        """Something that happened, said and kept in events.jsonl."""
        self.say(f"step {step}: {text}")
        self.events.write(json.dumps({"step": step, "event": event, "text": text} | details) + "\n")
        self.events.flush()

    def step(self, row: dict[str, Any], shown: bool) -> None:
        """Add a step's row to metrics.jsonl; with `shown` also to the trackers, and say it."""
        self.metrics.write(json.dumps(_without_nan(row)) + "\n")
        self.metrics.flush()
        self.bar.update()
        if not shown:
            return
        self.reports.add(row)
        text = (
            f"loss {row['loss']:.3f}  scale {row['logit_scale']:.1f}  {row['images_per_s']:.0f} images/s  "
            f"data wait {row['data_wait']:.0%}"
        )
        if self.bar.disable:
            self.say(f"step {row['step']}/{self.steps}  {text}  lr {row['lr']:.2e}  {row['samples_seen']:,} samples")
        else:
            self.bar.set_postfix_str(f"{text}  {row['samples_seen']:,} samples")
        measured = [f"{name} {value:.4g}" for name, value in row.items() if name.startswith(MEASURES)]
        if measured:
            self.say(f"step {row['step']}: " + "  ".join(measured))

    @contextmanager
    def waiting(self, step: int) -> Iterator[None]:
        """Around the wait for a step's data: says so when it is long, for a stall looks like a slow step."""
        text = f"no data for the next step after {LONG_WAIT:.0f} seconds; still waiting"
        timer = Timer(LONG_WAIT, self.event, (step, "waiting", text))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def bad_samples(self, step: int, bad: dict[str, dict[str, int]]) -> None:
        """Keep the counts of unusable samples, by shard and reason, in bad-samples.json; say it when there are more."""
        reasons: Counter[str] = Counter()
        for counts in bad.values():
            reasons.update(counts)
        if reasons.total() <= self.bad:
            return
        self.bad = reasons.total()
        atomic.write_text(self.folder / "bad-samples.json", json.dumps(bad, indent=2) + "\n")
        text = ", ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
        self.event(step, "bad samples", f"{self.bad} samples were passed over so far: {text}")

    def sync(self) -> None:
        """Bring the metrics to the disk, before a checkpoint counts on them."""
        os.fsync(self.metrics.fileno())

    def rewind(self, step: int) -> None:
        """Cut the metrics to those up to `step`, after a rollback."""
        self.metrics.close()
        self.metrics = _metrics_up_to(self.folder / "metrics.jsonl", step)
        self.bar.initial = self.bar.n = step
        self.bar.refresh()

    def close(self) -> None:
        """Bring everything to the disk."""
        self.bar.close()
        for file in (self.metrics, self.events):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        self.reports.close()


def _metrics_up_to(path: Path, step: int) -> Any:
    """metrics.jsonl open for more rows, holding those of steps 1 to `step` alone; a cut last line is dropped."""
    kept = []
    if step and path.exists():
        *lines, _ = path.read_bytes().split(b"\n")  # what follows the last end of a line was cut
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):  # a line that a crash damaged
                if json.loads(line)["step"] <= step:
                    kept.append(line.decode() + "\n")
    atomic.write_text(path, "".join(kept))
    return open(path, "a", encoding="utf-8")


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: null stands for them."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
