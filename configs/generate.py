"""Writes configs/models from OpenCLIP's own model configs: only the attention differs.

`ViT-S-16-K` has kind K in the vision tower, `ViT-S-16-K-both` in the text tower as well.

    python configs/generate.py            # write
    python configs/generate.py --check    # exit 1 if a file differs from what would be written

Cost: none to speak of. tests/test_registry.py runs the check.
"""

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

from open_clip.factory import get_model_config

MODELS = Path(__file__).parent / "models"

# Suffix of a model's name → its attention spec.
SPECS = {
    "softmax": "softmax",
    "eq4": "eq4",
    "eq7": "eq7",
    "eq7mean": "eq7:scale=mean",
    "sema": "sema",
    "inline": "inline",
}

# The quickstart's model also comes with the learned gain, with Eq. 4 at Eq. 7's size (the control without which the two
# cannot be compared) and with its last layers in softmax. Its grid is 6x6 patches.
TINY_SPECS = SPECS | {
    "eq4half": "eq4:gain=half_n",
    "eq7learned": "eq7:scale=learned",
    "sema": "sema:window=3",
    "hybrid": "eq7:scale=mean*4+softmax*2",
}

# Chosen for twelve minutes of training on two CPU cores; the README says how.
TINY: dict[str, Any] = {
    "embed_dim": 192,
    "vision_cfg": {
        "image_size": 48,
        "layers": 6,
        "width": 192,
        "head_width": 32,
        "patch_size": 8,
        "pool_type": "avg",
        "final_ln_after_pool": True,
        "pos_embed_type": "sin_cos_2d",
    },
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 256, "heads": 8, "layers": 1},
}


def with_attention(base: dict[str, Any], spec: str, towers: tuple[str, ...] = ("vision_cfg",)) -> dict[str, Any]:
    config = copy.deepcopy(base)
    for tower in towers:
        config[tower]["block_type"] = spec
    return config


def generate() -> dict[str, dict[str, Any]]:
    """Every model config by name."""
    configs = {}
    for base in ("ViT-S-16", "ViT-B-16", "ViT-L-16"):
        for suffix, spec in SPECS.items():
            config = get_model_config(base)
            configs[f"{base}-{suffix}"] = with_attention(config, spec)
            configs[f"{base}-{suffix}-both"] = with_attention(config, spec, ("vision_cfg", "text_cfg"))
    for suffix, spec in TINY_SPECS.items():
        configs[f"tiny-emoji-{suffix}"] = with_attention(TINY, spec)
    return configs


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write configs/models from OpenCLIP's own model configs.",
        epilog="example: python configs/generate.py --check",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    check = parser.parse_args().check
    wanted = {MODELS / f"{name}.json": json.dumps(config, indent=4) + "\n" for name, config in generate().items()}
    stale = [path for path in MODELS.glob("*.json") if path not in wanted]
    changed = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    for path in sorted(stale + changed):
        print(f"{'differs' if check else 'removed' if path in stale else 'written'}: {path.name}")
    if check:
        return 1 if stale or changed else 0
    for path in stale:
        path.unlink()
    for path in changed:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
