"""Probe results: a linear classifier and nearest neighbours on frozen features, a table for each data set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from evaluate.sections.values import Subject, count, figure_cell, interval, mapping, note, percent, table, text

KIND, WRITER, FORMAT = "probe results", "probe", 1


@dataclass(frozen=True)
class Row:
    """One classifier's figures, in percent."""

    name: str  # "linear", "k20"
    top1: float
    interval: tuple[float, float] | None
    top5: float | None
    mean_per_class: float


@dataclass(frozen=True)
class Probe:
    """One result file."""

    path: Path
    subject: Subject
    kind: str
    dataset: str
    lists: tuple[str, str]  # hashes of the training and the test pictures
    training: int  # pictures
    test: int
    rows: list[Row]
    limit: int | None
    command: str


def is_one(content: Mapping[str, Any]) -> bool:
    """Whether it is a probe result."""
    return {"train_list_sha256", "pictures", "results", "checkpoint"} <= content.keys()


def read(path: Path, content: Mapping[str, Any]) -> Probe:
    """The result as a record."""
    pictures = mapping(content["pictures"])
    return Probe(
        path=path,
        subject=Subject.of(path, content),
        kind=text(content["kind"]),
        dataset=text(content["dataset"]),
        lists=(text(content["train_list_sha256"]), text(content["list_sha256"])),
        training=count(pictures["training"]),
        test=count(pictures["test"]),
        rows=[read_row(name, mapping(row)) for name, row in mapping(content["results"]).items()],
        limit=None if content.get("limit") is None else count(content["limit"]),
        command=text(content["command"]),
    )


def read_row(name: str, row: Mapping[str, Any]) -> Row:
    """One classifier's figures."""
    top5 = percent(row["top5"]) if "top5" in row else None
    return Row(name, percent(row["top1"]), interval(row.get("interval")), top5, percent(row["mean_per_class"]))


def section(records: Sequence[Probe], name_of: Callable[[Subject], tuple[str, str]]) -> str:
    """A table with a block for each pair of training and test pictures."""
    blocks: dict[tuple[str, tuple[str, str]], list[Probe]] = {}
    for record in records:
        blocks.setdefault((record.dataset, record.lists), []).append(record)
    rows = []
    for (dataset, _), of_block in blocks.items():
        about = f"{of_block[0].training:,} training and {of_block[0].test:,} test pictures"
        rows.append(f'<tr><th scope="rowgroup" colspan="4">{escape(dataset)} <span>{about}</span></th></tr>')
        rows += [line(record, row, name_of) for record in of_block for row in record.rows]
    said = (
        "Frozen image embeddings under scikit-learn's logistic regression (linear) and k nearest neighbours by cosine."
    )
    return note(said) + f'<div class="wide">{table(("Checkpoint", "Top-1", "Top-5", "Per class"), rows)}</div>'


def line(record: Probe, row: Row, name_of: Callable[[Subject], tuple[str, str]]) -> str:
    """One classifier of one checkpoint."""
    limit = [] if record.limit is None else [f"--limit {record.limit}"]
    facts = " · ".join([row.name, record.kind, record.subject.sha256[:8], *limit])
    top5 = '<td class="number">–</td>' if row.top5 is None else figure_cell(row.top5, None)
    return (
        f'<tr><td class="run">{escape(name_of(record.subject)[0])} <small>{escape(facts)}</small></td>'
        f"{figure_cell(row.top1, row.interval)}{top5}{figure_cell(row.mean_per_class, None)}</tr>"
    )
