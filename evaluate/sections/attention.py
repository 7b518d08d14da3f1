"""Attention results: how many keys each layer looks at, a table for each checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from evaluate.sections.values import Subject, mapping, note, number, table, text

KIND, WRITER, FORMAT = "attention results", "attention", 1
QUERIES = ("class_token", "patches")


@dataclass(frozen=True)
class Layer:
    """One layer, means over heads and pictures."""

    name: str
    kind: str
    keys: tuple[float, ...]  # effective number, by QUERIES
    negative: tuple[float, ...]  # percent of |w|, by QUERIES


@dataclass(frozen=True)
class Attention:
    """One result file."""

    path: Path
    subject: Subject
    pictures: list[str]
    patches: int
    layers: list[Layer]
    command: str


def is_one(content: Mapping[str, Any]) -> bool:
    """Whether it is an attention result."""
    return {"grid", "pictures", "checkpoint"} <= content.keys()


def read(path: Path, content: Mapping[str, Any]) -> Attention:
    """The result as a record."""
    pictures = [mapping(picture) for picture in content["pictures"]]
    by_layer = zip(*(picture["layers"] for picture in pictures), strict=True)
    high, wide = (number(side) for side in content["grid"])
    return Attention(
        path,
        Subject.of(path, content),
        [Path(text(picture["file"])).name for picture in pictures],
        int(high * wide),
        [read_layer(of_pictures) for of_pictures in by_layer],
        text(content["command"]),
    )


def read_layer(of_pictures: Sequence[Mapping[str, Any]]) -> Layer:
    """One layer, which every picture has."""

    def mean(who: str, what: str) -> float:
        return fmean(number(of_head) for layer in of_pictures for of_head in layer[who][what])

    return Layer(
        str(of_pictures[0]["layer"]),
        text(of_pictures[0]["kind"]),
        tuple(mean(who, "effective_keys") for who in QUERIES),
        tuple(100 * mean(who, "negative") for who in QUERIES),
    )


def section(records: Sequence[Attention], name_of: Callable[[Subject], tuple[str, str]]) -> str:
    """Each checkpoint's table."""
    parts = [
        note(
            "Keys: the effective number, exp(entropy of the shares |w|/Σ|w|), as the class token and the patches see "
            "them. Negative: percent of Σ|w|. Means over heads and pictures; attention.html beside each result has the "
            "maps."
        )
    ]
    for record in records:
        rows = [
            f'<tr><td class="run">{escape(layer.name)} <small>{escape(layer.kind)}</small></td>'
            + "".join(
                f'<td class="number">{keys:,.1f}</td><td class="number">{negative:.1f}</td>'
                for keys, negative in zip(layer.keys, layer.negative, strict=True)
            )
            + "</tr>"
            for layer in record.layers
        ]
        shown = ", ".join(record.pictures[:5]) + (", …" if len(record.pictures) > 5 else "")
        parts.append(f"<h3>{escape(name_of(record.subject)[0])}</h3>")
        head = ("Layer", "Class token: keys", "negative", "Patches: keys", "negative")
        parts.append(f'<div class="wide">{table(head, rows)}</div>{note(f"{record.patches:,} patches. Of {shown}.")}')
    return "".join(parts)
