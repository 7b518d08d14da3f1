"""Class weights that are kept: used for what they are of, refused where the file is another's or damaged."""

from pathlib import Path

import pytest
import torch

from evaluate import classifier_cache as cache
from evaluate.errors import RefusedError
from evaluate.models import LoadedModel, load_model

WEIGHTS = torch.nn.functional.normalize(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), dim=0)
NAMES, TEMPLATES = ["a", "b", "a"], ["{}", "a photo of a {}."]


@pytest.fixture(scope="module")
def loaded(nano: tuple[str, Path]) -> LoadedModel:
    return load_model(*nano)


def test_what_was_written_is_read(loaded: LoadedModel, tmp_path: Path) -> None:
    facts = cache.facts_of(loaded, NAMES, TEMPLATES)
    assert cache.read(tmp_path / "new", facts) is None
    cache.write(tmp_path / "new", facts, WEIGHTS.T.contiguous().T)
    assert torch.equal(cache.read(tmp_path / "new", facts), WEIGHTS)
    assert [p.suffix for p in (tmp_path / "new").iterdir()] == [".safetensors"], "no temporary file stays"


def test_everything_the_weights_depend_on_names_another_file(loaded: LoadedModel, tmp_path: Path) -> None:
    facts = cache.facts_of(loaded, NAMES, TEMPLATES)
    others = [
        cache.facts_of(loaded, ["b", "a", "a"], TEMPLATES),
        cache.facts_of(loaded, ["a", "b", "c"], TEMPLATES),
        cache.facts_of(loaded, NAMES, TEMPLATES[:1]),
        *(facts | {name: "another"} for name in ("checkpoint_sha256", "config", "open_clip", "format")),
    ]
    assert len({cache.file_of(tmp_path, one) for one in [facts, *others]}) == 1 + len(others)


def test_files_that_were_mixed_up_are_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    facts = cache.facts_of(loaded, NAMES, TEMPLATES)
    for other, message in (
        (facts | {"checkpoint_sha256": "f" * 64}, "of another checkpoint .sha256 ffffffffffffffff"),
        (facts | {"templates": ["{}"]}, "of another classifier .templates differ"),
    ):
        cache.write(tmp_path, other, WEIGHTS)
        cache.file_of(tmp_path, other).rename(cache.file_of(tmp_path, facts))
        with pytest.raises(RefusedError, match=f"{message}.*rm {cache.file_of(tmp_path, facts)}"):
            cache.read(tmp_path, facts)


def test_damaged_files_are_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    facts = cache.facts_of(loaded, NAMES, TEMPLATES)
    cache.write(tmp_path, facts, WEIGHTS)
    path = cache.file_of(tmp_path, facts)
    whole = path.read_bytes()
    flipped = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
    for content in (b"", b"nothing", whole[:-1], whole[:100], flipped):
        path.write_bytes(content)
        with pytest.raises(RefusedError, match=r"is damaged .*Remove it"):
            cache.read(tmp_path, facts)


def test_weights_of_another_number_of_classes_are_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    facts = cache.facts_of(loaded, NAMES, TEMPLATES)
    cache.write(tmp_path, facts, WEIGHTS[:, :2])
    with pytest.raises(RefusedError, match="damaged"):
        cache.read(tmp_path, facts)


def test_a_folder_that_cannot_be_written_is_no_error(
    loaded: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache.write(tmp_path / "file" / "cache", cache.facts_of(loaded, NAMES, TEMPLATES), WEIGHTS)
    assert "the classifier is not kept in" in caplog.text


def test_the_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_folder() == tmp_path / "open_clip_linear" / "classifiers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.default_folder() == tmp_path / ".cache" / "open_clip_linear" / "classifiers"
