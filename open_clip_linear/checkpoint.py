"""The kind inside a state dict, so that weights of one kind never run silently as another.

All kinds share OpenCLIP's parameter names, and most share their shapes: without a mark, an `eq7` checkpoint would
load into a `softmax` tower and give wrong embeddings. Each tower's transformer therefore holds one small uint8
buffer, `attention_spec`, with the spec's text (a pattern, where layers differ). `softmax` carries none: its state dict
is exactly stock OpenCLIP's. Stock OpenCLIP without the plugin refuses the mark as an unexpected key. The mark is
written anew on every save and read leniently, because weight averaging computes with buffers too (timm's EMA, SWA and
WiSE-FT are tested or tried; code that averages a state dict in place must pass integer entries over, as it must for
any integer buffer).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from open_clip_linear.spec import AttentionSpec, spell

MARK = "attention_spec"


class KindMismatchError(RuntimeError):
    """A state dict of one attention kind was loaded into a tower of another."""


def function_of(specs: tuple[AttentionSpec, ...] | None) -> str:
    """What a tower computes, by its layers' specs: a canonical spec or pattern; `softmax` for stock towers (None)."""
    return spell(spec.function() for spec in specs) if specs else "softmax"


def mark(specs: tuple[AttentionSpec, ...] | None) -> Tensor | None:
    """The buffer that names a tower's kind: uint8 text; None where every layer is softmax, and for stock towers."""
    function = function_of(specs)
    if function == "softmax":
        return None
    return torch.tensor(list(function.encode()), dtype=torch.uint8, device="cpu")


def read_mark(found: Any) -> str:
    """The text of a mark, whatever float or integer dtype it went through. Raises KindMismatchError if damaged."""
    try:
        return bytes(round(value) for value in found.flatten().tolist()).decode()
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise KindMismatchError(
            f"the attention mark of these weights ({what}) cannot be read, so nothing says which kind they are of; "
            "take the weights from where they were first saved"
        ) from error


def check_kind(own: tuple[AttentionSpec, ...] | None, state_dict: Mapping[str, Any], prefix: str) -> None:
    """Compare the kind of a tower with that of the weights under `prefix` in a state dict.

    Weights that hold no attention of this tower (a partial state dict) pass.

    Raises:
        KindMismatchError: the kinds differ, or the mark cannot be read.
    """
    found_mark = state_dict.get(prefix + MARK)
    if found_mark is None and not any(key.startswith(prefix) and ".attn." in key for key in state_dict):
        return
    expected = function_of(own)
    found = read_mark(found_mark) if found_mark is not None else "softmax"
    if found != expected:
        raise KindMismatchError(
            f"the weights under {prefix.rstrip('.')!r} were trained with {found!r} attention"
            f"{' (they carry no mark, as stock OpenCLIP weights)' if found_mark is None else ''}, but this tower "
            f"computes {expected!r}, and the same weights give other features there. Create the model with block_type "
            f"{found!r}; this one may be partly overwritten"
        )
