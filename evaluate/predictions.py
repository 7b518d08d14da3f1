"""A row a picture as parquet: what the model said of it, for whoever wants to look at single predictions.

Columns: `set`, `folder`, `name` (of the picture), `label` and `label_name`, `readable`, `read_otherwise` (what it has
that OpenCLIP would read otherwise, else null), `guesses` (class indices, best first), `guess_names`, `scores` (100
times the cosine, float32). Class indices are those of the folder's class list. Of a picture that could not be read
`guesses`, `guess_names` and `scores` are null. The file's metadata has its result's `checkpoint_sha256` and
`list_sha256`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from data_prep.atomic import writing
from evaluate.data.sets import EvalSet
from evaluate.errors import RefusedError
from evaluate.result import check_writable
from evaluate.zero_shot import Measured

ROWS = 100_000  # written at a time


def check_predictions(path: Path, keep: Sequence[Path] = ()) -> None:
    """Raise RefusedError unless predictions can be written to `path`, which is none of those to `keep`."""
    check_writable(path, "--predictions", keep)
    _parquet()


def write_predictions(
    path: Path, sets: Sequence[EvalSet], measured: Mapping[str, Measured], facts: Mapping[str, str]
) -> None:
    """Write the guesses of every set, one after the other; `measured` by folder, `facts` as the file's metadata."""
    arrow, parquet = _parquet()
    schema = arrow.schema(
        [
            ("set", arrow.dictionary(arrow.int8(), arrow.string())),
            ("folder", arrow.string()),
            ("name", arrow.string()),
            ("label", arrow.int32()),
            ("label_name", arrow.string()),
            ("readable", arrow.bool_()),
            ("read_otherwise", arrow.string()),
            ("guesses", arrow.list_(arrow.int32())),
            ("guess_names", arrow.list_(arrow.string())),
            ("scores", arrow.list_(arrow.float32())),
        ],
        metadata=dict(facts),
    )
    with writing(path) as file, parquet.ParquetWriter(file, schema) as writer:
        for eval_set in sets:
            rows = _rows(measured[eval_set.folder], eval_set.name)
            for start in range(0, len(rows), ROWS):
                writer.write_table(arrow.Table.from_pylist(rows[start : start + ROWS], schema=schema))


def _rows(measured: Measured, name: str) -> list[dict[str, object]]:
    """The set's pictures in the list's order."""
    folder, guesses = measured.folder, measured.sets[name]
    names, chosen = folder.class_names, set(folder.columns[name])
    said = dict(
        zip(
            guesses.numbers.tolist(),
            zip(guesses.best.tolist(), guesses.scores.tolist(), strict=True),
            strict=True,
        )
    )
    rows = []
    for number, (picture, label) in enumerate(zip(folder.pictures.names, folder.pictures.labels, strict=True)):
        if label not in chosen:
            continue
        best, scores = said.get(number, (None, None))
        rows.append(
            {
                "set": name,
                "folder": folder.name,
                "name": picture.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
                "label": label,
                "label_name": names[label],
                "readable": best is not None,
                "read_otherwise": measured.otherwise.get(number),
                "guesses": best,
                "guess_names": None if best is None else [names[index] for index in best],
                "scores": scores,
            }
        )
    return rows


def _parquet() -> tuple[ModuleType, ModuleType]:
    """pyarrow and its parquet module. Raises RefusedError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RefusedError("--predictions needs pyarrow, which is not installed: pip install pyarrow") from error
    return pyarrow, pyarrow.parquet
