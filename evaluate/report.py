"""``python -m evaluate report``: one HTML page and ``result.json`` from the files of a finished run.

The figures are those of RUN/zero-shot.json; the model is loaded again only for the examples, and only if the checkpoint
and the data are still the ones those figures are of.
"""

import json
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch

from data_prep.atomic import write_text
from evaluate import gallery, page, pictures
from evaluate.data.emoji import Folder, read_folder
from evaluate.data.sets import Dataset, get_dataset
from evaluate.errors import RefusedError
from evaluate.models import load_model
from evaluate.result import check_writable, command_line, notes
from evaluate.runs import Run, read_run
from evaluate.zero_shot import Encoded, encode_folder
from open_clip_linear import add_model_configs

EXAMPLES_FROM = "heldout-vendor"


def write_report(
    path: Path,
    root: Path,
    beside: Sequence[Path],
    *,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    argv: Sequence[str] = (),
) -> list[Path]:
    """Write ``path``/report.html and ``path``/result.json; returns both paths.

    Raises RefusedError when a file of the run is missing or does not belong to the others. A run of ``beside`` that
    cannot be compared is left out, and the page says so.
    """
    dataset = get_dataset("emoji")
    sets = tuple(s.name for s in dataset.sets)
    run = read_run(path, sets)
    check_writable(path / "report.html")
    folder = read_folder(root, EXAMPLES_FROM)
    refuse_other_data(run, folder)
    others, left_out = read_beside(run, beside, sets)
    encoded, logit_scale = encode_examples(run, dataset, folder, batch_size, device)
    runs = [run, *others]
    html = page.fill(parts(runs, dataset, encoded, logit_scale, left_out, command_line(argv)))
    write_text(path / "report.html", html)
    write_text(path / "result.json", json.dumps(summarise(run, others, sets), indent=2, ensure_ascii=False) + "\n")
    return [path / "report.html", path / "result.json"]


def refuse_other_data(run: Run, folder: Folder) -> None:
    """Raise RefusedError unless the pictures at hand are those the run's figures are of."""
    if run.zero_shot["manifests"].get(folder.path.name) != folder.manifest_sha256:
        raise RefusedError(
            f"{folder.path} is not the data that {run.path}/zero-shot.json is of (the manifests differ). "
            "Give that data as --root, or evaluate the run again on this."
        )


def read_beside(run: Run, beside: Sequence[Path], sets: tuple[str, ...]) -> tuple[list[Run], list[str]]:
    """The runs that can stand beside ``run``, and a sentence for each that cannot."""
    others, left_out = [], []
    for path in beside:
        try:
            other = read_run(path, sets)
        except RefusedError as error:
            left_out.append(f"{path.name} is left out: {error}")
            continue
        if other.zero_shot["manifests"] != run.zero_shot["manifests"]:
            left_out.append(f"{path.name} is left out: it was evaluated on other data.")
        else:
            others.append(other)
    return others, left_out


def encode_examples(
    run: Run, dataset: Dataset, folder: Folder, batch_size: int, device: torch.device | str
) -> tuple[Encoded, float]:
    """The pictures and names of ``folder`` through the run's model, and its logit scale after exp."""
    size = run.zero_shot.get("forced_image_size")
    if own := run.settings.get("model_configs"):
        try:
            add_model_configs(Path(own))
        except ValueError as error:
            raise RefusedError(f"{run.path} was trained with --model-configs {own}: {error}.") from error
    loaded = load_model(run.model, run.checkpoint, device=device, image_size=size)
    if loaded.sha256 != run.zero_shot["checkpoint"]["sha256"]:
        raise RefusedError(
            f"{run.checkpoint} is not the checkpoint that {run.path}/zero-shot.json is of (its sha256 differs). "
            f"Evaluate it again: {run.zero_shot['command']}"
        )
    encoded = encode_folder(
        loaded.model,
        loaded.tokenizer,
        loaded.preprocess,
        folder,
        dataset.templates,
        batch_size=batch_size,
        device=device,
    )
    return encoded, float(loaded.model.logit_scale.detach().exp())  # type: ignore[operator]


def run_labels(runs: Sequence[Run]) -> list[str]:
    """What each run is called on the page: its model, with the folder's name where models repeat."""
    models = [run.model for run in runs]
    return [run.model if models.count(run.model) == 1 else f"{run.model} ({run.name})" for run in runs]


def parts(
    runs: Sequence[Run], dataset: Dataset, encoded: Encoded, logit_scale: float, left_out: Sequence[str], command: str
) -> dict[str, str]:
    """Every part of the page's template."""
    run, labels = runs[0], run_labels(runs)
    retrievals, found = gallery.retrieve(encoded)
    guesses, right = gallery.guess_names(encoded, logit_scale)
    credits = sorted({s.credit for s in encoded.samples})
    return {
        "title": escape(f"{run.model}: zero-shot emoji"),
        "kicker": escape(f"open_clip_linear · run {run.name}"),
        "heading": escape(f"{run.model} on emoji it has never seen"),
        "summary": page.summary(run, runs[1:]),
        "tiles": page.tiles(run, dataset),
        "accuracy": page.accuracy(runs, labels, dataset, [*notes(run.zero_shot), *budgets(runs, labels), *left_out]),
        "loss": page.loss(runs, labels),
        "found": pictures.found(retrievals, found, encoded),
        "guesses": pictures.guesses(guesses, right, encoded),
        "facts": page.facts(runs, labels),
        "commands": page.commands([*build_command(encoded.folder.path.parent), *commands(runs, labels, command)]),
        "footer": page.footer(run, credits),
    }


def budgets(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """A sentence when the runs did not see the same number of pictures: their figures are then no fair comparison."""
    seen = [run.train["samples_seen"] for run in runs]
    if len(set(seen)) == 1:
        return []
    each = ", ".join(f"{label} {count:,}" for label, count in zip(labels, seen, strict=True))
    return [f"The runs saw different numbers of pictures ({each}), so this compares budgets as well as models."]


def build_command(root: Path) -> list[tuple[str, str]]:
    """How the set was built, as `data_prep` recorded it in stats.json; nothing for a set that came another way."""
    try:
        return [("Build the data set", str(json.loads((root / "stats.json").read_text(encoding="utf-8"))["command"]))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def commands(runs: Sequence[Run], labels: Sequence[str], command: str) -> list[tuple[str, str]]:
    """The commands that made the page, in order, each with what it did."""
    lines = []
    for run, label in zip(runs, labels, strict=True):
        lines.append((f"Train {label}", as_text(run.settings["command"])))
        lines.append((f"Evaluate {label}", as_text(run.zero_shot["command"])))
    return [*lines, ("Write this page", command)]


def as_text(command: Any) -> str:
    """A command as one line, whether it was stored as text or as a list of words."""
    return command if isinstance(command, str) else " ".join(map(str, command))


def summarise(run: Run, others: Sequence[Run], sets: tuple[str, ...]) -> dict[str, Any]:
    """The content of result.json: the run's figures under fixed names, then those of the runs beside it."""

    def one(run: Run) -> dict[str, Any]:
        return {
            "model": run.model,
            "train_minutes": run.train["train_minutes"],
            **{name: run.zero_shot["results"][name] for name in sets},
            "kind": run.zero_shot["kind"],
            "steps": run.train["steps"],
            "samples_seen": run.train["samples_seen"],
            "images_per_s": run.train["images_per_s"],
            "parameters": run.zero_shot["parameters"],
        }

    return {
        **one(run),
        "checkpoint_sha256": run.zero_shot["checkpoint"]["sha256"],
        "manifests": run.zero_shot["manifests"],
        "versions": run.zero_shot.get("versions", {}),
        "beside": {os.fspath(other.path): one(other) for other in others},
    }
