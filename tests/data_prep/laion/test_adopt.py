"""Tests of which names `manifest` takes and gives; what it does with shards is in test_collect.py."""

from pathlib import Path

import pytest
from shard_files import samples, write_tar

from data_prep.errors import DataError
from data_prep.laion.adopt import adopt
from data_prep.laion.verify import Options
from data_prep.manifest import MANIFEST

ALONE = Options(workers=1)


@pytest.mark.parametrize(
    "name", ["sizes.json", "stats.json", "stats.html", "0.tar", "new.tar", "verify.jsonl", "verify.hashes"]
)
def test_a_name_that_is_another_files(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / "0.tar", samples(4))
    with pytest.raises(DataError, match=f"{name} is the name of another file of a set; name it {MANIFEST}"):
        adopt(tmp_path, tmp_path / name, ALONE, leave_out=False)
    assert [path.name for path in tmp_path.iterdir()] == ["0.tar"]
