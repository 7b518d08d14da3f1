"""Retrieval results: recall from picture to caption and back, a table for each set of pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from evaluate.sections.values import Subject, count, figure_cell, interval, mapping, note, number, percent, table, text

KIND, WRITER, FORMAT = "retrieval results", "retrieval", 1
RECALLS = tuple(f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10))


@dataclass(frozen=True)
class Retrieval:
    """One result file."""

    path: Path
    subject: Subject
    kind: str
    data: str
    pictures: str
    recalls: dict[str, float]  # percent, by RECALLS
    intervals: dict[str, tuple[float, float] | None]
    pairs: int
    loss: float | None
    bad: int
    command: str


def is_one(content: Mapping[str, Any]) -> bool:
    """Whether it is a retrieval result."""
    results = content.get("results")
    return isinstance(results, dict) and RECALLS[0] in results and "checkpoint" in content


def read(path: Path, content: Mapping[str, Any]) -> Retrieval:
    """The result as a record."""
    row = mapping(content["results"])
    ends = mapping(content.get("intervals", {}))
    return Retrieval(
        path=path,
        subject=Subject.of(path, content),
        kind=text(content["kind"]),
        data=text(content["data"]),
        pictures=str(content.get("list_sha256") or content.get("manifest_sha256") or ""),
        recalls={name: percent(row[name]) for name in RECALLS},
        intervals={name: interval(ends.get(name)) for name in RECALLS},
        pairs=count(int(number(row["pairs"]))),
        loss=number(row["loss"]) if "loss" in row else None,
        bad=len(content.get("bad_images", ())),
        command=text(content["command"]),
    )


def section(records: Sequence[Retrieval], name_of: Callable[[Subject], tuple[str, str]]) -> str:
    """A table with a block for each set of pairs."""
    sets: dict[tuple[str, int], list[Retrieval]] = {}
    for record in records:
        sets.setdefault((record.pictures or record.data, record.pairs), []).append(record)
    rows = []
    for (_, pairs), of_set in sets.items():
        rows.append(
            f'<tr><th scope="rowgroup" colspan="7">{escape(of_set[0].data)} <span>{pairs:,} pictures</span></th></tr>'
        )
        for record in of_set:
            facts = " · ".join(
                [record.kind, record.subject.sha256[:8], *([f"{record.bad} unreadable"] * bool(record.bad))]
            )
            cells = "".join(figure_cell(record.recalls[name], record.intervals[name]) for name in RECALLS)
            label = escape(name_of(record.subject)[0])
            rows.append(f'<tr><td class="run">{label} <small>{escape(facts)}</small></td>{cells}</tr>')
    head = ("Checkpoint", "I→T @1", "@5", "@10", "T→I @1", "@5", "@10")
    return (
        note("Recall in percent: from picture to caption (I→T), from caption to picture (T→I), with 95 % intervals.")
        + f'<div class="wide">{table(head, rows)}</div>'
    )
