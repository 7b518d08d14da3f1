"""What is finished of a download, read from whatever `download.json` holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_prep.errors import DataError
from data_prep.laion.state import STATE, State

GOOD = {"00000": {"00001": {"bytes": 10_240, "rows": 3, "reasons": {"success": 2, "HTTP 404": 1}}}}
INFINITE = '{"image_size": 1e999, "parts": {}}'


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert State.read(tmp_path, 256).parts == {}
    State(tmp_path / STATE, 256, GOOD).write()
    assert State.read(tmp_path, 256).parts == GOOD
    with pytest.raises(DataError, match="made with --image-size 256, asked for was 512"):
        State.read(tmp_path, 512)


@pytest.mark.parametrize(
    "parts",
    [
        [1],
        {"00000": [1]},
        {"00000": {"00001": 5}},
        {"00000": {"00001": {"bytes": 1, "rows": 1}}},
        {"00000": {"00001": {"bytes": 1, "rows": 1, "reasons": [1]}}},
        {"00000": {"00001": {"bytes": 1, "rows": 1, "reasons": {"success": "1"}}}},
        {"00000": {"00001": {"bytes": None, "rows": 1, "reasons": {}}}},
    ],
)
def test_records_of_another_shape_are_none(tmp_path: Path, parts: Any) -> None:
    (tmp_path / STATE).write_text(json.dumps({"image_size": 256, "parts": parts}))
    assert not any(State.read(tmp_path, 256).parts.values())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 100_000, '{"image_size": null, "parts": {}}', "\udcff", INFINITE]
)
def test_what_is_no_record_at_all_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE).write_text(text, errors="surrogateescape")
    assert State.read(tmp_path, 512).parts == {}
