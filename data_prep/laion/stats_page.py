"""The page of `stats`: tables, histograms as inline SVG, and pairs to look at; it fetches nothing and runs no script.

Captions, hosts, reasons and names come from strangers: every text is escaped, and shown without control characters.
"""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from data_prep.laion.findings import printable
from data_prep.laion.finished import SUCCESS
from data_prep.laion.histogram import MEASURES
from data_prep.laion.sheet import Pair
from data_prep.words import many

_TEMPLATE = Path(__file__).with_name("stats_template.html")
_WIDTH, _HEIGHT, _FLOOR = 480, 190, 160  # of a histogram, and where its bars stand


def page(record: Mapping[str, Any], pairs: Sequence[Pair], name: str) -> str:
    """The whole page. `record` is the content of stats.json, `name` the data set's."""
    bodies = [
        ("What is not known", _gaps(record["not_known"])),
        ("What came of the rows", _reasons(record)),
        ("What the rules took out of the metadata", _rules(record["plan"])),
        ("The pictures that came", _histograms(record["histograms"])),
        ("The most frequent hosts", _hosts(record)),
        ("Samples drawn at random", _sheet(pairs, record)),
    ]
    sections = "\n".join(f"<section>\n<h2>{head}</h2>\n{body}\n</section>" for head, body in bodies if body)
    parts = {"title": _shown(f"The data set {name}"), "lead": _lead(record), "sections": sections}
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def _lead(record: Mapping[str, Any]) -> str:
    came = record["reasons"].get(SUCCESS, 0)
    said = f"{many(came, 'picture')} came of {many(record['rows'], 'row')} ({_percent(came, record['rows'])})."
    if record["shards"]:
        size = f"{many(record['samples'], 'sample')}, {record['bytes']:,} bytes"
        said += f" In {many(record['shards'], 'verified shard')}: {size}."
    return said


def _gaps(sentences: Sequence[str]) -> str:
    return "\n".join(f'<p class="note">{_shown(sentence)}</p>' for sentence in sentences)


def _sheet(pairs: Sequence[Pair], record: Mapping[str, Any]) -> str:
    if not pairs:
        return ""
    note = f"{len(pairs)} of {record['samples']:,}, each as likely as any other (seed {record['pairs']['seed']})."
    figures = "\n".join(_figure(pair) for pair in pairs)
    return f'<p class="note">{note}</p>\n<div class="sheet">\n{figures}\n</div>'


def _figure(pair: Pair) -> str:
    picture = '<div class="none">cannot be decoded</div>'
    if pair.jpeg is not None:
        picture = f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(pair.jpeg).decode()}">'
    where = f"<small>{_shown(pair.shard)} {_shown(pair.key)}</small>"
    return f"<figure>{picture}<figcaption>{_shown(pair.caption) or '(no caption)'}{where}</figcaption></figure>"


def _reasons(record: Mapping[str, Any]) -> str:
    rows = [(reason, [count], count) for reason, count in record["reasons"].items()]
    return _bound(record["reasons_low_by_at_most"]) + _table(["", "rows"], rows, record["rows"]) if rows else ""


def _rules(plan: Mapping[str, Any] | None) -> str:
    if plan is None:
        return ""
    counts = dict(plan["counts"])
    read = counts.pop("rows_read")
    rows = [(name, [count], count) for name, count in [*counts.items(), ("taken", plan["rows"])] if count]
    off = "".join(f'<p class="note">{_shown(rule)} is off: {_shown(why)}</p>' for rule, why in plan["off"].items())
    return f'<p class="note">{many(read, "row")} read.</p>{off}{_table(["", "rows"], rows, read)}'


def _hosts(record: Mapping[str, Any]) -> str:
    rows = [(each["host"], [each["rows"], each[SUCCESS]], each[SUCCESS] / each["rows"]) for each in record["hosts"]]
    return _bound(record["hosts_low_by_at_most"]) + _table(["", "rows", "came"], rows, 1) if rows else ""


def _bound(low: int) -> str:
    """What is said where there were too many names to count all of them (frequent.py)."""
    return f'<p class="note">Each count may be low by at most {low:,}.</p>' if low else ""


def _table(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[int], float]], whole: float) -> str:
    """Rows of a text, counts, and a value that a bar and a percentage show as a share of `whole`."""
    head = "".join(f'<th class="number">{text}</th>' if text else "<th></th>" for text in heads)
    lines = [f'<table>\n<tr>{head}<th class="number">share</th><th class="share"></th></tr>']
    for text, counts, value in rows:
        numbers = "".join(f'<td class="number">{count:,}</td>' for count in counts)
        share = f'<td class="number">{_percent(value, whole)}</td><td class="share">{_bar(value, whole)}</td>'
        lines.append(f"<tr><td>{_shown(text)}</td>{numbers}{share}</tr>")
    return "\n".join([*lines, "</table>"])


def _bar(value: float, whole: float) -> str:
    filled = 100 * value / whole if whole else 0
    return (
        '<svg width="100%" height="8" aria-hidden="true"><rect class="track" width="100%" height="8" rx="2"/>'
        f'<rect width="{filled:.2f}%" height="8" rx="2"/></svg>'
    )


def _histograms(records: Mapping[str, Mapping[str, Any]]) -> str:
    known = [(escape(MEASURES[name].title), found) for name, found in records.items() if found["mean"] is not None]
    figures = "\n".join(
        f"<div>\n<h3>{title}</h3>\n{_histogram(found, title)}\n{_note(found)}</div>" for title, found in known
    )
    return f'<div class="histograms">\n{figures}\n</div>' if known else ""


def _histogram(record: Mapping[str, Any], title: str) -> str:
    """One `<svg>`: a bar a bin, as wide as any other, with some of the edges below."""
    counts, edges = record["counts"], record["edges"]
    step, most = _WIDTH / (len(counts) + 1), max([*counts, 1])
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">']
    for place, count in enumerate(counts):
        height = (_FLOOR - 10) * count / most
        parts.append(
            f'<rect x="{step * (place + 0.5) + 1:.1f}" y="{_FLOOR - height:.1f}" width="{step - 2:.1f}" '
            f'height="{height:.1f}"><title>{edges[place]:.4g} to {edges[place + 1]:.4g}: {count:,}</title></rect>'
        )
    parts.append(f'<line x1="0" x2="{_WIDTH}" y1="{_FLOOR}" y2="{_FLOOR}"/>')
    for place in range(0, len(edges), len(counts) // 4):
        x = step * (place + 0.5)
        parts.append(f'<text x="{x:.1f}" y="{_FLOOR + 18}" text-anchor="middle">{edges[place]:.4g}</text>')
    return "".join([*parts, "</svg>"])


def _note(record: Mapping[str, Any]) -> str:
    said = [f"mean {record['mean']:.4g}, from {record['least']:.4g} to {record['most']:.4g}"]
    outside = (("below", "below the first bin"), ("above", "above the last"), ("unknown", "not known"))
    said += [f"{record[name]:,} {words}" for name, words in outside if record[name]]
    return f'<p class="note">{"; ".join(said)}</p>'


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}&nbsp;%" if whole else "none"


def _shown(text: str) -> str:
    """Anybody's text as it may stand on a page."""
    return escape(printable(text))
