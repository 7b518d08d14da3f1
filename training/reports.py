"""TensorBoard and wandb beside metrics.jsonl, as `--report-to` names them."""

import json
from pathlib import Path
from typing import Any

from data_prep import atomic
from training.settings import Settings, SettingsError


class Reports:
    """Sends numbers to the chosen trackers. Offline wandb is wandb's own WANDB_MODE=offline; a resumed run goes on
    under the id that RUN/wandb-id.json keeps.

    Raises:
        SettingsError: a tracker's package is not installed.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        chosen = settings.report_to.split(",")
        self.with_tensorboard = "tensorboard" in chosen
        self.tensorboard: Any = None
        self.wandb: Any = None
        try:
            if self.with_tensorboard:
                import torch.utils.tensorboard  # noqa: F401  (opened in start())
            if "wandb" in chosen:
                import wandb

                self.wandb = wandb
        except ImportError as error:
            raise SettingsError(
                f"--report-to {settings.report_to}: {error.name or error} is not installed; pip install '.[track]'"
            ) from error

    def start(self, resolved: dict[str, Any], step: int) -> None:
        """Begin at `step`, or take up there; later steps of TensorBoard's curves are dropped."""
        if self.with_tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step + 1)
        if self.wandb is None:
            return
        note = self.folder / "wandb-id.json"
        known = json.loads(note.read_text())["id"] if note.exists() else None
        run = self.wandb.init(
            project=self.settings.wandb_project_name,
            name=self.settings.name or self.folder.name,
            id=known,
            resume="allow" if known else None,
            dir=str(self.folder),
            config=resolved,
        )
        run.define_metric("*", step_metric="step")  # wandb's own step cannot go back, as a resumed run does
        atomic.write_text(note, json.dumps({"id": run.id}) + "\n")

    def add(self, row: dict[str, Any]) -> None:
        """Every number of a row under its own name, at the row's step."""
        numbers = {k: v for k, v in row.items() if isinstance(v, int | float) and k != "step"}
        if self.tensorboard is not None:
            for name, value in numbers.items():
                self.tensorboard.add_scalar(name, value, row["step"])
        if self.wandb is not None:
            self.wandb.log(numbers | {"step": row["step"]})

    def close(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()
        if self.wandb is not None:
            self.wandb.finish()
