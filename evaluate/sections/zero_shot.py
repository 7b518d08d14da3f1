"""Zero-shot results: a table for each data set, a row a checkpoint, with bars, intervals and chance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from evaluate import charts
from evaluate.data.sets import EvalSet
from evaluate.decode import DECODERS
from evaluate.result import checked_hits
from evaluate.sections.values import (
    Subject,
    count,
    figure,
    figure_cell,
    interval,
    mapping,
    note,
    number,
    percent,
    table,
    text,
)

KIND, WRITER, FORMAT = "zero-shot results", "zero-shot", 1


@dataclass(frozen=True)
class Figures:
    """One set's figures, in percent."""

    top1: float
    top5: float
    mean_per_class: float
    n: int
    classes: int
    intervals: tuple[tuple[float, float] | None, ...]  # of top-1, top-5 and the mean per class
    merged_top1: float | None  # classes of one name counted as one
    per_group: dict[str, "Figures"]  # of each vendor, where the pictures come from several

    @property
    def chance(self) -> float:
        """Top-1 of a guess at random."""
        return 100.0 / self.classes


@dataclass(frozen=True)
class ZeroShot:
    """One result file."""

    path: Path
    subject: Subject
    kind: str
    dataset: str
    figures: dict[str, Figures]  # by set name
    sets: tuple[EvalSet, ...]  # their titles, in the data set's order
    pictures: str  # names the pictures: equal where two results are about the same ones
    marks: tuple[str, ...]  # what sets its figures apart from the official ones
    about: tuple[str, ...]  # sentences a reader has to know
    command: str
    parameters: dict[str, int]  # by tower, and "total"
    image_size: tuple[int, int]
    images_per_s: float | None
    content: Mapping[str, Any]


def is_one(content: Mapping[str, Any]) -> bool:
    """Whether it is a zero-shot result of any data set."""
    return {"model", "dataset", "templates", "results", "checkpoint"} <= content.keys()


def read(path: Path, content: Mapping[str, Any]) -> ZeroShot:
    """The result as a record."""
    results = {text(name): read_figures(row) for name, row in mapping(content["results"]).items()}
    if not results:
        raise ValueError("it has no figures")
    if "hits" in content:  # versions before did not keep them
        checked_hits(content)
    return ZeroShot(
        path=path,
        subject=Subject.of(path, content),
        kind=text(content["kind"]),
        dataset=text(content["dataset"]),
        figures=results,
        sets=tuple(read_sets(content, results)),
        pictures=str(content.get("lists") or content.get("manifests") or ""),
        marks=tuple(marks(content)),
        about=tuple(text(sentence) for sentence in content.get("about") or ()),
        command=text(content["command"]),
        parameters={name: count(value) for name, value in mapping(content.get("parameters", {})).items()},
        image_size=sides(content["image_size"]),
        images_per_s=speed(content),
        content=content,
    )


def read_sets(content: Mapping[str, Any], results: Mapping[str, Figures]) -> list[EvalSet]:
    """The titles of the result's sets."""
    described = mapping(content.get("sets") or {name: {"title": name, "about": ""} for name in results})
    if described.keys() != results.keys():
        raise ValueError(f"its sets are {list(described)}, its figures are of {list(results)}")
    return [EvalSet(name, text(row["title"]), about=text(row["about"])) for name, row in described.items()]


def read_figures(row: Mapping[str, Any], classes: int | None = None) -> Figures:
    """One set's row; a vendor's row is of its set's ``classes``."""
    if (own := classes or count(row["classes"])) < 1:
        raise ValueError("it has no class")
    groups = mapping(row.get("per_vendor") or row.get("per_group") or {})
    return Figures(
        top1=percent(row["top1"]),
        top5=percent(row["top5"]),
        mean_per_class=percent(row["mean_per_class"]),
        n=count(row["n"]),
        classes=own,
        intervals=tuple(interval(row.get(f"interval{of}")) for of in ("", "_top5", "_mean_per_class")),
        merged_top1=percent(row["merged_top1"]) if "merged_top1" in row else None,
        per_group={text(name): read_figures(part, own) for name, part in groups.items()},
    )


def sides(size: Any) -> tuple[int, int]:
    """Height and width in pixels, from both or one of them."""
    height, width = size if isinstance(size, list) else (size, size)
    return count(height), count(width)


def speed(content: Mapping[str, Any]) -> float | None:
    """Pictures encoded in a second, where it was measured."""
    found = content.get("images_per_s") or mapping(content.get("throughput") or {}).get("images_per_s")
    return None if found is None else number(found)


def marks(content: Mapping[str, Any]) -> list[str]:
    """What a reader must see beside the figures, a few words each."""
    said = []
    if content.get("partial"):
        said.append("partial")
    if content.get("limit"):
        said.append(f"--limit {content['limit']}")
    if content.get("per_class"):
        said.append(f"{content['per_class']} a class")
    if (name := mapping(content["templates"]).get("name")) not in ("full", "plain-name"):
        said.append(f"templates {name}")
    if (size := content.get("forced_image_size")) is not None:
        said.append(f"at {' × '.join(map(str, sides(size)))} px")
    if (decoder := content.get("decoder")) not in (None, DECODERS[False]):
        said.append(f"decoder {decoder}")
    bad = content.get("bad") or content.get("bad_images")
    if unread := len(bad) if isinstance(bad, list) else bad:
        said.append(f"{unread} unreadable")
    return said


def section(records: Sequence[ZeroShot], name_of: Callable[[Subject], tuple[str, str]]) -> str:
    """All data sets, each with a table. ``name_of`` gives a subject's label and its colour's CSS class."""
    by_dataset: dict[str, list[ZeroShot]] = {}
    for record in records:
        by_dataset.setdefault(record.dataset, []).append(record)
    most = max(row.top5 for record in records for row in record.figures.values())
    full = next(scale for scale in (10.0, 25.0, 50.0, 100.0) if most <= scale)
    parts = [
        note(
            "Percent right, by class names alone, over 95 % intervals. Per class: the mean over "
            f"classes. Bars: top-1 solid, top-5 pale; a full bar is {full:.0f} %."
        )
    ]
    for dataset, of_dataset in by_dataset.items():
        if len(by_dataset) > 1:
            parts.append(f"<h3>{escape(dataset)}</h3>")
        parts.append(dataset_table(of_dataset, name_of, full))
    return "".join(parts)


def dataset_table(records: Sequence[ZeroShot], name_of: Callable[[Subject], tuple[str, str]], full: float) -> str:
    """One data set: a block for each set and each list of pictures, for only equal pictures can be compared."""
    blocks: dict[tuple[str, str, int], list[ZeroShot]] = {}
    sets = {s.name: s for record in records for s in record.sets}
    for name in sets:
        for record in records:
            if name in record.figures:
                key = (name, record.pictures, record.figures[name].classes)
                blocks.setdefault(key, []).append(record)
    lists = list(dict.fromkeys(record.pictures for record in records))
    bodies = []
    for (name, pictures, _), of_block in blocks.items():
        rows = [line(record, record.figures[name], sets[name].title, name_of, full) for record in of_block]
        which = f", list {lists.index(pictures) + 1} of {len(lists)} (other pictures)" if len(lists) > 1 else ""
        bodies.append(block_head(sets[name], of_block[0].figures[name], which) + "".join(rows))
        bodies.append(chance_line(of_block[0].figures[name]))
    said = list(dict.fromkeys(sentence for record in records for sentence in record.about))
    folded = "".join(groups(record, sets, name_of) for record in records[:1])
    head = ("Checkpoint", "Top-1", "Top-5", "Per class")
    return f'<div class="wide">{table(head, bodies)}</div>{folded}{"".join(note(sentence) for sentence in said)}'


def block_head(eval_set: EvalSet, row: Figures, which: str) -> str:
    """A block's heading row."""
    about = f"{row.n:,} pictures, {row.classes:,} classes{which}"
    below = f"<p>{escape(eval_set.about)}</p>" if eval_set.about else ""
    return (
        f'<tr><th scope="rowgroup" colspan="4">{escape(eval_set.title)} <span>{escape(about)}</span>{below}</th></tr>'
    )


def line(record: ZeroShot, row: Figures, title: str, name_of: Callable[[Subject], tuple[str, str]], full: float) -> str:
    """One result's row: the checkpoint with its bar, and its figures."""
    label, css = name_of(record.subject)
    described = f"{label}, {title}: top-1 {figure(row.top1)} percent, top-5 {figure(row.top5)} percent"
    bar = charts.bar(row.top1, row.top5, full, css=css, description=described)
    merged = [] if row.merged_top1 is None else [f"top-1 with equal names as one: {figure(row.merged_top1)}"]
    facts = " · ".join([record.kind, record.subject.sha256[:8], *record.marks, *merged])
    return f'<tr><td class="run">{escape(label)} <small>{escape(facts)}</small>{bar}</td>{cells(row)}</tr>'


def cells(row: Figures) -> str:
    """Top-1, top-5 and mean per class as table cells."""
    values = (row.top1, row.top5, row.mean_per_class)
    return "".join(figure_cell(value, ends) for value, ends in zip(values, row.intervals, strict=True))


def chance_line(row: Figures) -> str:
    """What guessing at random gives."""
    five = min(100.0, 5 * row.chance)
    return (
        f'<tr class="chance"><td>chance</td><td class="number">{figure(row.chance)}</td>'
        f'<td class="number">{figure(five)}</td><td class="number">{figure(row.chance)}</td></tr>'
    )


def groups(record: ZeroShot, sets: Mapping[str, EvalSet], name_of: Callable[[Subject], tuple[str, str]]) -> str:
    """Rows a vendor, folded away, for the sets that have them."""
    folded = []
    for name, row in record.figures.items():
        if not row.per_group:
            continue
        rows = [
            f'<tr><td class="run">{escape(vendor)} <small>{part.n:,} pictures</small></td>{cells(part)}</tr>'
            for vendor, part in row.per_group.items()
        ]
        title = f"{name_of(record.subject)[0]}: {sets[name].title}, vendor by vendor"
        folded.append(
            f"<details><summary>{escape(title)}</summary>"
            f"{table(('Vendor', 'Top-1', 'Top-5', 'Per class'), rows)}</details>"
        )
    return "".join(folded)
