"""``python -m evaluate report``: one HTML page from the runs and results that folders hold.

``found.py`` collects them, ``sections/`` shows the results and ``page.py`` what stands around them. With the emoji
set's folder the page has a gallery of examples: only for that is a model loaded, the first run's, and only if its
checkpoint and the data are still the ones its figures are of.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch

from data_prep.atomic import write_text
from evaluate import gallery, page, pictures
from evaluate.errors import RefusedError
from evaluate.examples import Examples, encode_examples
from evaluate.found import Found, collect, subject_of, subjects
from evaluate.result import check_writable, command_line
from evaluate.runs import Run
from evaluate.sections import zero_shot
from evaluate.sections.registry import SECTIONS
from evaluate.sections.values import Subject, note
from evaluate.sections.zero_shot import ZeroShot

SUMMARY = "result.json"  # beside the page: the first run's figures


def write_report(
    folders: Sequence[Path],
    output: Path,
    root: Path | None = None,
    *,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    argv: Sequence[str] = (),
) -> list[Path]:
    """Write the page, and beside it ``result.json`` where the first run has the emoji set's figures.

    Args:
        folders: what is to be shown; see ``found.collect``.
        output: the page's file.
        root: the emoji set's folder, for the gallery of the first run's examples.

    Returns:
        What was written.

    Raises:
        RefusedError: nothing to show, or a gallery is asked for that the first run cannot give.
    """
    found = collect(folders)
    check_writable(output)
    check_writable(output.with_name(SUMMARY))
    first, result = first_run(found)
    examples = None
    if root is not None:
        if first is None or result is None:
            raise RefusedError(
                f"--root: the gallery shows examples of the first run's figures on emoji, and {folders[0]} has no run "
                "with such a result. Run `python -m evaluate zero-shot --dataset emoji` on it, or leave --root out."
            )
        examples = encode_examples(first, result.content, root, batch_size=batch_size, device=device)
    write_text(output, page.fill(parts(found, first, result, examples, root, command_line(argv))))
    written = [output]
    if first is not None and result is not None and first.train:
        written.append(output.with_name(SUMMARY))
        summary = summarise(first, result, found)
        write_text(written[-1], json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return written


def first_run(found: Found) -> tuple[Run | None, ZeroShot | None]:
    """The first run, and its result on emoji if it has one."""
    if not found.runs:
        return None, None
    return found.runs[0], emoji_result(found.runs[0], found)


def emoji_result(run: Run, found: Found) -> ZeroShot | None:
    """A run's result on emoji."""
    own = subject_of(run, found)
    return next((r for r in found.results[zero_shot] if r.subject == own and page.is_emoji(r)), None)


def parts(
    found: Found, first: Run | None, result: ZeroShot | None, examples: Examples | None, root: Path | None, command: str
) -> dict[str, str]:
    """Every part of the page's template."""
    names = subjects(found)
    results: list[ZeroShot] = found.results[zero_shot]
    runs = [(run, *names[subject_of(run, found)]) for run in found.runs]
    models = list(dict.fromkeys(subject.model for subject in names))
    counts = {"runs": len(runs)} | {module.KIND: len(found.results[module]) for module, _ in SECTIONS}
    if first and result:
        heading = f"{first.model} on emoji it has never seen"
        others = [r for r in results if r is not result and page.is_emoji(r) and r.pictures == result.pictures]
        summary = page.summary(first, result, others)
    else:
        heading = models[0] if len(models) == 1 else f"{len(models)} models" if models else "Results"
        summary = page.overview(counts, models)
    bodies = [
        (head, module.section(found.results[module], names.__getitem__))
        for module, head in SECTIONS
        if found.results[module]
    ]
    said = [*budgets(runs), *found.left_out]
    bodies.insert(1 if results else 0, ("Training loss", page.loss(runs)))
    bodies += gallery_bodies(examples)
    bodies += [
        ("Facts", page.facts(fact_columns(found, names))),
        ("What to know beside it", "".join(note(sentence) for sentence in said)),
        ("How to make this page again", page.commands([*commands(found, runs, root), ("Write this page", command)])),
    ]
    return {
        "title": escape(heading),
        "kicker": escape("open_clip_linear · " + (f"run {first.path.resolve().name}" if first else "results")),
        "heading": escape(heading),
        "summary": summary,
        "tiles": page.tiles([r for r in results if names[r.subject] == names[results[0].subject]]) if results else "",
        "sections": page.sections(bodies),
        "footer": page.footer(results, examples.credits if examples else []),
    }


def gallery_bodies(examples: Examples | None) -> list[tuple[str, str]]:
    """The examples' two sections."""
    if examples is None:
        return []
    retrievals, hits = gallery.retrieve(examples)
    guesses, right = gallery.guess_names(examples)
    return [
        ("Pictures found by a caption", pictures.found(retrievals, hits, examples)),
        ("Names guessed for a picture", pictures.guesses(guesses, right, examples)),
    ]


def budgets(runs: page.Named) -> list[str]:
    """A sentence when the runs did not see the same number of pictures: their figures are then no fair comparison."""
    seen = [(label, run.train["samples_seen"]) for run, label, _ in runs if run.train]
    if len({count for _, count in seen}) < 2:
        return []
    each = ", ".join(f"{label} {count:,}" for label, count in seen)
    return [f"The runs saw different numbers of pictures ({each}), so this compares budgets as well as models."]


def fact_columns(found: Found, names: dict[Subject, tuple[str, str]]) -> list[tuple[str, dict[str, str]]]:
    """A column of facts for each checkpoint that has some."""
    columns: dict[str, dict[str, str]] = {label: {} for label, _ in names.values()}
    for result in found.results[zero_shot]:
        columns[names[result.subject][0]] |= page.result_facts(result)
    for run in found.runs:
        columns[names[subject_of(run, found)][0]] |= page.run_facts(run)
    return [(label, column) for label, column in columns.items() if column]


def commands(found: Found, runs: page.Named, root: Path | None) -> list[tuple[str, str]]:
    """The commands that made what the page shows, each with what it did."""
    lines = []
    if root is not None:
        # As data_prep recorded it; a set that came another way has no such record.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            lines.append(("Build the data set", str(json.loads((root / "stats.json").read_text())["command"])))
    lines += [(f"Train {label}", as_text(run.settings["command"])) for run, label, _ in runs]
    for module, _ in SECTIONS:
        for record in found.results[module]:
            lines.append((f"Write {record.path}", record.command))
    return lines


def as_text(command: Any) -> str:
    """A command as one line, whether it was stored as text or as a list of words."""
    return command if isinstance(command, str) else " ".join(map(str, command))


def summarise(run: Run, result: ZeroShot, found: Found) -> dict[str, Any]:
    """The content of result.json: the run's figures under fixed names, then those of the finished runs beside it."""

    def one(run: Run, result: ZeroShot) -> dict[str, Any]:
        return {
            "model": run.model,
            "train_minutes": run.train["train_minutes"],
            **result.content["results"],
            "kind": result.kind,
            "steps": run.train["steps"],
            "samples_seen": run.train["samples_seen"],
            "images_per_s": run.train["images_per_s"],
            "parameters": result.content.get("parameters"),
        }

    beside = {}
    for other in found.runs[1:]:
        its = emoji_result(other, found)
        if other.train and its and its.pictures == result.pictures:
            beside[os.fspath(other.path)] = one(other, its)
    return {
        **one(run, result),
        "checkpoint_sha256": result.subject.sha256,
        "manifests": result.content.get("manifests"),
        "versions": result.content.get("versions", {}),
        "beside": beside,
    }
