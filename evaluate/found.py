"""What folders hold that a report can show: runs, and the JSON results of ``python -m evaluate``.

Looked at are the given folders and the folders directly in them; a result is known by its content, not by its name.
What is broken, or written by a later version, is left out with a sentence; other files are passed over.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from evaluate.errors import RefusedError
from evaluate.runs import METRICS, SETTINGS, TRAIN, Run, is_run, read_run
from evaluate.sections.registry import SECTIONS
from evaluate.sections.values import Subject

BROKEN = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)


@dataclass
class Found:
    """What is to be shown. ``results`` maps a section's module to its records, in the order they were found."""

    runs: list[Run] = field(default_factory=list)
    results: dict[ModuleType, list[Any]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def all_results(self) -> list[Any]:
        """The records of every section."""
        return [record for records in self.results.values() for record in records]


def collect(folders: Sequence[Path]) -> Found:
    """Read everything that the folders hold; each file once.

    Raises RefusedError: a folder is not there, or nothing usable is in any of them.
    """
    for folder in folders:
        if not folder.is_dir():
            raise RefusedError(
                f"{folder}: {'a file' if folder.exists() else 'no such folder'}. Give folders of results."
            )
    found = Found(results={module: [] for module, _ in SECTIONS})
    seen: set[Path] = set()
    for given in folders:
        before = len(found.runs) + len(found.all_results())
        for folder in (given, *sorted(path for path in given.iterdir() if path.is_dir())):
            if folder.resolve() not in seen:
                seen.add(folder.resolve())
                look_into(folder, found)
        if len(found.runs) + len(found.all_results()) == before:
            found.left_out.append(f"{given}: nothing to show in it.")
    if not found.runs and not found.all_results():
        raise RefusedError(nothing(folders, found))
    return found


def nothing(folders: Sequence[Path], found: Found) -> str:
    """What was looked for, and what is there instead."""
    writers = ", ".join(module.WRITER for module, _ in SECTIONS)
    names = sorted({path.name for folder in folders for path in folder.iterdir()})
    there = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "nothing"
    return (
        f"{', '.join(map(str, folders))}: nothing to show. Looked for, there and in the folders in it: runs "
        f"({SETTINGS} with {METRICS}) and JSON results of `python -m evaluate` {writers}. There is: {there}."
        + "".join(f" {sentence}" for sentence in found.left_out if "nothing to show" not in sentence)
    )


def look_into(folder: Path, found: Found) -> None:
    """Add what one folder holds, files in the order of their names."""
    if is_run(folder):
        try:
            found.runs.append(read_run(folder))
        except RefusedError as error:
            found.left_out.append(f"A run is left out: {error}")
    for path in sorted(folder.glob("*.json")):
        if path.name not in (SETTINGS, TRAIN) and path.is_file():
            look_at(path, found)


def look_at(path: Path, found: Found) -> None:
    """Add one JSON file, if it is a result."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        found.left_out.append(f"{path} is left out: it is not JSON ({error}).")
        return
    except OSError as error:
        found.left_out.append(f"{path} is left out: {error.strerror}.")
        return
    if not isinstance(content, dict):
        return
    module = next((module for module, _ in SECTIONS if module.is_one(content)), None)
    if module is None:
        return
    form = content.get("format", 1)
    if form not in range(1, module.FORMAT + 1):
        found.left_out.append(
            f"{path} is left out: its format is {form}, and this version knows up to {module.FORMAT}. "
            "Make the report with the version that wrote it."
        )
        return
    try:
        found.results[module].append(module.read(path, content))
    except BROKEN as error:
        found.left_out.append(
            f"{path} is left out: not as `evaluate {module.WRITER}` writes it ({type(error).__name__}: {error})."
        )


def subjects(found: Found) -> dict[Subject, tuple[str, str]]:
    """Every subject on the page with its label and its colour's CSS class, those of runs first.

    Results of one model and hash are about one checkpoint wherever their files lie, so they share both. Where models
    repeat, the label says the folder too, and the hash where even that repeats.
    """
    raw = list(dict.fromkeys([subject_of(run, found) for run in found.runs] + of_results(found)))
    of_runs = {str(run.path.resolve()) for run in found.runs}
    first: dict[tuple[str, str], Subject] = {}
    for subject in raw:
        first.setdefault((subject.model, subject.sha256), subject)
    one = {s: s if s.folder in of_runs or not s.sha256 else first[s.model, s.sha256] for s in raw}
    ordered = list(dict.fromkeys(one.values()))
    forms = [
        {s: s.model for s in ordered},
        {s: f"{s.model} ({Path(s.folder).name})" for s in ordered},
        {s: f"{s.model} ({Path(s.folder).name}, {s.sha256[:8] or 'no result'})" for s in ordered},
    ]
    shown = {}
    for number, subject in enumerate(ordered):
        unique = (form[subject] for form in forms if list(form.values()).count(form[subject]) == 1)
        shown[subject] = (next(unique, f"{subject.model} ({subject.folder})"), f"s{number % 8}")
    return {subject: shown[one[subject]] for subject in raw}


def of_results(found: Found) -> list[Subject]:
    """The subjects of all results that have one."""
    return [record.subject for record in found.all_results() if hasattr(record, "subject")]


def subject_of(run: Run, found: Found) -> Subject:
    """The subject that a run is: that of the first result of its model in its folder, if there is one."""
    folder = str(run.path.resolve())
    own = (s for s in of_results(found) if s.folder == folder and s.model == run.model)
    return next(own, Subject(folder, run.model, ""))
