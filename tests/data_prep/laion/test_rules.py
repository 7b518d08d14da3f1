"""What each rule takes out, one by one; the funnel's counts."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DataError, UsageError
from data_prep.laion import language
from data_prep.laion.columns import parse_columns
from data_prep.laion.funnel import Funnel
from data_prep.laion.metadata import find_sources
from data_prep.laion.opt_out import OptOut
from data_prep.laion.rules import Settings

GOOD = {
    "url": "http://a.example/1.jpg",
    "caption": "a red cat",
    "similarity": 0.3,
    "width": 64,
    "height": 192,
    "nsfw": "UNLIKELY",
}


def through(tmp_path: Path, settings: Settings, rows: list[dict[str, Any]]) -> tuple[Funnel, list[dict[str, Any]]]:
    """The funnel after the rows, and the rows that passed."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = find_sources([tmp_path / "a.jsonl"], parse_columns("auto"))
    funnel = Funnel(settings, list(sources[0].columns))
    passed = []
    for batch in funnel.passing(sources, lambda position: None):
        passed += [dict(zip(batch.columns, row, strict=True)) for row in zip(*batch.columns.values(), strict=True)]
    return funnel, passed


@pytest.mark.parametrize(
    ("rule", "role", "value"),
    [
        ("similarity", "similarity", 0.2999),
        ("similarity", "similarity", None),
        ("similarity", "similarity", "high"),
        ("nsfw", "nsfw", "UNSURE"),
        ("nsfw", "nsfw", "unlikely"),
        ("nsfw", "nsfw", None),
        ("min_side", "width", 63),
        ("min_side", "height", None),
        ("min_side", "height", -200),
        ("aspect", "height", 193),
        ("url", "url", "ftp://a.example/1.jpg"),
        ("url", "url", 7),
        ("url", "url", None),
        ("host", "url", "http://127.0.0.1/1.jpg"),
        ("host", "url", "http://router.local/1.jpg"),
        ("caption", "caption", None),
        ("caption", "caption", ["a", "b"]),
        ("caption_length", "caption", "a b  \t \0\0 "),
        ("caption_length", "caption", "x" * 1001),
    ],
)
def test_one_row_out(tmp_path: Path, rule: str, role: str, value: Any) -> None:
    funnel, passed = through(tmp_path, Settings(), [{**GOOD, "url": "http://b.example/"}, {**GOOD, role: value}])
    assert [row["url"] for row in passed] == ["http://b.example/"]
    assert {name: count for name, count in funnel.counts.items() if count} == {"rows_read": 2, rule: 1}
    assert len(funnel.examples[rule]) == 1
    assert funnel.off == {}


@pytest.mark.parametrize("caption", ["house", "x" * 1000, "caf\u0301es", "a\0bc\x1bd", "家族の写真"])
def test_captions_that_pass(tmp_path: Path, caption: str) -> None:
    assert len(through(tmp_path, Settings(), [{**GOOD, "caption": caption}])[1]) == 1


def test_values_come_out_clean(tmp_path: Path) -> None:
    row = {**GOOD, "url": "HTTP://a.example:80/ü.jpg#x", "caption": " cafe\u0301\0 au\nlait "}
    [found] = through(tmp_path, Settings(), [row])[1]
    assert found["url"] == "http://a.example/%C3%BC.jpg"
    assert found["caption"] == "café au lait"


def test_the_first_row_of_a_url_stays(tmp_path: Path) -> None:
    urls = ["http://a.example/", "http://b.example/", "http://A.example:80#x", "http://b.example"]
    rows = [{**GOOD, "url": url, "caption": f"caption {place}"} for place, url in enumerate(urls)]
    funnel, passed = through(tmp_path, Settings(), [{**rows[0], "nsfw": "NSFW"}, *rows])
    assert [row["caption"] for row in passed] == ["caption 0", "caption 1"]
    assert funnel.counts["duplicate"] == 2


def test_rules_without_their_column_are_off(tmp_path: Path) -> None:
    funnel, passed = through(tmp_path, Settings(), [{"url": GOOD["url"], "caption": "a red cat", "width": 1}])
    assert len(passed) == 1
    assert funnel.off == {
        "similarity": "no column for similarity",
        "nsfw": "no column for nsfw",
        "min_side": "no column for height",
        "aspect": "no column for height",
    }
    assert "similarity" not in funnel.counts


def test_private_hosts_where_they_are_meant(tmp_path: Path) -> None:
    rows = [{**GOOD, "url": "http://127.0.0.1:8000/1.jpg"}, {**GOOD, "url": "file:///etc/passwd"}]
    funnel, passed = through(tmp_path, Settings(allow_private=True), rows)
    assert [row["url"] for row in passed] == ["http://127.0.0.1:8000/1.jpg"]
    assert "host" not in funnel.counts


def test_a_sample_is_by_url_and_larger_ones_hold_smaller_ones(tmp_path: Path) -> None:
    rows = [{**GOOD, "url": f"http://a.example/{place}"} for place in range(2000)]

    def sample(share: float, seed: int = 0) -> set[str]:
        return {row["url"] for row in through(tmp_path, Settings(sample=share, seed=seed), rows)[1]}

    tenth, half = sample(0.1), sample(0.5)
    assert 140 < len(tenth) < 260  # 200 within four and a half standard deviations
    assert 900 < len(half) < 1100
    assert tenth < half
    assert sample(0.1) == tenth
    assert sample(0.1, seed=-1) != tenth


def test_counts_add_up(tmp_path: Path) -> None:
    rows = [{**GOOD, "url": f"http://a.example/{place % 70}", "similarity": place % 3 / 4} for place in range(9000)]
    funnel, passed = through(tmp_path, Settings(max_rows=20), rows)
    counts = dict(funnel.counts)
    assert len(passed) == funnel.rows == 20
    assert counts.pop("rows_read") == sum(counts.values()) + 20
    assert funnel.counts["rows_read"] < 9000, "the rest is not read"
    assert all(len(examples) <= 10 for examples in funnel.examples.values())


def test_examples_are_short_and_harmless(tmp_path: Path) -> None:
    funnel, _ = through(tmp_path, Settings(), [{**GOOD, "url": "\x1b[31m" + "x" * 10_000}])
    [example] = funnel.examples["url"]
    assert example.startswith("\\x1b[31mxxx")
    assert len(example) < 300


def test_opt_out(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# who asked\n\nexample.org\nBücher.example\nhttps://a.example/me.jpg#x\nb.a.example\n")
    with open(path, "a") as file:
        file.write("http://dir.example/sub/\nhttps://site.example\nhttp://q.example/x?y=/\n")
    urls = {
        "http://example.org/1": False,
        "https://www.example.org:8080/1": False,
        "http://myexample.org/1": True,
        "http://xn--bcher-kva.example/": False,
        "http://a.example/me.jpg": False,
        "https://a.example/me.jpg?x": True,
        "http://c.b.a.example/": False,
        "http://a.example/": True,
        "https://dir.example/sub/a/1.jpg?x": False,
        "http://dir.example/sub": True,
        "http://dir.example/a.jpg?from=/sub/": True,
        "http://www.site.example/a/b.jpg": False,
        "http://q.example/x?y=/z": True,
        "https://q.example/x?y=/": False,
    }
    assert OptOut(path).allows(list(urls)).tolist() == list(urls.values())
    funnel, _ = through(tmp_path, Settings(opt_out=path), [{**GOOD, "url": url} for url in urls])
    assert (funnel.counts["opt_out"], funnel.rows) == (8, 6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.example\nftp://b.example/\n", "line 2: 'ftp://b.example/' is neither a URL nor a domain"),
        ("a.example/path\n", "line 1"),
        ("two words\n", "line 1"),
        ("# nothing\n", "holds no URL and no domain"),
    ],
)
def test_opt_out_list_that_is_none(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(DataError, match=words):
        OptOut(tmp_path / "list.txt")


def test_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = types.ModuleType("py3langid")
    package.rank = lambda text: [("de", 1.0), ("en", 0.5)]
    package.classify = lambda text: ("de" if "rote" in text else "en", 1.0)
    monkeypatch.setitem(sys.modules, "py3langid", package)
    monkeypatch.setattr(language, "version", lambda name: "9.9")
    rows = [{**GOOD, "caption": "die rote Katze"}, {**GOOD, "url": "http://b.example/"}]
    funnel, passed = through(tmp_path, Settings(language="en"), rows)
    assert [row["url"] for row in passed] == ["http://b.example/"]
    assert funnel.counts["language"] == 1
    assert Settings(language="en").identity()["language_package"] == "py3langid 9.9"
    with pytest.raises(UsageError, match="--language 'xx' is none of de, en"):
        Funnel(Settings(language="xx"), ["url", "caption"])


def test_language_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "PACKAGE", "no-such-package-of-ours")
    with pytest.raises(DataError, match="--language needs the package"):
        Funnel(Settings(language="en"), ["url", "caption"])


def test_language_with_the_package(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    captions = ["a photo of a small dog on the beach", "ein Foto von einem kleinen Hund am Strand"]
    rows = [{**GOOD, "url": f"http://{place}.example/", "caption": text} for place, text in enumerate(captions)]
    assert [row["caption"] for row in through(tmp_path, Settings(language="de"), rows)[1]] == captions[1:]


@pytest.mark.parametrize(
    "settings", [Settings(sample=0), Settings(sample=1.1), Settings(max_aspect=0.5), Settings(max_rows=0)]
)
def test_numbers_that_mean_nothing(settings: Settings) -> None:
    with pytest.raises(UsageError, match="--"):
        settings.check()
