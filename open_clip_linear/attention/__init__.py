"""The attention kinds by name. A new kind is one file here, one line below and one test file."""

from open_clip_linear.attention.base import Attention, TokenLayout
from open_clip_linear.attention.eq4 import Eq4
from open_clip_linear.attention.eq7 import Eq7
from open_clip_linear.attention.inline import Inline
from open_clip_linear.attention.sema import Sema
from open_clip_linear.attention.softmax import Softmax

KINDS: dict[str, type[Attention]] = {cls.kind: cls for cls in (Softmax, Eq4, Eq7, Sema, Inline)}

__all__ = ["KINDS", "Attention", "TokenLayout"]
