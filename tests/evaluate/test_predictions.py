"""A row a picture and set, with the names that the indices stand for."""

import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from evaluate.data.sets import EvalSet
from evaluate.errors import RefusedError
from evaluate.predictions import check_predictions, write_predictions

from .measured import folder_of, measured_of


def test_rows_say_what_was_guessed(tmp_path: Path) -> None:
    folder = folder_of([0, 1, 2, 1], ["cat", "dog", "cow"], {"all": [0, 1, 2], "few": [1, 2]})
    measured = measured_of(folder, {0: [0, 1], 1: [2, 1], 2: [2, 0], 3: [1, 0]}, bad=(3,))
    measured.otherwise[1] = "rotation"
    file = tmp_path / "p.parquet"
    write_predictions(file, [EvalSet("all", "All"), EvalSet("few", "Few")], {"": measured}, {"list_sha256": "abc"})
    assert pyarrow.parquet.read_schema(file).metadata[b"list_sha256"] == b"abc"
    rows = pyarrow.parquet.read_table(file).to_pylist()
    assert [(row["set"], row["name"]) for row in rows] == [
        *(("all", f"folder/{n}.png") for n in range(4)),
        *(("few", f"folder/{n}.png") for n in (1, 2, 3)),
    ]
    assert rows[1] == {
        "set": "all",
        "folder": "",
        "name": "folder/1.png",
        "label": 1,
        "label_name": "dog",
        "readable": True,
        "read_otherwise": "rotation",
        "guesses": [2, 1],
        "guess_names": ["cow", "dog"],
        "scores": [30.0, 29.0],
    }
    assert (rows[3]["readable"], rows[3]["guesses"], rows[3]["scores"]) == (False, None, None)
    assert [p.name for p in tmp_path.iterdir()] == ["p.parquet"]


def test_refusals_name_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match=r"--predictions .* is a folder"):
        check_predictions(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RefusedError, match="pip install pyarrow"):
        check_predictions(tmp_path / "p.parquet")
