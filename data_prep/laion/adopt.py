"""A manifest for shards that are there already: someone's LAION download, CC12M, DataComp. They stay as they are.

    result = adopt(Path("/data/cc12m"), Path("/data/cc12m/manifest.jsonl"), Options(), leave_out=False)

A manifest names shards beside or below it. Where it is to stand elsewhere, links to the shards are made beside it, and
nothing is written in their folder.
"""

import os
from dataclasses import replace
from pathlib import Path

from data_prep.errors import DataError
from data_prep.laion.collect import SIZES, failures_of, write_lists
from data_prep.laion.journal import HASHES, LINES
from data_prep.laion.ours import refuse_foreign
from data_prep.laion.renewed import LOG
from data_prep.laion.verify import Options, Result, shards_under, verify
from data_prep.manifest import MANIFEST, ShardEntry

_OTHERS = (SIZES, "stats.json", "stats.html", LINES, HASHES, LOG)  # of a set, which are written beside the manifest


def adopt(root: Path, file: Path, options: Options, leave_out: bool) -> Result:
    """Verify all shards under `root` and write the manifest `file` of them, with a `sizes.json` beside them.

    Args:
        leave_out: name the sound shards alone, where others are there. Nothing is written then without it.

    Raises:
        DataError: as `verify`, no sound shard, `file` inside `root` or of a name that is another file's, or something
            else stands where a link, the manifest or a sizes.json is to be. A manifest.jsonl of someone's own is passed
            over.
    """
    folder = file.parent
    here, there = folder.resolve(), root.resolve()
    if here != there and here.is_relative_to(there):
        raise DataError(f"--output {file} is inside {root}; a manifest stands in the folder itself, above or elsewhere")
    if file.name in _OTHERS or file.suffix == ".tar":
        raise DataError(f"--output {file} is the name of another file of a set; name it {MANIFEST}, as training does")
    linked = not there.is_relative_to(here)
    names = shards_under(root)
    for path in (file, *sorted({(folder if linked else root) / Path(name).parent / SIZES for name in names})):
        refuse_foreign(path)
    if linked or not os.access(root, os.W_OK):
        options = replace(options, state=folder)
    result = verify(root, replace(options, adopting=True), names)
    if result.unsound and not leave_out:
        return result
    sound = [verdict.report for verdict in result.verdicts if not verdict.against]
    prefix = Path() if linked else there.relative_to(here)
    if linked:
        for each in sound:
            _link(folder / each.name, there / each.name)
    entries = [
        ShardEntry(str(prefix / each.name), each.bytes, each.sha256, each.samples, failures_of(root / each.name))
        for each in sound
    ]
    write_lists(folder, entries, file.name)
    return result


def _link(link: Path, shard: Path) -> None:
    if link.is_symlink() and os.readlink(link) == str(shard):
        return
    if os.path.lexists(link):
        raise DataError(f"{link} is there and no link to {shard}; remove it, or give --output in another folder")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(shard)
