"""Metadata files of every kind, whole and damaged."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.errors import DataError
from data_prep.laion import metadata as module
from data_prep.laion.columns import parse_columns
from data_prep.laion.metadata import find_sources, read

AUTO = parse_columns("auto")
URLS = ["http://a.example/1", "http://a.example/2", "http://a.example/3"]


def columns_of(path: Path) -> dict[str, list[Any]]:
    """All rows of all files there; numbers as lists, text as str where it is UTF-8."""
    found: dict[str, list[Any]] = {}
    for source in find_sources([path], AUTO):
        for batch in read(source):
            for role, column in batch.rows.columns.items():
                values = column.tolist() if isinstance(column, np.ndarray) else column
                found.setdefault(role, []).extend(v.decode() if isinstance(v, bytes) else v for v in values)
    return found


def unreadable(path: Path) -> int:
    return sum(batch.unreadable for source in find_sources([path], AUTO) for batch in read(source))


def write(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary", "dictionary"])
def test_parquet_text_of_every_type(tmp_path: Path, kind: str) -> None:
    types = {"dictionary": pa.dictionary(pa.int32(), pa.string())}
    captions = pa.array(["one", None, "drei ü"], types.get(kind) or getattr(pa, kind)())
    path = write(tmp_path / "a.parquet", url=URLS, caption=captions)
    assert columns_of(path) == {"url": URLS, "caption": ["one", None, "drei ü"]}


def test_parquet_numbers_of_every_type(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        url=URLS,
        caption=["a", "b", "c"],
        similarity=pa.array([Decimal("0.25"), None, Decimal("0.5")]),
        width=pa.array([1, None, 2**40], pa.int64()),
        height=["10", "much", None],
        id=pa.array([2**60 + 1, 7, None], pa.int64()),
    )
    found = columns_of(path)
    np.testing.assert_equal(found["similarity"], [0.25, np.nan, 0.5])
    np.testing.assert_equal(found["width"], [1, np.nan, 2**40])
    np.testing.assert_equal(found["height"], [10, np.nan, np.nan])
    assert found["id"] == [str(2**60 + 1), "7", None]


def test_one_byte_that_is_no_text_does_not_cost_the_column(tmp_path: Path) -> None:
    offsets = pa.py_buffer(np.array([0, 3, 4, 6], dtype=np.int32))
    captions = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"one\xff\0z")])
    path = write(tmp_path / "a.parquet", url=URLS, caption=captions)
    [batch] = [batch for source in find_sources([path], AUTO) for batch in read(source)]
    assert batch.rows.columns["caption"] == [b"one", b"\xff", b"\0z"]


def test_columns_without_a_value_and_files_without_a_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", url=pa.nulls(2), caption=pa.nulls(2, pa.string()), similarity=pa.nulls(2))
    write(tmp_path / "b.parquet", url=pa.array([], pa.string()), caption=pa.nulls(0), similarity=pa.nulls(0))
    found = columns_of(tmp_path)
    assert found["url"] == found["caption"] == [None, None]
    assert np.isnan(found["similarity"]).all()


def test_row_groups_of_any_size_come_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"url": ["u"] * 10_000, "caption": ["c"] * 10_000}), path, row_group_size=10_000)
    [source] = find_sources([path], AUTO)
    sizes = [len(batch.rows) for batch in read(source)]
    assert sum(sizes) == 10_000
    assert max(sizes) <= 1024


@pytest.mark.parametrize(
    ("role", "values"),
    [
        ("caption", pa.array([["a"], ["b"], ["c"]])),
        ("url", pa.array([{"a": 1}] * 3)),
        ("caption", pa.array([1, 2, 3])),
        ("similarity", pa.array([[0.3]] * 3)),
        ("nsfw", pa.array([True] * 3)),
    ],
)
def test_columns_that_are_no_text_or_number(tmp_path: Path, role: str, values: pa.Array) -> None:
    path = write(tmp_path / "a.parquet", **{"url": URLS, "caption": ["a", "b", "c"], role: values})
    with pytest.raises(DataError, match=f"a.parquet: column '{role}' should hold"):
        columns_of(path)


@pytest.mark.parametrize("damage", ["cut", "head", "empty", "middle", "text"])
def test_damaged_parquet_is_named(tmp_path: Path, damage: str) -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(97, 122, 40))) for _ in range(3000)]
    path = write(tmp_path / "a.parquet", url=texts, caption=texts)
    data = path.read_bytes()
    middle = data[:2000] + bytes(byte ^ 0xFF for byte in data[2000:40_000]) + data[40_000:]
    damaged = {"cut": data[:-100], "head": data[:2000], "empty": b"", "middle": middle, "text": b"url,caption\n"}
    path.write_bytes(damaged[damage])
    with pytest.raises(DataError, match=r"a\.parquet is damaged or no parquet file"):
        columns_of(path)


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b"\xef\xbb\xbfURL,TEXT,similarity\r\n"
        b'http://a.example/1,"a ""big"", red\ncat",0.5\r\n'
        b"\r\n"
        b"too,few\r\n"
        b"http://a.example/2,one,two,many\r\n"
        b"http://a.example/3,caf\xe9 \0,high\r\n"
    )
    found = columns_of(path)
    assert found["url"] == ["http://a.example/1", "http://a.example/3"]
    assert found["caption"] == ['a "big", red\ncat', "caf\udce9 \0"]
    np.testing.assert_equal(found["similarity"], [0.5, np.nan])
    assert unreadable(path) == 2


def test_tsv_has_no_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('url\tcaption\nhttp://a.example/1\t"unclosed\nhttp://a.example/2\tb\n')
    assert columns_of(path) == {"url": ["http://a.example/1", "http://a.example/2"], "caption": ['"unclosed', "b"]}


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ("http://a.example/2,b\n" * 9, "unexpected end of data"),
        ("http://a.example/2,b", "unexpected end of data"),
        ("", "unexpected end of data"),
        ("http://a.example/2,b\n" * 60 + '",closed', "for 50 lines and more"),
        ("x" * 2000 + "\n", "field larger than field limit"),
        ('http://a.example/2,b\nhttp://a.example/3,"open, too\n', "',' expected after '\"'"),
    ],
)
def test_a_quote_left_open_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str, why: str
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1900)
    monkeypatch.setattr(module, "_MOST_LINES", 50)
    path = tmp_path / "a.csv"
    path.write_text('url,caption\nhttp://a.example/0,"two\nlines"\nhttp://a.example/1,"open\n' + rest)
    with pytest.raises(DataError, match=rf"a\.csv line 4: a quote in the row .* is not closed, .*\(.*{why}"):
        columns_of(path)


@pytest.mark.parametrize("field", ['"a \\"quoted\\" word"', '"a caption" '])
def test_other_writings_of_quotes_are_told(tmp_path: Path, field: str) -> None:
    """Escaped by a backslash, as some data bases write them, and with a blank behind the closing one."""
    path = tmp_path / "a.csv"
    path.write_text(f"url,caption\nhttp://a.example/1,{field}\n")
    with pytest.raises(DataError, match=r'line 2: .* a blank, or .* written \\" and not "".*; write quotes .* as ""'):
        columns_of(path)


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_field_that_is_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 2 << 20)
    path = tmp_path / f"a.{suffix}"
    path.write_text(
        "url,caption\nhttp://a.example/1,b\n".replace(",", "\t" if suffix == "tsv" else ",") + "x" * (3 << 20)
    )
    with pytest.raises(DataError, match=rf"a\.{suffix} line 3: a field of more than 2 MB"):
        columns_of(path)


def test_quotes_within_a_field_and_empty_lines_before_the_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\n\nurl,caption\n\nhttp://a.example/1,a "big" cat"\n')
    assert columns_of(path) == {"url": ["http://a.example/1"], "caption": ['a "big" cat"']}


def test_a_quote_that_ends_with_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('url,caption\nhttp://a.example/1,"one ""big"" cat"')
    assert columns_of(path) == {"url": ["http://a.example/1"], "caption": ['one "big" cat']}


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = {"url": "http://a.example/1", "text": "one", "similarity": 0.5, "width": "7"}
    lines = [json.dumps(good), "{broken", "[1, 2]", "", "null", "[" * 100_000, json.dumps({"url": 7, "width": True})]
    lines += [json.dumps({"url": "u", "text": ["a"], "similarity": 10**400}), '{"url": "u", "text": "\\ud800"}']
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).encode() + b'\n{"url": "u", "text": "\xff"}')
    found = columns_of(path)
    assert found["url"] == ["http://a.example/1", 7, "u", "u", "u"]
    assert found["caption"] == ["one", None, ["a"], "\ud800", "\udcff"]
    np.testing.assert_equal(found["width"], [7, np.nan, np.nan, np.nan, np.nan])
    np.testing.assert_equal(found["similarity"], [0.5, np.nan, np.nan, np.nan, np.nan])
    assert unreadable(path) == 4


def test_a_column_that_comes_late_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [{"url": "u", "caption": "c"}] * 2000 + [{"url": "v", "caption": "c", "nsfw": "NSFW"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert columns_of(path)["nsfw"] == [None] * 2000 + ["NSFW"]


def test_json_lines_of_no_table(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({f"http://a.example/{n}": "c"}) + "\n" for n in range(10_001)))
    with pytest.raises(DataError, match=r"a\.jsonl has more than 10000 names of columns"):
        find_sources([path], AUTO)


def test_a_line_without_an_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text("[" + "1," * 1000)
    with pytest.raises(DataError, match=r"a\.jsonl has a line of more than"):
        find_sources([path], AUTO)


def test_folders_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/3.jsonl", "c.jsonl", "_SUCCESS/x.jsonl", ".cache/y.jsonl", "note.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"url": name, "caption": "c"}))
    assert [source.name for source in find_sources([tmp_path], AUTO)] == ["a/3.jsonl", "b/2.jsonl", "c.jsonl"]
    assert columns_of(tmp_path)["url"] == ["a/3.jsonl", "b/2.jsonl", "c.jsonl"]


def test_linked_folders_and_large_suffixes_are_read(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "metadata", tmp_path / "elsewhere"
    for name in ("metadata/A.JSONL", "elsewhere/b.Jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps({"url": name, "caption": "c"}))
    (folder / "linked").symlink_to(elsewhere)
    (elsewhere / "round").symlink_to(folder)
    assert columns_of(folder)["url"] == ["metadata/A.JSONL", "elsewhere/b.Jsonl"]
    for name, text in (("C.CSV", "url,caption\nu,c\n"), ("D.TSV", 'url\tcaption\nu\t"c\n')):
        (tmp_path / name).write_text(text)
        assert columns_of(tmp_path / name)["url"] == ["u"]
    write(tmp_path / "E.PARQUET", url=URLS, caption=URLS)
    assert columns_of(tmp_path / "E.PARQUET")["url"] == URLS


@pytest.mark.parametrize("name", ["b.parquet", "folder"])
def test_a_link_to_nothing_is_told(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.parquet", url=URLS, caption=URLS)
    (tmp_path / name).symlink_to("nowhere")
    with pytest.raises(DataError, match=f"{name} is a link to nothing"):
        find_sources([tmp_path], AUTO)


def test_what_looks_like_metadata_and_is_not_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.csv.gz", "b.json", "c.parquet.part", "d.ndjson", "README.md", "picture.jpg", "_e.json"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"no file that ends in .* \(there is a\.csv\.gz, .* and 1 more\)"):
        find_sources([tmp_path], AUTO)
    write(tmp_path / "a.parquet", url=URLS, caption=URLS)
    assert len(find_sources([tmp_path], AUTO)) == 1
    said = capsys.readouterr().err
    assert said == "not read: a.csv.gz, b.json, c.parquet.part and 1 more; only .parquet, .csv, .tsv, .jsonl are\n"


def test_other_columns_in_another_file(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", url=URLS, caption=URLS, similarity=[0.1, 0.2, 0.3])
    write(tmp_path / "b.parquet", URL=URLS, TEXT=URLS)
    with pytest.raises(DataError, match=r"a\.parquet has a column for similarity and .*b\.parquet has none"):
        find_sources([tmp_path], AUTO)
    given = parse_columns("url=url,caption=caption")
    with pytest.raises(DataError, match=r"b\.parquet has no column 'url'"):
        find_sources([tmp_path], given)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "no column is known as the url"),
        ("a.jsonl", "", "has no JSON object"),
        ("a.jsonl", "hello\n", "has no JSON object"),
        ("a.txt", "url,caption\n", "should end in .parquet"),
    ],
)
def test_files_that_are_no_metadata(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words):
        find_sources([tmp_path / name], AUTO)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        find_sources([tmp_path / "x"], AUTO)
    with pytest.raises(DataError, match="has no file that ends in"):
        find_sources([tmp_path], AUTO)


def test_the_same_file_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", url=URLS, caption=URLS)
    with pytest.raises(DataError, match=r"would both be a\.parquet in the plan"):
        find_sources([path, tmp_path], AUTO)
