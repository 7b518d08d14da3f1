"""What the server did and what data_prep counted, side by side: every row of the metadata has one outcome, the same.

account = take_account(rows, log, output, pictures)
account.differences          # sentences, none where all agrees
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.laion_sample.causes import LEFT_OUT, OUTCOMES
from benchmarks.laion_sample.pictures import Pictures, difference
from benchmarks.laion_sample.rows import Row
from data_prep.laion.finished import SUCCESS
from data_prep.manifest import read_manifest
from data_prep.shards import decode_image, read_samples

SHOWN = 10  # differences of a kind
# Grey, 0 to 255. JPEG and resizing make 1 or 2 of it, a turned or another drawing 10 and more.
LIKE = 6.0
NEVER = "never asked for"


@dataclass(frozen=True)
class Account:
    """`causes`: for each cause its name, rows by metadata and server, rows counted, and as what they were counted.

    `requests` is the server's count by what it did; `differences` are sentences.
    """

    rows: int
    kept: int
    left_out: int
    lost: int
    causes: list[dict[str, Any]]
    requests: dict[str, int]
    differences: list[str]


def read_log(path: Path) -> list[tuple[int, str]]:
    """The server's log: row and what was done, in the order in which it was."""
    return [(place, done) for place, done in map(json.loads, path.read_text(encoding="utf-8").splitlines())]


def take_account(rows: Sequence[Row], log: Sequence[tuple[int, str]], output: Path, pictures: Pictures) -> Account:
    """Compare the server's log with everything that data_prep left in `output`."""
    last = dict(log)
    should = {row.place: _should(row, last) for row in rows}
    did = dict(_did(output))
    record = json.loads((output / "stats.json").read_text(encoding="utf-8"))
    plan, reasons = dict(record["plan"]["counts"]), dict(record["reasons"])
    plan.pop("rows_read")
    kept, left_out, lost = record["samples"], sum(plan.values()), sum(reasons.values()) - reasons.get(SUCCESS, 0)
    differences = list(_differences(rows, should, did))
    differences += _differing("the plan's counts", _counts(_rule(row) for row in rows if row.kind in LEFT_OUT), plan)
    came = _counts(did.values())
    differences += _differing("stats.json's reasons", came, reasons)
    differences += list(_wrong_samples(rows, should, output, pictures))
    if kept + left_out + lost != len(rows):
        differences.append(f"{kept} kept + {left_out} left out + {lost} lost are not {len(rows)} rows")
    return Account(
        rows=len(rows),
        kept=kept,
        left_out=left_out,
        lost=lost,
        causes=[*_rule_causes(rows, plan), *_answer_causes(rows, last, did)],
        requests=dict(sorted(_counts(done for _, done in log).items())),
        differences=differences,
    )


def _rule(row: Row) -> str:
    return LEFT_OUT[row.kind][1]


def _should(row: Row, last: Mapping[int, str]) -> str:
    """The outcome of a row by what it is and what the server did last."""
    if row.kind in LEFT_OUT:
        return f"left out, and asked for ({last[row.place]})" if row.place in last else NEVER
    return OUTCOMES.get(last.get(row.place, ""), NEVER)


def _did(output: Path) -> Iterator[tuple[int, str]]:
    """The outcome of each planned row by img2dataset's tables, later ones last."""
    from pyarrow import parquet

    generations = sorted((output / "parts").glob("*/*.parquet"), key=lambda path: ("-retry" in path.parent.name, path))
    for path in generations:
        for row in parquet.read_table(path, columns=["id", "status", "error_message"]).to_pylist():
            yield int(row["id"]), SUCCESS if row["status"] == SUCCESS else row["error_message"]


def _differences(rows: Sequence[Row], should: Mapping[int, str], did: Mapping[int, str]) -> Iterator[str]:
    """A sentence for each row whose outcomes differ, no more than ten."""
    wrong = [row for row in rows if should[row.place] != did.get(row.place, NEVER)]
    for row in wrong[:SHOWN]:
        yield f"row {row.place} ({row.kind}): {should[row.place]} by the server, {did.get(row.place, NEVER)} by us"
    if len(wrong) > SHOWN:
        yield f"and {len(wrong) - SHOWN} rows more"


def _differing(what: str, expected: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """A sentence for each name that two counts have unlike."""
    names = sorted(expected.keys() | found.keys())
    return [
        f"{what}: {name} {found.get(name, 0)}, not {expected.get(name, 0)}"
        for name in names
        if expected.get(name, 0) != found.get(name, 0)
    ]


def _wrong_samples(rows: Sequence[Row], should: Mapping[int, str], output: Path, pictures: Pictures) -> Iterator[str]:
    """What is wrong with the samples that training reads: each row that came once, its own caption, its own picture."""
    by_place = {row.place: row for row in rows}
    found: Counter[int] = Counter()
    for entry in read_manifest(output / "shards"):
        for sample in read_samples(output / "shards" / entry.shard):
            row = by_place[int(json.loads(sample["json"])["id"])]
            found[row.place] += 1
            if sample["txt"].decode() != row.caption:
                yield f"row {row.place} ({row.kind}): its caption in the shards is {sample['txt']!r}"
            apart = difference(decode_image(sample["jpg"]), pictures.image(row.place))
            if apart > LIKE:
                yield f"row {row.place} ({row.kind}): its picture in the shards is another one, {apart:.1f} apart"
    wanted = Counter(place for place, outcome in should.items() if outcome == SUCCESS)
    for place in sorted((wanted - found) | (found - wanted)):
        yield f"row {place}: {found[place]} times in the shards, not {wanted[place]}"


def _rule_causes(rows: Sequence[Row], plan: Mapping[str, int]) -> list[dict[str, Any]]:
    there = _counts(_rule(row) for row in rows if row.kind in LEFT_OUT)
    return [
        {"cause": f"metadata: {rule}", "rows": there.get(rule, 0), "counted": plan.get(rule, 0), "as": f"rule {rule}"}
        for rule in dict.fromkeys(rule for _, rule in LEFT_OUT.values())
    ]


def _answer_causes(rows: Sequence[Row], last: Mapping[int, str], did: Mapping[int, str]) -> list[dict[str, Any]]:
    """For each thing the server did last with a row, how many of these rows have the outcome that belongs to it."""
    asked = [row.place for row in rows if row.kind not in LEFT_OUT]
    sent = _counts(last.get(place, NEVER) for place in asked)
    counted = _counts(
        last[place] for place in asked if place in last and did.get(place) == OUTCOMES.get(last[place], NEVER)
    )
    return [
        {"cause": f"server: {done}", "rows": count, "counted": counted.get(done, 0), "as": OUTCOMES.get(done, NEVER)}
        for done, count in sorted(sent.items(), key=lambda item: (-item[1], item[0]))
    ]


def _counts(names: Any) -> dict[str, int]:
    return dict(Counter(names))


def as_text(account: Account) -> str:
    """The table for a person, and what it adds up to."""
    lines = [f"{'what was wrong, or not':<28} {'rows':>6} {'counted':>8}  counted as"]
    for cause in account.causes:
        mark = "" if cause["rows"] == cause["counted"] else "   <- differs"
        lines.append(f"{cause['cause']:<28} {cause['rows']:>6} {cause['counted']:>8}  {cause['as']}{mark}")
    total = account.kept + account.left_out + account.lost
    said = (
        f"{account.kept:,} kept + {account.left_out:,} left out + {account.lost:,} lost = {total:,} of {account.rows:,}"
    )
    requests = f"{sum(account.requests.values()):,} requests reached the server"
    return "\n".join([*lines, f"{said} rows; {requests}", *(f"DIFFERS: {one}" for one in account.differences)])
