"""Which rows a retry asks for, from tables as img2dataset writes them."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from data_prep.errors import DataError
from data_prep.laion.again import asked_again
from data_prep.laion.columns import parse_columns
from data_prep.laion.layout import Part, later_files, read_parts
from data_prep.laion.plan import Shape, plan
from data_prep.laion.reasons import transient
from data_prep.laion.retry import plan_retry
from data_prep.laion.rules import Settings

PASSING = ["timeout", "HTTP 503", "connection", "DNS", "HTTP 429", "deadline"]
LASTING = ["opted out", "HTTP 404", "HTTP 451", "too large", "address refused", "not decodable", "redirects"]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A plan of 25 rows: a part of two shards of 10, and one of 5 rows."""
    urls = [f"https://example.org/{place}.jpg" for place in range(25)]
    captions = [f"picture {place}" for place in range(25)]
    parquet.write_table(pa.table({"url": urls, "caption": captions}), tmp_path / "metadata.parquet")
    metadata, columns = [tmp_path / "metadata.parquet"], parse_columns("auto")
    plan(metadata, tmp_path / "laion", columns, Settings(), Shape(shard_size=10, shards_per_part=2))
    return tmp_path / "laion"


def finish(part: Part, reasons: dict[str, str]) -> None:
    """The tables of a part where the rows of `reasons` failed, by address; in another order, as threads end."""
    part.folder.mkdir(parents=True, exist_ok=True)
    urls = parquet.read_table(part.plan)["url"].to_pylist()
    for shard in range(part.shards):
        rows = [
            {
                "url": urls[row],
                "key": f"{shard:05d}{place}",
                "status": "failed_to_download" if urls[row] in reasons else "success",
                "error_message": reasons.get(urls[row]),
            }
            for place, row in enumerate(part.rows_of(shard))
        ]
        parquet.write_table(pa.Table.from_pylist(rows[::-1]), part.file_of(shard, ".parquet"))


def address(place: int) -> str:
    return f"https://example.org/{place}.jpg"


def test_only_what_may_pass_is_asked_for_again(output: Path) -> None:
    failed = {address(place): reason for place, reason in enumerate(PASSING + LASTING, start=7)}
    for part in read_parts(output):
        finish(part, failed)
    assert plan_retry(output) == len(PASSING)
    (part,) = [part for part in read_parts(output) if part.generation]
    assert (part.name, part.rows, part.shards) == ("00000-retry1", len(PASSING), 1)
    assert part.folder == output / "parts" / "00000-retry1"
    assert part.collected(0) == output / "shards" / "00000r1-00000.tar"
    rows = parquet.read_table(part.plan).to_pylist()
    assert rows == [
        {"url": address(place), "caption": f"picture {place}", "reason": reason}
        for place, reason in enumerate(PASSING, start=7)
    ]
    assert part.reasons == dict.fromkeys(PASSING, 1)


def test_the_next_retry_has_what_failed_in_the_last(output: Path) -> None:
    failed = {address(place): "timeout" for place in (3, 12, 21, 24)}
    for part in read_parts(output):
        finish(part, failed)
    assert plan_retry(output) == 4
    with pytest.raises(DataError, match=r"00000-retry1 is not downloaded yet .*; run download first"):
        plan_retry(output)
    for part in read_parts(output):
        if part.generation == 1:
            finish(part, {address(12): "HTTP 500", address(21): "opted out"})
    assert plan_retry(output) == 1
    assert [part.name for part in read_parts(output)] == [
        "00000",
        "00001",
        "00000-retry1",
        "00001-retry1",
        "00000-retry2",
    ]
    finish(read_parts(output)[-1], {})
    before = read_parts(output)
    assert plan_retry(output) == 0
    assert read_parts(output) == before


def test_what_fails_where_a_shard_is_made_again_is_in_the_next_retry(output: Path) -> None:
    base, other = read_parts(output)
    finish(base, {address(3): "timeout", address(4): "HTTP 404"})
    finish(other, {})
    assert plan_retry(output) == 1
    finish(read_parts(output)[-1], {address(3): "connection"})
    assert plan_retry(output) == 1
    finish(read_parts(output)[-1], {address(3): "DNS"})
    # The first shard was damaged and made again: what the retries have fails as before, and others fail now.
    finish(base, {address(3): "timeout", address(4): "HTTP 404", address(5): "HTTP 503"})
    assert plan_retry(output) == 2
    last = read_parts(output)[-1]
    assert (last.name, last.reasons) == ("00000-retry3", {"DNS": 1, "HTTP 503": 1})
    assert [(row["url"], row["reason"]) for row in parquet.read_table(last.plan).to_pylist()] == [
        (address(5), "HTTP 503"),
        (address(3), "DNS"),
    ]
    later = later_files(read_parts(output))
    assert asked_again(later["00000"]) == {address(3): "timeout", address(5): "HTTP 503"}
    assert asked_again(later["00000-retry1"]) == {address(3): "connection", address(5): "HTTP 503"}
    assert [later[part] for part in ("00000-retry3", "00001")] == [[], []]
    finish(last, {})
    assert plan_retry(output) == 0


@pytest.mark.parametrize("text", ["[]", "{", '{"parts": [1]}', '{"parts": [{"number": "00000"}]}'])
def test_a_damaged_list_of_retries(output: Path, text: str) -> None:
    (output / "plan" / "retry.json").write_text(text)
    with pytest.raises(DataError, match=r"retry.json is damaged .*copy it again"):
        read_parts(output)


@pytest.mark.parametrize("reason", PASSING)
def test_passing(reason: str) -> None:
    assert transient(reason)


@pytest.mark.parametrize("reason", [*LASTING, "HTTP 5000", "HTTP 403"])
def test_lasting(reason: str) -> None:
    assert not transient(reason)
