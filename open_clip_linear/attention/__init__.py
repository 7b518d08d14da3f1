"""The attention kinds by name. A new kind is one file here, one line below and one test file.

A kind of a user's own, outside this package, is added by `register_attention`; docs/seam.md shows one.
"""

from open_clip_linear.attention.base import Attention, Choice, Integer, Layout, TextLayout, VisionLayout
from open_clip_linear.attention.declaration import check_declaration
from open_clip_linear.attention.eq4 import Eq4
from open_clip_linear.attention.eq7 import Eq7
from open_clip_linear.attention.inline import Inline
from open_clip_linear.attention.sema import Sema
from open_clip_linear.attention.softmax import Softmax

KINDS: dict[str, type[Attention]] = {cls.kind: cls for cls in (Softmax, Eq4, Eq7, Sema, Inline)}


def register_attention(cls: type[Attention]) -> type[Attention]:
    """Let `block_type` name a kind of your own: a class decorator for a subclass of `Attention`.

    Raises:
        TypeError: no subclass of `Attention`, one that implements no `attend`, or a method that does not take what it
            will be given.
        ValueError: its `kind` is no lower-case word, is another class's already or one of OpenCLIP's block types, or
            an option's name or value could not stand in a spec.
    """
    check_declaration(cls)
    known = KINDS.get(cls.kind)
    # Running a notebook's cell again defines the class again: the newer definition is meant.
    same = known is not None and (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)
    if (known is not None and not same) or cls.kind in ("default", "custom"):
        raise ValueError(f"{cls.__name__}: the kind {cls.kind!r} is taken; choose another name")
    KINDS[cls.kind] = cls
    return cls


__all__ = ["KINDS", "Attention", "Choice", "Integer", "Layout", "TextLayout", "VisionLayout", "register_attention"]
