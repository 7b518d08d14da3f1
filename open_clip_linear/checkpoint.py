"""The kind inside a state dict, so that weights of one kind never run silently as another.

All kinds share OpenCLIP's parameter names, and most share their shapes: without a mark, an `eq7` checkpoint would
load into a `softmax` tower and give wrong embeddings. Each tower's transformer therefore holds one small uint8
buffer, `attention_spec`, with the spec's text. `softmax` carries none: its state dict is exactly stock OpenCLIP's.
Stock OpenCLIP without the plugin refuses the mark as an unexpected key.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from open_clip_linear.spec import AttentionSpec

MARK = "attention_spec"


class KindMismatchError(RuntimeError):
    """A state dict of one attention kind was loaded into a tower of another."""


def mark(spec: AttentionSpec | None) -> Tensor | None:
    """The buffer that names a tower's kind: uint8 text, or None for softmax (and for stock towers, None)."""
    if spec is None or spec.function() == "softmax":
        return None
    return torch.tensor(list(spec.function().encode()), dtype=torch.uint8)


def check_kind(own: AttentionSpec | None, state_dict: Mapping[str, Tensor], prefix: str) -> None:
    """Compare the kind of a tower with that of the weights under `prefix` in a state dict.

    Weights that say nothing of this tower (a partial state dict) pass.

    Raises:
        KindMismatchError: the kinds differ.
    """
    found_mark = state_dict.get(prefix + MARK)
    if found_mark is None and not any(key.startswith(prefix) for key in state_dict):
        return
    expected = own.function() if own is not None else "softmax"
    found = bytes(found_mark.flatten().tolist()).decode(errors="replace") if found_mark is not None else "softmax"
    if found != expected:
        raise KindMismatchError(
            f"the weights under {prefix.rstrip('.')!r} were trained with {found!r} attention"
            f"{' (they carry no mark, as stock OpenCLIP weights)' if found_mark is None else ''}, but this tower "
            f"computes {expected!r}. The same weights give other features there, so nothing was loaded into it; "
            f"create the model with block_type {found!r}"
        )
