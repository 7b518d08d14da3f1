"""How far features moved, and on which pictures."""

import pytest
import torch
from PIL import Image

from open_clip_linear.convert.command import spell_factor
from open_clip_linear.convert.features import ComparisonError, drawn_pictures, feature_shift, read_pictures


def test_the_shift_of_features():
    before = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    shift = feature_shift(["a", "b"], before, torch.tensor([[2.0, 0.0], [3.0, 3.0]]))
    assert shift.cosines == pytest.approx([1, 0.5**0.5])
    assert (shift.cosine_mean, shift.cosine_min) == pytest.approx(((1 + 0.5**0.5) / 2, 0.5**0.5))
    assert shift.norm_change == pytest.approx((2 + 18**0.5) / 3 - 1)
    assert shift.between_samples == pytest.approx(0)
    assert not shift.same
    assert feature_shift(["a", "b"], before, before).same
    assert feature_shift(["a"], before[:1], before[:1]).between_samples is None
    with pytest.raises(ComparisonError, match="after the conversion are NaN"):
        feature_shift(["a", "b"], before, before * torch.nan)


def test_drawn_pictures_are_the_same_each_time_and_differ():
    one, two = drawn_pictures(), drawn_pictures()
    assert len(one) == 8
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)
    assert len({picture.tobytes() for picture in one.values()}) == 8


def test_pictures_from_files_and_folders(tmp_path):
    for name in ("b.png", "a.JPG", "c.webp"):
        Image.new("L", (20, 10), 7).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    found = read_pictures([tmp_path, tmp_path / "c.webp"])
    assert list(found) == [str(tmp_path / name) for name in ("a.JPG", "b.png", "c.webp")]
    assert {picture.mode for picture in found.values()} == {"RGB"}
    (tmp_path / "empty").mkdir()
    for name, message in (("empty", "no picture in"), ("no.png", "no such file"), ("notes.txt", "cannot be read")):
        with pytest.raises(ComparisonError, match=f"--images .*{name}.*{message}"):
            read_pictures([tmp_path / name])


def test_factors_are_spelled_as_the_fractions_they_are():
    assert [spell_factor(x) for x in (2 / 197, 98.5, 0.5, 1.0, 2 / 3, 0.123456789123)] == [
        "0.01015 (2/197)",
        "98.5",
        "0.5",
        "1",
        "0.6667 (2/3)",
        "0.1235",
    ]
