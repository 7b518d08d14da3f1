"""What a run writes and shows while it goes: settings.json, metrics.jsonl, and a bar or plain lines."""

import json
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_prep import atomic
from training.settings import SettingsError


class RunLog:
    """The first process's record of a run in `folder`: a bar on a terminal, plain lines elsewhere.

    Raises:
        SettingsError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.metrics = open(folder / "metrics.jsonl", "w", encoding="utf-8")  # noqa: SIM115  (closed in close())
        except OSError as error:
            raise SettingsError(f"--output {folder} cannot be written: {error.strerror}") from error
        self.folder = folder
        self.steps = steps
        self.bar = tqdm(total=steps, unit="step", disable=not sys.stderr.isatty())

    def start(self, resolved: dict[str, Any], headline: str) -> None:
        """Write the resolved settings and say what will run."""
        atomic.write_text(self.folder / "settings.json", json.dumps(resolved, indent=2) + "\n")
        print(headline, flush=True)

    def step(self, row: dict[str, Any], write: bool) -> None:
        """Count a step; with `write`, add a line to metrics.jsonl and show it."""
        self.bar.update()
        if not write:
            return
        self.metrics.write(json.dumps(row) + "\n")
        self.metrics.flush()
        text = f"loss {row['loss']:.3f}  {row['images_per_s']:.0f} images/s"
        if self.bar.disable:
            print(f"step {row['step']}/{self.steps}  {text}  lr {row['lr']:.2e}", flush=True)
        else:
            self.bar.set_postfix_str(text)

    def close(self) -> None:
        self.bar.close()
        self.metrics.close()
