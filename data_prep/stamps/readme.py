"""Writes the README.md of a built stamps set: what is in it, whose work it is, and what not to conclude from it."""

from collections.abc import Mapping
from typing import Any

_PAGE = """# Tux Paint's stamps with English descriptions, {image_size} px

Made by `{command}`
from Debian's package {package} {version} (sha256 of the .deb: {deb_sha256}).

{pictures} pictures, many of them photographs cut out, with {descriptions} different descriptions: {categories}.

- `test/0.tar`: `KEY.png` (RGB on white, centred in a square), `KEY.txt` (the description), `KEY.json` (path in the
  package, category), `KEY.cls` (the description's line in `classnames.txt`, from 0).
- `test/manifest.jsonl`: size, SHA-256 and number of samples of the shard, for training.
- `classnames.txt`, `zeroshot_classification_templates.txt`, `test/nshards.txt`: CLIP_benchmark's layout, in which the
  set is a classification of pictures by description, and retrieval.

```
python -m evaluate retrieval --model NAME --pretrained FILE --data DIR
python -m evaluate zero-shot --model NAME --pretrained FILE --dataset wds/stamps --root DIR --output FILE.json
```

Where a stamp comes as PNG and as SVG it is the PNG. Mirror images (`*_mirror`) and pictures without a description are
left out. {failed}

## What not to conclude from it

- {pictures_sharing_a_description} pictures share their description with another one ("A flower."): where only a
  picture's own caption counts as right, retrieval cannot reach 100 %. {identical_pictures} pictures are identical to
  another one.
- There is no training part. A model trained on these pictures must not be measured on them.
- Letters, coins and flags are a good part of it; it is no sample of photographs as people take them.

## Licence

Copyright 2002-2022 Bill Kendrick and the contributors of Tux Paint's stamps, under the GNU General Public License,
version 2 (GPL-2): what is derived from the pictures and passed on is to be under the same licence. `copyright` is the
package's own notice. The pictures were changed in this way: drawn at {image_size} px on a white square.

The PNG bytes depend on {made_with}.
"""


def readme(stats: Mapping[str, Any]) -> str:
    """The page for a set with the outcome `stats` (the content of stats.json)."""
    failed = "Every picture could be drawn."
    if stats["failed"]:
        failed = "Not drawn, and left out: " + ", ".join(f"`{path}`" for path in stats["failed"]) + "."
    return _PAGE.format(
        **{
            **stats,
            "categories": ", ".join(f"{name} {count}" for name, count in stats["categories"].items()),
            "made_with": ", ".join(f"{name} {number}" for name, number in stats["made_with"].items()),
            "failed": failed,
        }
    )
