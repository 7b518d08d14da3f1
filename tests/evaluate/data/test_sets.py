"""The declarative entries."""

import pytest

from evaluate.data.sets import DATASETS, EMOJI, get_dataset
from evaluate.errors import RefusedError


def test_every_template_takes_exactly_the_name() -> None:
    for dataset in DATASETS.values():
        for templates in dataset.templates.values():
            for text in templates.texts:
                assert text.format("a name").count("a name") == 1


def test_set_names_are_those_of_the_result() -> None:
    assert [s.name for s in EMOJI.sets] == ["heldout_vendor", "heldout_vendor_noflags", "heldout_concepts"]
    assert EMOJI.folders == ("heldout-vendor", "heldout-concepts")


def test_unknown_dataset_names_the_nearest() -> None:
    with pytest.raises(RefusedError, match=r"'emojis' is not known .did you mean 'emoji'"):
        get_dataset("emojis")
